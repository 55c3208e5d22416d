"""Tests of a cell's memory limit with real processes, ended by the kernel, an rlimit or a check."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rigdyno.base.linux import count_oom_kills, process_tree, tree_memory_bytes
from rigdyno.launchers.nodes import local
from rigdyno.launchers.nodes.local import ControlGroup, MemoryLimit

MB = 10**6
TAKES = """
import sys
sys.stdin.readline()
size = int(sys.argv[1])
try:
    held = bytearray(size)
    held[::4096] = b"x" * len(held[::4096])
except MemoryError:
    print("refused", flush=True)
    sys.exit(7)
print("holds", flush=True)
sys.stdin.readline()
"""
IN_A_CHILD = f"""
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-c", {TAKES!r}, sys.argv[1]]).returncode)
"""


@pytest.fixture
def started():
    """Return a function that starts a process, which allocates memory when asked, and keeps it until asked again."""
    running = []

    def start(size, code=TAKES):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def ask(process):
    """Ask the process to allocate; return its answer, or nothing if it was ended."""
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.fixture
def no_control_group(monkeypatch):
    monkeypatch.setattr(ControlGroup, "create", classmethod(lambda cls, pid, limit_bytes: None))


def limited(process, allowed):
    limit = MemoryLimit(process.pid, allowed)
    if limit.group is None:
        pytest.skip("can't make a control group here")
    return limit


class TestControlGroup:
    def test_the_kernel_kills_a_process_above_the_limit(self, started):
        process = started(300 * MB)
        limit = limited(process, 100 * MB)
        assert ask(process) == ""
        assert process.wait() == -signal.SIGKILL
        assert limit.close() is True
        assert not limit.group.folder.exists()

    def test_a_process_below_the_limit_continues(self, started):
        process = started(50 * MB)
        limit = limited(process, 100 * MB)
        assert ask(process) == "holds"
        limit.check()
        assert 50 * MB < limit.peak_bytes < 150 * MB
        process.communicate("\n")
        assert limit.close() is False
        assert limit.overrun is None
        assert not limit.group.folder.exists()

    def test_children_are_limited_too(self, started):
        process = started(300 * MB, IN_A_CHILD)
        limit = limited(process, 100 * MB)
        process.communicate("\n")
        assert process.returncode != 0
        assert limit.close() is True

    def test_groups_of_a_killed_run_are_removed(self, started):
        process = started(1 * MB)
        limit = limited(process, 100 * MB)
        gone = limit.group.folder.with_name("rigdyno-4999999-1")  # of no process
        gone.mkdir()
        other = MemoryLimit(started(1 * MB).pid, 100 * MB)
        assert not gone.exists()
        assert limit.group.folder.exists()
        process.kill()
        process.wait()
        limit.close()
        other._kill("over")
        other.close()

    def test_no_group_is_made_without_the_rights_for_it(self, tmp_path):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("0::/user.slice/mine\n")
        assert ControlGroup.create(1, 100, tmp_path) is None
        (tmp_path / "sys/fs/cgroup/user.slice/mine").mkdir(parents=True)
        read_only = tmp_path / "sys/fs/cgroup/user.slice/mine/cgroup.subtree_control"
        read_only.mkdir()  # can't be written, as where other processes are in the group
        assert ControlGroup.create(1, 100, tmp_path) is None
        assert list(read_only.parent.iterdir()) == [read_only]

    def test_version_2_gets_the_limit_and_no_swap(self, tmp_path, monkeypatch):
        """The files are in a folder instead of the kernel's file system."""
        own = tmp_path / "sys/fs/cgroup/mine"
        own.mkdir(parents=True)
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("0::/mine\n")
        group = ControlGroup.create(42, 1000, tmp_path)
        written = {path.name: path.read_text() for path in group.folder.iterdir()}
        assert written == {"memory.max": "1000", "memory.swap.max": "0", "memory.oom.group": "1", "cgroup.procs": "42"}
        assert (own / "cgroup.subtree_control").read_text() == "+memory"
        (group.folder / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
        assert group.close() is True


class TestWithoutControlGroup:
    def test_rlimit_makes_the_allocation_fail(self, started, no_control_group, monkeypatch):
        monkeypatch.setattr(local, "UNTOUCHED_BYTES", 50 * MB)
        process = started(400 * MB)
        MemoryLimit(process.pid, 100 * MB)
        assert ask(process) == "refused"
        assert process.wait() == 7

    def test_a_check_ends_the_whole_tree(self, started, no_control_group):
        """Each process is within its rlimit, but all together exceed the limit."""
        process = started(300 * MB, IN_A_CHILD)
        limit = MemoryLimit(process.pid, 100 * MB)
        assert ask(process) == "holds"
        below = [psutil.Process(pid) for pid in process_tree([process.pid])]
        assert len(below) == 2
        limit.check()
        assert process.wait() == -signal.SIGKILL
        assert limit.overrun.startswith("ended at 3")
        assert psutil.wait_procs(below, timeout=60)[1] == []
        assert limit.close() is False

    def test_the_cell_ends_before_the_machine_runs_out(self, started, monkeypatch):
        process = started(1 * MB)
        limit = MemoryLimit(process.pid, None)  # a device's memory is the limit
        monkeypatch.setattr(local, "RESERVE", 1.0)
        limit.check()
        assert process.wait() == -signal.SIGKILL
        assert limit.overrun.startswith("ended before the machine ran out")


def test_the_peak_of_a_tree_sums_its_living_processes(started):
    process = started(100 * MB, IN_A_CHILD)
    assert ask(process) == "holds"
    alone = psutil.Process(process.pid).memory_info().rss
    assert tree_memory_bytes(process.pid, peak=True) > alone + 100 * MB
    process.communicate("\n")
    assert tree_memory_bytes(process.pid, peak=True) is None
    assert Path(f"/proc/{process.pid}").exists() is False


class TestOomKills:
    @pytest.fixture
    def machine(self, tmp_path):
        def write(path, text):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

        write("proc/vmstat", "nr_free_pages 5\noom_kill 9\n")
        return tmp_path, write

    def test_kills_are_counted_in_the_own_group_of_version_2(self, machine):
        root, write = machine
        write("proc/self/cgroup", "0::/user.slice/mine\n")
        write("sys/fs/cgroup/user.slice/mine/memory.events", "oom 3\noom_kill 2\n")
        write("sys/fs/cgroup/user.slice/memory.events", "oom 8\noom_kill 7\n")
        assert count_oom_kills(root) == 2

    def test_kills_are_counted_in_the_own_group_of_version_1(self, machine):
        root, write = machine
        write("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n")
        write("sys/fs/cgroup/memory/docker/abc/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
        assert count_oom_kills(root) == 1

    def test_kills_are_counted_on_the_machine_without_group_counts(self, machine):
        root, write = machine
        write("proc/self/cgroup", "0::/\n")
        assert count_oom_kills(root) == 9

    def test_kills_are_zero_without_any_count(self, tmp_path):
        assert count_oom_kills(tmp_path) == 0
