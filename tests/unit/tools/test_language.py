"""tools/language.py finds texts that are not plain English, and its limit holds for this project."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def language(monkeypatch):
    spec = importlib.util.spec_from_file_location("rigdyno_language", ROOT / "tools" / "language.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rigdyno_language", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("code", "finding"),
    [
        ('def f():\n    """Of one process group."""\n', "1: docstring opens with 'Of'"),
        ('"""Whether it is so."""\n', "1: docstring opens with 'Whether'"),
        ("x = 1  # whoever asks\n", "1: comment 'whoever' is not plain"),
        ("# there is none\n", "1: comment 'is none' is not plain"),
        (f"option(help={'a' * 91!r})\n", "1: help has 91 characters, more than 90"),
        ('class A:\n    """Return what is held against it."""\n', "1: docstring 'held against' is not plain"),
    ],
)
def test_a_text_that_is_not_plain_is_found(language, tmp_path, code, finding):
    (tmp_path / "a.py").write_text(code)
    assert language.check([tmp_path]) == (1, [f"{tmp_path}/a.py:{finding}"])


@pytest.mark.parametrize(
    "code",
    [
        'def f():\n    """Return the median, or None if it is None."""\n',
        "x = 1  # noqa: whoever\n",
        'option(help="Random seed.")\n',
        '"""Return `nobody` as it is."""\n',
    ],
)
def test_a_plain_text_has_no_finding(language, tmp_path, code):
    (tmp_path / "a.py").write_text(code)
    assert language.check([tmp_path])[1] == []


def test_a_share_above_the_limit_is_exit_code_1(language, tmp_path, capsys):
    (tmp_path / "a.py").write_text("x = 1  # nobody\n" + "y = 2  # plain\n" * 10)
    assert language.main([str(tmp_path)]) == 1
    assert "1 of 11 texts have a finding, 9.1%" in capsys.readouterr().out
    (tmp_path / "a.py").write_text("x = 1  # nobody\n" + "y = 2  # plain\n" * 199)
    assert language.main([str(tmp_path)]) == 0
