"""Measuring code uses the Framework interface: it never imports a framework or looks it up by name."""

import ast
from pathlib import Path

import pytest

import rigdyno
from rigdyno import catalogue

SOURCE = Path(rigdyno.__file__).parent
FRAMEWORKS = {*catalogue.names("framework"), "tensorflow", "jax", "mxnet"}
# They contain names of packages whose versions are recorded, and what `doctor` tries with torch in a child process.
MAY_NAME_THEM = {"rig/environment.py", "rig/traps.py"}
PATHS = [*(SOURCE / "runner").rglob("*.py"), *(SOURCE / "rig").rglob("*.py")]
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in PATHS)


def imported(tree: ast.Module) -> set[str]:
    """Return the packages that are imported anywhere in the file."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def spoken(tree: ast.Module) -> set[str]:
    """Return all strings and names in the code, to find `sys.modules["torch"]` and the like."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("file", FILES)
def test_no_framework_and_no_port_is_imported_by_name(file):
    names = imported(ast.parse((SOURCE / file).read_text()))
    assert not {name.partition(".")[0] for name in names} & FRAMEWORKS
    assert not any(name.startswith("rigdyno.frameworks") for name in names)


@pytest.mark.parametrize("file", sorted({*FILES} - MAY_NAME_THEM))
def test_no_framework_is_named(file):
    assert not spoken(ast.parse((SOURCE / file).read_text())) & FRAMEWORKS


def test_the_search_finds_imports_and_names():
    tree = ast.parse("def wait():\n    import torch.cuda\n    sys.modules.get('torch')")
    assert imported(tree) == {"torch.cuda"}
    assert spoken(tree) >= {"torch"}
