"""Test commands on a run that another rigdyno is executing."""

import signal

from driving import (
    cell_folders,
    ended,
    interrupt,
    none_left,
    only_run,
    records,
    rigdyno,
    started,
    steps_began,
    until,
)
from rigdyno.store.folder import RunFolder


def test_an_active_run_is_left_unchanged(tmp_path):
    (tmp_path / "train.py").write_text("import time\n\ndef step():\n    time.sleep(0.002)\n")
    process = started("run", "train.py:step", "--budget", "10m", cwd=tmp_path)
    until(lambda: steps_began(tmp_path / "runs"), "the worker was stepping")
    run: RunFolder = only_run(tmp_path)
    resumed = rigdyno("run", "--resume", str(run.path), cwd=tmp_path)
    assert resumed.returncode == 2
    assert resumed.stderr.strip().splitlines()[-1] == f"rigdyno: {run.path} is being run by another rigdyno"
    assert "it is still running" in " ".join(rigdyno("report", cwd=tmp_path).stdout.split())
    cleaned = rigdyno("clean", "--all", "--yes", cwd=tmp_path)
    assert cleaned.stdout == "nothing to delete\n"
    interrupt(process, signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130, err
    (cell,) = cell_folders(tmp_path / "runs")
    assert records(run) == []
    none_left(cell)
