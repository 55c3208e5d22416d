"""What the documentation shows, works as it is printed there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rigdyno.workloads
from rigdyno import catalogue
from rigdyno.contracts import Place, Steps

ROOT = Path(__file__).parents[2]
ADDING = (ROOT / "docs" / "adding.md").read_text()


def block(beginning):
    """The code block that begins so."""
    return next(code for code in re.findall(r"```python\n(.*?)```", ADDING, re.DOTALL) if code.startswith(beginning))


@pytest.fixture
def _with_the_documented_workload(tmp_path, monkeypatch):
    (tmp_path / "matrix_vector.py").write_text(block('"""A matrix times a vector'))
    monkeypatch.setattr(rigdyno.workloads, "__path__", [*rigdyno.workloads.__path__, str(tmp_path)])
    for cached in (catalogue.names, catalogue._own_names):
        cached.cache_clear()
    yield
    sys.modules.pop("rigdyno.workloads.matrix_vector", None)
    for cached in (catalogue.names, catalogue._own_names):
        cached.cache_clear()


@pytest.mark.usefixtures("_with_the_documented_workload")
def test_the_documented_workload_is_one_file_and_nothing_else():
    assert "matrix_vector" in catalogue.names("workload")
    kind = catalogue.load("workload", "matrix_vector")
    steps = kind(size=64).build(Place(device="cpu"))
    assert isinstance(steps, Steps)
    steps.kinds["step"]()
    assert steps.check()
    assert steps.items_per_step == 2 * 64 * 64


def test_the_documented_training_step_is_measured(tmp_path):
    (tmp_path / "train.py").write_text(block("# train.py"))
    command = ["run", "train.py:step", "--set", "unit=image", "--sweep", "batch=16,64", "--steps", "20"]
    ended = subprocess.run(
        [sys.executable, "-m", "rigdyno", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert {"batch", "16", "64"} <= {line.split()[0] for line in ended.stdout.splitlines() if line.strip()}
    assert "image/s" in ended.stdout
