"""Several rigdyno on one store at once."""

from driving import cell_folders, ended, only_run, records, rigdyno, started, steps_began, until
from rigdyno.schema.record import Completed
from rigdyno.store.folder import RunFolder, run_folders

SMALL = ("run", "tensor_add", "--set", "size=128", "--set", "variant=as_published", "--budget", "5s")


def test_two_at_the_same_time(tmp_path):
    both = [started(*SMALL, cwd=tmp_path) for _ in range(2)]
    boards = [started("leaderboard", "device", cwd=tmp_path) for _ in range(2)]
    assert [ended(process)[0] for process in (*boards, *both)] == [0, 0, 0, 0]
    runs = run_folders(tmp_path / "runs")
    assert len(runs) == 2
    for run in runs:
        assert [type(record.outcome) for record in records(run)] == [Completed]
    assert rigdyno("leaderboard", "device", cwd=tmp_path).returncode == 0
    answer = rigdyno("report", *(run.name for run in runs), cwd=tmp_path)
    assert answer.returncode == 0
    assert answer.stdout.count("Saved in") == 2


def test_a_run_that_is_under_way_is_left_alone(tmp_path):
    (tmp_path / "train.py").write_text("import time\n\ndef step():\n    time.sleep(0.002)\n")
    process = started("run", "train.py:step", "--budget", "13s", cwd=tmp_path)
    until(lambda: steps_began(tmp_path / "runs"), "the worker was stepping")
    run: RunFolder = only_run(tmp_path)
    resumed = rigdyno("run", "--resume", str(run.path), cwd=tmp_path)
    assert resumed.returncode == 2
    assert resumed.stderr.strip().splitlines()[-1] == f"rigdyno: {run.path} is being run by another rigdyno"
    assert "it is still running" in " ".join(rigdyno("report", cwd=tmp_path).stdout.split())
    cleaned = rigdyno("clean", "--all", "--yes", cwd=tmp_path)
    assert cleaned.stdout == "nothing to delete\n"
    code, _, err = ended(process)
    assert code == 0, err
    assert len(cell_folders(tmp_path / "runs")) == 1
    assert [type(record.outcome) for record in records(run)] == [Completed]
