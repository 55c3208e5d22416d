"""A user's own step is looked up without running their file."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.base.errors import RigdynoError, UnknownName, UsageError
from rigdyno.plan.user_file import require_function


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train.py"

    def written(content):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


@pytest.mark.parametrize(
    "text",
    [
        "def step(): pass",
        "async def step(): pass",
        "class step: pass",
        "step = print",
        "step: object = print",
        "import step",
        "import step.inner",
        "import x as step",
        "from x import y as step",
        "a, (step, b) = 1, (2, 3)",
        "if True:\n    pass\nelse:\n    def step(): pass",
        "try:\n    import fast\nexcept ImportError:\n    def step(): pass",
        "try:\n    pass\nfinally:\n    def step(): pass",
        "with x as y:\n    def step(): pass",
        "from somewhere import *",
        "raise SystemExit('it was run')\ndef step(): pass",
    ],
)
def test_a_function_is_found(file, text):
    require_function(f"{file(text)}:step")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def stepp(): pass", "no function named 'step'; did you mean 'stepp'?"),
        ("def other():\n    def step(): pass", "there is other"),
        ("class A:\n    def step(self): pass", "there is A"),
        ("import x.step", "there is x"),
        ("", "there is none"),
    ],
)
def test_a_missing_function_is_not_found(file, text, says):
    path = file(text)
    with pytest.raises(UnknownName, match=re.escape(says)) as raised:
        require_function(f"{path}:step")
    assert str(raised.value).startswith(f"{path}: no function named 'step'")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("x = 1\ndef step(:\n", "train.py:2 is not Python: "),
        (b"\x7fELF\x00\xff\xfe", "is not Python: "),
        (b"x = '\xff'\n", "is not Python: "),
        ("x = " + "-" * 200_000 + "1", "is not Python: "),
        ("x = a" + ".b" * 100_000, "is not Python: "),
        ("x = " + "(" * 300, "is not Python: "),
    ],
)
def test_invalid_python_is_reported_in_one_line(file, content, says):
    with pytest.raises(UsageError, match=re.escape(says)) as raised:
        require_function(f"{file(content)}:step")
    assert "None" not in str(raised.value)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(UsageError, match=r"no file .*none\.py here"):
        require_function(f"{tmp_path}/none.py:step")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UsageError, match=r"can't read .*folder\.py: is a directory"):
        require_function(f"{tmp_path}/folder.py:step")
    with pytest.raises(UsageError):
        require_function("nul\0.py:step")


@settings(deadline=None, max_examples=60)
@given(content=st.binary(max_size=80) | st.text(alphabet="def step():\n =(1,'", max_size=40).map(str.encode))
def test_any_bytes_are_accepted_or_refused_as_usage_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "x.py"
    path.write_bytes(content)
    try:
        require_function(f"{path}:step")
    except RigdynoError:
        return
    assert b"step" in content


STEPS = """
import functools

def step(batch: int = 1, *, depth: int = 2): pass
def anything(**options): pass
@functools.cache
def wrapped(): pass
"""


@pytest.mark.parametrize(("function", "given"), [("step", {"batch", "depth"}), ("anything", {"x"}), ("wrapped", {"x"})])
def test_arguments_that_a_function_may_take_are_accepted(tmp_path, function, given):
    (tmp_path / "train.py").write_text(STEPS)
    require_function(f"{tmp_path}/train.py:{function}", given)


def test_a_misspelt_argument_is_found_without_running_the_file(tmp_path):
    (tmp_path / "train.py").write_text(STEPS)
    with pytest.raises(UnknownName, match=r"train.py:4: no argument of step named 'bach'; did you mean 'batch'\?"):
        require_function(f"{tmp_path}/train.py:step", {"bach"})
