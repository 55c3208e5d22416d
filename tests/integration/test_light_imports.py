"""Test from inside the process that quick commands import no framework."""

import subprocess
import sys

import pytest

from driving import environment

HEAVY = {"torch", "tensorflow", "flwr", "opacus", "pynvml", "scipy", "pandas"}
LOOK = """
import atexit, sys
atexit.register(lambda: print("LOADED", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr))
from rigdyno.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",), ("--version",), ("list",), ("list", "--json"), ("leaderboard", "device"), ("report",), ("show",),
        ("run", "device", "--dry-run"), ("run", "all", "--dry-run"), ("run", "step.py:step", "--dry-run"),
        ("run", "nothing"), ("completion", "bash"), ("compare", "test.20260102-030405", "test.20260102-030405-2"),
    ],
)  # fmt: skip
def test_quick_commands_import_no_heavy_module(arguments, tmp_path):
    from support import a_stored_run

    for _ in range(2):
        a_stored_run(tmp_path / "runs", suite="device")
    (tmp_path / "step.py").write_text("import torch\n\ndef step():\n    pass\n")
    answer = subprocess.run(
        [sys.executable, "-c", LOOK, *arguments],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    said, _, loaded = answer.stderr.rpartition("LOADED")
    assert answer.returncode == (2 if arguments == ("run", "nothing") else 0), said
    assert set(loaded.split()) & HEAVY == set()
    assert "rigdyno" in loaded
    if arguments[0] in ("list", "--version"):
        assert "numpy" not in loaded.split()
