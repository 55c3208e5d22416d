"""Disks that are full or read-only: one line, and what was finished stays readable."""

from driving import cell_folders, none_left, records, rigdyno
from rigdyno.schema.record import Completed
from rigdyno.store.folder import run_folders

STEP = "import time\n\n\ndef step():\n    time.sleep(0.002)\n"


def test_full_halfway_through_a_run(tmp_path, disk):
    small = disk("size=160k,nr_inodes=1000")  # about 90 kB a cell
    (tmp_path / "train.py").write_text(STEP)
    answer = rigdyno("run", "train.py:step", "--repeat", "4", "--steps", "2600", "--out", str(small), cwd=tmp_path)
    assert answer.returncode in (1, 2)
    assert "Traceback" not in answer.stderr
    last = answer.stderr.splitlines()[-1]
    assert "the disk is full" in last
    assert "--out" in last
    (run,) = run_folders(small)
    finished = [record for record in records(run) if isinstance(record.outcome, Completed)]
    assert 1 <= len(finished) < 4
    for cell in cell_folders(small):
        none_left(cell)
    for verb in ("report", "show"):
        stored = rigdyno(verb, "--out", str(small), cwd=tmp_path)
        assert stored.returncode == 0, stored.stderr
        assert "step/s" in stored.stdout
        assert "cells are not finished" in stored.stdout


def test_full_from_the_beginning(tmp_path, disk):
    small = disk("size=16k")
    (small / "ballast").write_bytes(b"x" * 16384)
    answer = rigdyno("run", "tensor_add", "--set", "size=64", "--budget", "5s", "--out", str(small), cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "the disk is full; free some space or choose another folder with --out" in answer.stderr
    assert rigdyno("leaderboard", "device", "--out", str(small), cwd=tmp_path).returncode == 0


def test_read_only(tmp_path, disk):
    locked = disk("size=1m,ro")
    answer = rigdyno("run", "tensor_add", "--set", "size=64", "--budget", "5s", "--out", f"{locked}/runs", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "the disk is read-only; choose another folder with --out" in answer.stderr
    assert rigdyno("leaderboard", "device", "--out", str(locked), cwd=tmp_path).returncode == 0
    assert rigdyno("clean", "--out", str(locked), cwd=tmp_path).stdout == "nothing to delete\n"
