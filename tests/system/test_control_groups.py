"""Limits of a container: memory that runs out, and a processor that is throttled."""

import subprocess
from pathlib import Path

import pytest
from containers import control_group, inside, is_version_1

import rigdyno as package
from driving import COMMAND, PATIENCE_SECONDS, environment, only_run, records, until
from rigdyno.schema.samples import read_rows

HOARD = "kept = []\n\n\ndef step():\n    kept.append(bytearray(b'x') * 100_000_000)\n"
LIMIT_BYTES = 900_000_000


@pytest.fixture
def little_memory():
    with control_group("memory") as group:
        name = "memory.limit_in_bytes" if is_version_1(group) else "memory.max"
        (group / name).write_text(str(LIMIT_BYTES))
        yield group


@pytest.fixture
def slow_processor():
    """Yield a control group, and a function that limits it to a quarter of a core."""
    with control_group("cpu") as group:

        def throttle() -> None:
            if is_version_1(group):
                (group / "cpu.cfs_quota_us").write_text("25000")
            else:
                (group / "cpu.max").write_text("25000 100000")

        yield group, throttle


def run_inside(group: Path, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        inside(group, *COMMAND, *arguments),
        cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def seconds_stepped(store: Path) -> float:
    files = list(store.glob("*/cells/*/rank0/steps.rows"))
    if not files or len(rows := read_rows(files[0])[1]) == 0:
        return 0.0
    return float(rows["end_ns"][-1] - rows["start_ns"][0]) / 1e9


def test_a_worker_killed_by_the_kernel_is_out_of_memory(tmp_path, little_memory):
    (tmp_path / "hoard.py").write_text(HOARD)
    process = run_inside(little_memory, "run", "hoard.py:step", "--budget", "10m", cwd=tmp_path)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1, err
    (record,) = records(only_run(tmp_path))
    assert record.outcome.kind == "out_of_memory"
    assert record.outcome.message == "killed by the kernel: the memory ran out"
    assert "the memory ran out" in " ".join(out.split())  # however the note is wrapped


def test_a_workload_that_exceeds_the_group_is_refused_before_it_runs(tmp_path, little_memory):
    process = run_inside(little_memory, "run", "tensor_add", "--set", "size=12288", cwd=tmp_path)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert "would fit" in err
    assert not (tmp_path / "runs").exists()


def test_a_processor_that_is_throttled_halfway_is_recognised(tmp_path, slow_processor):
    """The steps alone show it, without a temperature or a clock to read.

    Other load can't hide it: the control group has priority over all other processes, so its rate before the limit is
    that of nearly a whole core, and after it at most that of a quarter. Other load may add a reason of its own.
    """
    group, throttle = slow_processor
    command = ("run", "tensor_add", "--set", "size=512", "--threads", "1", "--soak", "20s")
    process = run_inside(group, *command, cwd=tmp_path)
    until(lambda: seconds_stepped(tmp_path / "runs") > 5, "a quarter of the soak was over")
    throttle()
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    (measurement,) = package.load(only_run(tmp_path).path).measurements
    assert measurement.soak.fell
    assert "No throttling" not in out
    reasons = {reason.code for reason in measurement.validity.reasons}
    assert measurement.soak.throttled or "other_tenants" in reasons
    assert measurement.status != "VALID"
