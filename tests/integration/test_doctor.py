"""Test `rigdyno doctor` on this machine, with real child processes."""

import io
import json

import msgspec
from click.testing import CliRunner
from rich.console import Console

from numbers_in_views import reads_as_a_number
from rigdyno.commands.doctor import command
from rigdyno.features.doctor import diagnose
from rigdyno.features.doctor.diagnose import Diagnosis
from rigdyno.features.doctor.report import draw
from rigdyno.rig import traps

SECTIONS = ("The machine", "Limits of the container", "Software", "Meters and noise detectors", "Noise now", "Traps")


def test_quick_prints_all_sections_as_plain_text():
    result = CliRunner().invoke(command, ["--quick"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert [line for line in result.output.splitlines() if line in SECTIONS] == list(SECTIONS)
    assert all(len(line) <= 80 and line == line.rstrip() for line in result.output.splitlines())
    assert "\x1b" not in result.output


def test_json_reports_a_trap_that_kills_its_process(monkeypatch):
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr(
        diagnose, "TRAPS", {"deadly": lambda: traps.try_snippet("deadly", "an illegal instruction", dies)[0]}
    )
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    read = [finding for finding in found["noise"] if finding["status"] != "unknown"]
    assert all(isinstance(finding["figure"]["value"], int | float) for finding in read)
    rig = found["system"]
    texts = [value for value in (*rig.values(), *rig["cpu"].values()) if isinstance(value, str)]
    assert not any(map(reads_as_a_number, texts))
    (trap,) = found["traps"]
    assert trap["status"] == "trap"
    assert "SIGILL" in trap["sentence"]
    console = Console(width=80, record=True, file=io.StringIO())
    draw(msgspec.json.decode(result.stdout, type=Diagnosis), console)
    assert "trap: an illegal instruction dies with SIGILL" in console.export_text()
