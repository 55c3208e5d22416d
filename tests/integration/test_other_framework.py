"""Test a second framework in a separate package, which consists of its port and its workloads."""

import subprocess
import sys
from pathlib import Path

import pytest

from driving import environment, only_run, records, rigdyno, said_in_one_line
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import Completed, DeviceMemory, Failed
from rigdyno.schema.samples import read_rows

PACKAGE = str(Path(__file__).parent / "other_framework")


def run(folder, *arguments):
    return rigdyno("run", *arguments, cwd=folder, PYTHONPATH=PACKAGE)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the only record, and the rows of its steps."""
    folder = tmp_path_factory.mktemp("made_up")
    answer = run(folder, "made_up_steps", "--device", "dream", "--threads", "3", "--seed", "11", "--steps", "20")
    assert answer.returncode == 0, answer.stderr
    (record,) = records(only_run(folder))
    cell = CellFolder(only_run(folder).path / "cells" / record.cell)
    return record, read_rows(cell.participant("rank0").rows("steps"))[1]


def test_the_framework_gets_seed_and_threads_and_reports_its_version(measured):
    record, _ = measured
    assert isinstance(record.outcome, Completed)
    assert record.facts.settled == {"seed": 11}
    assert record.environment.threads == 3
    assert record.environment.framework == {"made_up": "7.1"}


def test_the_device_is_found_and_waited_for(measured):
    """A row can't be shorter than the work that the device got for it."""
    record, rows = measured
    assert [card.kind for card in record.system.accelerators] == ["dream"]
    assert record.spec.device == "dream"
    assert len(rows) > 0
    assert all(row["end_ns"] - row["start_ns"] >= row["steps"] * 15_000_000 for row in rows)


def test_device_memory_is_the_peak_of_the_steps(measured):
    record, _ = measured
    assert record.device_memory == DeviceMemory(peak_bytes=1500, limit_bytes=5000)


def test_an_out_of_memory_error_of_the_framework_is_recognised(tmp_path):
    run(tmp_path, "made_up_steps", "--device", "dream", "--set", "fills_up=true", "--steps", "1")
    (record,) = records(only_run(tmp_path))
    assert isinstance(record.outcome, Failed)
    assert record.outcome.kind == "out_of_memory"


def test_plain_rejects_a_training_of_another_framework(tmp_path):
    answer = run(tmp_path, "made_up_training")
    assert answer.returncode == 2
    said_in_one_line(
        (answer.stdout, answer.stderr),
        "made_up_training: the update 'plain' is for torch and tensorflow, and",
        tmp_path,
    )
    assert "no update for made_up is installed" in answer.stderr


def test_ddp_rejects_ranks_of_another_framework(tmp_path):
    answer = run(tmp_path, "made_up_steps", "--ranks", "2")
    assert answer.returncode == 2
    words = "the arrangement 'ddp' is for torch, and this workload is for made_up; try --arrangement single"
    said_in_one_line((answer.stdout, answer.stderr), words, tmp_path)


def test_the_framework_is_listed(tmp_path):
    answer = rigdyno("list", cwd=tmp_path, PYTHONPATH=PACKAGE)
    assert "made_up A framework of a test" in " ".join(answer.stdout.split())


OWN_LOOP = """
import made_up, rigdyno

made_up.allocate(10)
with rigdyno.measure("mine", quiet=True) as meter:
    for _ in range(20):
        made_up.launch(0.02)
        meter.step()
"""


def test_a_measured_loop_waits_for_the_device(tmp_path):
    (tmp_path / "train.py").write_text(OWN_LOOP)
    subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment(PYTHONPATH=PACKAGE), check=True, capture_output=True
    )
    (record,) = records(only_run(tmp_path))
    assert record.environment.framework == {"made_up": "7.1"}
    assert record.spec.device == "dream"
    assert record.device_memory == DeviceMemory(peak_bytes=10, limit_bytes=5000)
    cell = CellFolder(only_run(tmp_path).path / "cells" / record.cell)
    _, rows = read_rows(cell.participant("rank0").rows("steps"))
    assert all(row["end_ns"] - row["start_ns"] >= row["steps"] * 20_000_000 for row in rows)


def test_fit_finds_the_largest_batch_within_the_allocator_limit(tmp_path):
    """The device has 5000 bytes and a limit of 3000: 100 batches of 20 fit next to 1000 bytes that are always used."""
    what = ("made_up_batches", "--device", "dream", "--memory", "3000B", "--sizes", "2")
    answer = rigdyno("fit", *what, cwd=tmp_path, PYTHONPATH=PACKAGE)
    assert answer.returncode == 0, answer.stderr
    kept = records(only_run(tmp_path))
    tries = [record for record in kept if record.attempt_of is not None]
    assert len(tries) <= 8
    assert {record.outcome.kind for record in tries if isinstance(record.outcome, Failed)} <= {"out_of_memory"}
    assert all(record.device_memory.peak_bytes <= 3000 for record in kept if isinstance(record.outcome, Completed))
    largest, half = (record.spec.options["batch"] for record in kept if record.attempt_of is None)
    assert 85 <= largest <= 94  # 100 minus the margin
    assert half == largest // 2
