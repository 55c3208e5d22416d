"""Each rule of tools/lint.py finds a small package that breaks it, and nothing in one that doesn't."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "lint.py"


@pytest.fixture
def lint(monkeypatch):
    spec = importlib.util.spec_from_file_location("rigdyno_lint", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rigdyno_lint", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path):
    """Return a function that writes files into a package named `pack`, and returns its folder."""

    def write(files):
        folder = tmp_path / "pack"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write


def function_of(lines):
    return "@decorated\ndef work():\n" + "    pass\n" * (lines - 1)


def test_a_good_package_has_no_findings(lint, package, capsys):
    folder = package({"__init__.py": "", "a.py": "class A:\n    pass\n", "part/_own.py": function_of(60)})
    assert lint.main([str(folder)]) == 0
    assert capsys.readouterr().out == ""


def test_a_finding_is_one_line_and_exit_code_1(lint, package, capsys):
    folder = package({"a.py": function_of(61)})
    assert lint.main([str(folder)]) == 1
    assert capsys.readouterr().out == f"{folder}/a.py:2: work has 61 lines, more than 60\n"


def test_a_folder_without_modules_is_a_finding(lint, tmp_path):
    assert lint.find_problems(tmp_path / "mistyped") == [f"{tmp_path}/mistyped: there is no module"]


def test_two_classes_of_one_name_are_found_in_any_scope(lint, package):
    folder = package({"a.py": "class Same:\n    pass\n", "part/b.py": "def make():\n    class Same:\n        pass\n"})
    assert lint.find_problems(folder) == [
        f"{folder}/part/b.py:2: the class Same has the name of another one in {folder}/a.py:1"
    ]


@pytest.mark.parametrize("name", ["BadSetting", "Rule"])
def test_class_names_that_are_public_or_a_convention_may_repeat(lint, package, name):
    text = f"class {name}:\n    pass\n"
    assert lint.find_problems(package({"a.py": text, "b.py": text})) == []


def test_a_long_method_is_found(lint, package):
    method = "class A:\n    async def work(self):\n" + "        pass\n" * 60
    folder = package({"a.py": method})
    assert lint.find_problems(folder) == [f"{folder}/a.py:2: work has 61 lines, more than 60"]


@pytest.mark.parametrize(
    "line",
    [
        "from pack.part._own import thing",
        "from pack.part import _own",
        "import pack.part._own as own",
        "from .part._own import thing",
        "from .part import _own",
        "def late():\n    from pack.part._own import thing",
    ],
)
def test_a_private_module_is_not_imported_from_outside_its_folder(lint, package, line):
    folder = package({"part/_own.py": "thing = 1\n", "a.py": line + "\n"})
    (problem,) = lint.find_problems(folder)
    assert problem.endswith(": pack.part._own is private to its folder")


def test_a_private_folder_is_not_imported_from_outside_the_folder_above_it(lint, package):
    files = {"part/_inner/__init__.py": "", "part/_inner/b.py": "", "part/a.py": "from pack.part._inner import b\n"}
    assert lint.find_problems(package(files)) == []
    (problem,) = lint.find_problems(package({"outside.py": "from pack.part._inner import b\n"}))
    assert problem.endswith("outside.py:1: pack.part._inner is private to its folder")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("part/a.py", "from pack.part._own import thing"),
        ("part/__init__.py", "from ._own import thing"),
        ("part/below/a.py", "from .. import _own"),
        ("a.py", "from pack.part.open import _function"),
        ("a.py", "from other.part._own import thing"),
        ("a.py", "from pack.__main__ import main"),
    ],
)
def test_other_imports_are_allowed(lint, package, file, line):
    files = {"part/_own.py": "thing = 1\n", "part/open.py": "", "__main__.py": "", file: line + "\n"}
    assert lint.find_problems(package(files)) == []


def test_a_folder_has_at_most_16_modules(lint, package):
    full = {f"part/m{number}.py": "" for number in range(16)}
    folder = package({"part/__init__.py": "", **full})
    assert lint.find_problems(folder) == []
    package({"part/one_more.py": ""})
    assert lint.find_problems(folder) == [f"{folder}/part: 17 modules in a folder, more than 16"]


def test_catalogue_folders_may_have_more_modules_and_folders_below_them_not(lint, package):
    names = [
        f"{folder}/m{number}.py" for folder in ("commands", "workloads", "commands/common") for number in range(17)
    ]
    folder = package(dict.fromkeys(names, ""))
    assert lint.find_problems(folder) == [f"{folder}/commands/common: 17 modules in a folder, more than 16"]


def test_the_package_has_at_most_440_modules(lint, package):
    most = {f"workloads/m{number}.py": "" for number in range(440)}
    folder = package({"__init__.py": "", **most})
    assert lint.find_problems(folder) == []
    package({"one_more.py": ""})
    assert lint.find_problems(folder) == [f"{folder}: 441 modules, more than 440"]
