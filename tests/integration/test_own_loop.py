"""Test `rigdyno.measure` inside a user's training script."""

import os
import signal
import subprocess
import sys

from driving import PATIENCE_SECONDS, environment, none_left, only_run, records, rigdyno, steps_began, until
from rigdyno.schema.record import Completed, Failed
from rigdyno.schema.samples import read_rows

TRAINING = """
import sys
import torch
import rigdyno

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(50)] * int(sys.argv[1])

with rigdyno.measure("my training", unit="image") as meter:
    for number, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        meter.step(items=len(images))
        if number == int(sys.argv[2]):
            raise RuntimeError("the data ended")
print("the script went on")
"""


def write_script(folder, *arguments: int) -> list[str]:
    (folder / "train.py").write_text(TRAINING)
    return [sys.executable, "train.py", *map(str, arguments)]


def run_script(folder, *arguments: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        write_script(folder, *arguments), cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def test_a_training_loop_is_measured_and_recorded(tmp_path):
    answer = run_script(tmp_path, 10, -1)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "the script went on\n"
    assert answer.stderr.startswith("rigdyno: my training: ")
    assert answer.stderr.count("\n") == 1
    (record,) = records(only_run(tmp_path))
    assert isinstance(record.outcome, Completed)
    assert record.facts.unit == "image"
    assert record.environment.framework["torch"]
    assert record.exit_codes == {"node0": 0}
    assert "node0/telemetry.rows" in record.files
    for verb in ("report", "show"):
        shown = rigdyno(verb, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert "image/s" in shown.stdout
        assert "my training" in shown.stdout


def test_a_loop_shorter_than_the_start_of_the_sampler_records_the_meters(tmp_path):
    script = "import rigdyno\nwith rigdyno.measure('short', quiet=True) as meter:\n    meter.step()\n"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    run = only_run(tmp_path)
    (record,) = records(run)
    assert record.exit_codes == {"node0": 0}
    header, _ = read_rows(run.path / "cells" / record.cell / "node0" / "telemetry.rows")
    assert "steal_share" in {name for name, _ in header.fields}


def test_an_exception_is_recorded_and_raised_again(tmp_path):
    answer = run_script(tmp_path, 1, 20)
    assert answer.returncode == 1
    assert answer.stderr.rstrip().endswith("RuntimeError: the data ended")
    (record,) = records(only_run(tmp_path))
    assert record.outcome == Failed(kind="exception", phase="measure", message="RuntimeError: the data ended")
    assert "the data ended" in rigdyno("report", cwd=tmp_path).stdout


def start_script(folder) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        write_script(folder, 1_000_000, -1), cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
    )
    until(lambda: steps_began(folder / "runs"), "the loop was under way")
    return process


def test_ctrl_c_is_recorded(tmp_path):
    process = start_script(tmp_path)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert "KeyboardInterrupt" in err
    (record,) = records(only_run(tmp_path))
    assert record.outcome == Failed(kind="interrupted", phase="measure", message="interrupted by Ctrl-C")


def test_a_killed_script_leaves_its_samples_and_no_sampler(tmp_path):
    process = start_script(tmp_path)
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    run = only_run(tmp_path)
    (cell,) = (run.path / "cells").iterdir()
    none_left(cell)
    rows = (cell / "rank0" / "steps.rows").read_bytes()
    report = rigdyno("report", cwd=tmp_path)
    assert report.returncode == 0
    assert "the script that ran it must run again" in " ".join(report.stdout.split())
    resumed = rigdyno("run", "--resume", str(run.path), cwd=tmp_path)
    assert resumed.returncode == 2
    assert resumed.stderr == "rigdyno: 'my training' was measured inside a script of yours: run that script again\n"
    assert (cell / "rank0" / "steps.rows").read_bytes() == rows


SHORT = """
import resource, sys, time
import rigdyno

with rigdyno.measure("short", quiet=True) as meter:
    for number in range(40):
        time.sleep(0.05)
        meter.step()
        if number == 20 and sys.argv[1] == "full":
            # From here, writing fails as on a full disk.
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
        if number == 30 and sys.argv[1] == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if number == 30 and sys.argv[1] == "leave":
            sys.exit(0)
print("the script went on")
"""


def run_short(folder, how):
    (folder / "short.py").write_text(SHORT)
    command = [sys.executable, "short.py", how]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def test_exit_with_code_0_is_no_failure(tmp_path):
    answer = run_short(tmp_path, "leave")
    assert answer.returncode == 0, answer.stderr
    (record,) = records(only_run(tmp_path))
    assert isinstance(record.outcome, Completed)


def test_a_full_disk_ends_the_recording_and_not_the_training(tmp_path):
    answer = run_short(tmp_path, "full")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "the script went on\n"
    assert answer.stderr.count("steps are no longer recorded") == 1
    (record,) = records(only_run(tmp_path))
    assert isinstance(record.outcome, Failed)
    none_left(only_run(tmp_path).path / "cells" / "01-short")
