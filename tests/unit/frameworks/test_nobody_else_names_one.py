"""Whoever measures asks a port: no framework is imported or looked up by its name."""

import ast
from pathlib import Path

import pytest

import rigdyno
from rigdyno import catalogue

SOURCE = Path(rigdyno.__file__).parent
FRAMEWORKS = {*catalogue.names("framework"), "tensorflow", "jax", "mxnet"}
# Names of packages, whose versions are recorded; and what a doctor tries of torch itself, in a child process.
MAY_NAME_THEM = {"rig/environment.py", "rig/traps.py"}
PATHS = [*(SOURCE / "runner").rglob("*.py"), *(SOURCE / "rig").rglob("*.py")]
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in PATHS)


def imported(tree: ast.Module) -> set[str]:
    """The packages, wherever in the file they are imported."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def spoken(tree: ast.Module) -> set[str]:
    """Every word of code that is no comment or docstring: `sys.modules["torch"]` imports it by another name."""
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


def test_this_would_be_seen():
    tree = ast.parse("def wait():\n    import torch.cuda\n    sys.modules.get('torch')")
    assert imported(tree) == {"torch.cuda"}
    assert spoken(tree) >= {"torch"}
