"""Test that the examples of the documentation work as printed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rigdyno.workloads
from rigdyno import catalogue
from rigdyno.contracts import Steps, WorkerPlace

ROOT = Path(__file__).parents[2]
ADDING = (ROOT / "docs" / "adding.md").read_text()


def find_block(beginning):
    """Return the code block with that beginning."""
    return next(code for code in re.findall(r"```python\n(.*?)```", ADDING, re.DOTALL) if code.startswith(beginning))


@pytest.fixture
def _with_the_documented_workload(tmp_path, monkeypatch):
    (tmp_path / "matrix_vector.py").write_text(find_block("from dataclasses import dataclass"))
    monkeypatch.setattr(rigdyno.workloads, "__path__", [*rigdyno.workloads.__path__, str(tmp_path)])
    for cached in (catalogue.names, catalogue._own_names):
        cached.cache_clear()
    yield
    sys.modules.pop("rigdyno.workloads.matrix_vector", None)
    for cached in (catalogue.names, catalogue._own_names):
        cached.cache_clear()


@pytest.mark.usefixtures("_with_the_documented_workload")
def test_the_documented_workload_needs_only_its_file():
    assert "matrix_vector" in catalogue.names("workload")
    kind = catalogue.load("workload", "matrix_vector")
    steps = kind(size=64).build(WorkerPlace(device="cpu"))
    assert isinstance(steps, Steps)
    steps.kinds["step"]()
    assert steps.check()
    assert steps.items_per_step == 2 * 64 * 64
    code = find_block("from dataclasses import dataclass").splitlines()
    assert len([line for line in code if line.strip()]) <= 20


def test_the_documented_training_step_is_measured(tmp_path):
    (tmp_path / "train.py").write_text(find_block("# train.py"))
    command = ["run", "train.py:step", "--set", "unit=image", "--sweep", "batch=16,64", "--steps", "20"]
    ended = subprocess.run(
        [sys.executable, "-m", "rigdyno", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert {"batch", "16", "64"} <= {line.split()[0] for line in ended.stdout.splitlines() if line.strip()}
    assert "image/s" in ended.stdout


def test_the_architecture_names_functions_and_classes_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", text, re.MULTILINE)
    assert len(named) > 50
    assert [(file, name) for file, name in named if name not in defined_in(ROOT / "src" / "rigdyno" / file)] == []


def defined_in(path):
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}


def test_documents_name_files_that_exist():
    there = [
        f"/{path.relative_to(ROOT)}" for name in ("src", "tests", "tools", "benchmarks") for path in files_in(name)
    ]
    documents = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = {(each.name, file) for each in documents for file in re.findall(r"`([\w/]+/\w+\.py)`", each.read_text())}
    own = {"src/rigdyno/workloads/matrix_vector.py"}  # the reader's
    missing = {(name, file) for name, file in named if not any(path.endswith(f"/{file}") for path in there)}
    assert {(name, file) for name, file in missing if file not in own and "NAME" not in file} == set()


def files_in(name):
    return (ROOT / name).rglob("*.py")
