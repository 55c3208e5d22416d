"""Free memory in containers and jobs of both versions of cgroups, on file trees made by hand."""

import pytest

from rigdyno.base.free_memory import free_bytes

GB = 10**9


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 100 * GB}))

    def put(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")

    put.root = tmp_path
    return put


def group_of_version_2(put, folder, limit, used, cache=0):
    put(f"sys/fs/cgroup/{folder}/memory.max", limit)
    put(f"sys/fs/cgroup/{folder}/memory.current", used)
    put(f"sys/fs/cgroup/{folder}/memory.stat", f"anon {used}\ninactive_file {cache}")


def test_without_groups_the_free_memory_of_the_machine_counts(machine):
    assert free_bytes(machine.root) == 100 * GB


def test_a_container_sees_its_own_group_at_the_top(machine):
    machine("proc/self/cgroup", "0::/")
    group_of_version_2(machine, ".", 8 * GB, 3 * GB, cache=2 * GB)
    assert free_bytes(machine.root) == 7 * GB


def test_every_group_above_a_job_limits_it(machine):
    machine("proc/self/cgroup", "0::/slurm/job_7/step_0")
    group_of_version_2(machine, "slurm/job_7/step_0", "max", 1 * GB)
    group_of_version_2(machine, "slurm/job_7", 16 * GB, 4 * GB)
    group_of_version_2(machine, "slurm", 64 * GB, 30 * GB)
    assert free_bytes(machine.root) == 12 * GB


def test_groups_of_version_1_limit_the_memory(machine):
    machine("proc/self/cgroup", "4:cpu,memory:/docker/abc\n1:name=systemd:/\n0::/")
    for folder, limit in (("docker/abc", 6 * GB), (".", 2**63 - 4096)):
        machine(f"sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes", limit)
        machine(f"sys/fs/cgroup/memory/{folder}/memory.usage_in_bytes", 5 * GB)
        machine(f"sys/fs/cgroup/memory/{folder}/memory.stat", f"total_inactive_file {GB}")
    assert free_bytes(machine.root) == 2 * GB


@pytest.mark.parametrize("line", ["0::/../../somewhere/else", "0::/gone"])
def test_an_invisible_group_falls_back_to_the_top(line, machine):
    machine("proc/self/cgroup", line)
    group_of_version_2(machine, ".", 8 * GB, 3 * GB)
    assert free_bytes(machine.root) == 5 * GB


def test_a_group_above_its_limit_has_no_free_memory(machine):
    machine("proc/self/cgroup", "0::/")
    group_of_version_2(machine, ".", 1 * GB, 3 * GB)
    assert free_bytes(machine.root) == 0


def test_this_machine_has_free_memory():
    assert free_bytes() > 0
