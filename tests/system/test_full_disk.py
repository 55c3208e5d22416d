"""A disk that is full or read-only is one line of error, and finished cells stay readable."""

from driving import cell_folders, here, none_left, records, rigdyno
from rigdyno.schema.record import Completed
from rigdyno.store.folder import run_folders

# The second process that steps fills the disk, so that it is full at the same point however long the steps take.
STEP = """\
import os, time
from pathlib import Path

here, small = Path(__file__).parent, Path({small!r})
stepped = False


def step():
    global stepped
    if not stepped:
        stepped = True
        (here / f"{{os.getpid()}}.stepped").touch()
        if len(list(here.glob("*.stepped"))) == 2:
            fill()
    time.sleep(0.002)


def fill():
    with (small / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return
"""


def test_a_disk_that_fills_up_during_a_run_keeps_the_finished_cells(tmp_path, disk):
    small = disk("size=1m,nr_inodes=1000")
    (tmp_path / "train.py").write_text(STEP.format(small=str(small)))
    answer = rigdyno("run", "train.py:step", "--repeat", "3", "--steps", "400", "--out", str(small), cwd=tmp_path)
    assert answer.returncode in (1, 2)
    assert "Traceback" not in answer.stderr
    last = answer.stderr.splitlines()[-1]
    assert "the disk is full" in last
    assert "--out" in last
    (run,) = run_folders(small)
    finished = [record for record in records(run) if isinstance(record.outcome, Completed)]
    assert len(finished) == 1
    for cell in cell_folders(small):
        none_left(cell)
    for verb in ("report", "show"):
        stored = here(verb, "--out", str(small), cwd=tmp_path)
        assert stored.returncode == 0, stored.stderr
        assert "step/s" in stored.stdout
        assert "cells are not finished" in stored.stdout


def test_a_disk_that_is_full_from_the_beginning_is_one_line(tmp_path, disk):
    small = disk("size=16k")
    (small / "ballast").write_bytes(b"x" * 16384)
    answer = rigdyno("run", "tensor_add", "--set", "size=64", "--steps", "1", "--out", str(small), cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "the disk is full; free some space or choose another folder with --out" in answer.stderr
    assert here("leaderboard", "device", "--out", str(small), cwd=tmp_path).returncode == 0


def test_a_read_only_disk_is_one_line(tmp_path, disk):
    locked = disk("size=1m,ro")
    answer = rigdyno("run", "tensor_add", "--set", "size=64", "--steps", "1", "--out", f"{locked}/runs", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "the disk is read-only; choose another folder with --out" in answer.stderr
    assert here("leaderboard", "device", "--out", str(locked), cwd=tmp_path).returncode == 0
    assert here("clean", "--out", str(locked), cwd=tmp_path).stdout == "nothing to delete\n"
