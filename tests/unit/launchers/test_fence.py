"""The fence around a cell: real processes that take memory, and a kernel, a limit or a look that ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rigdyno.launchers import _fence
from rigdyno.launchers._fence import ControlGroup, Fence
from rigdyno.processes import oom_kills, tree_memory_bytes, tree_of

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
    """A process that takes so much when it is told to, and holds it until it is told again."""
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


def told(process):
    """To take it; what it says, or nothing if it was ended."""
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.fixture
def no_control_group(monkeypatch):
    monkeypatch.setattr(ControlGroup, "around", classmethod(lambda cls, pid, limit: None))


def fenced(process, allowed):
    fence = Fence(process.pid, allowed)
    if fence.group is None:
        pytest.skip("can't make a control group here")
    return fence


class TestControlGroup:
    def test_the_kernel_ends_what_takes_more_and_that_is_known(self, started):
        process = started(300 * MB)
        fence = fenced(process, 100 * MB)
        assert told(process) == ""
        assert process.wait() == -signal.SIGKILL
        assert fence.close() is True
        assert not fence.group.folder.exists()

    def test_what_stays_below_goes_on(self, started):
        process = started(50 * MB)
        fence = fenced(process, 100 * MB)
        assert told(process) == "holds"
        fence.look()
        assert 50 * MB < fence.peak_bytes < 150 * MB
        process.communicate("\n")
        assert fence.close() is False
        assert fence.overrun is None
        assert not fence.group.folder.exists()

    def test_children_are_inside_too(self, started):
        process = started(300 * MB, IN_A_CHILD)
        fence = fenced(process, 100 * MB)
        process.communicate("\n")
        assert process.returncode != 0
        assert fence.close() is True

    def test_groups_that_a_killed_run_left_are_removed(self, started):
        process = started(1 * MB)
        fence = fenced(process, 100 * MB)
        gone = fence.group.folder.with_name("rigdyno-4999999-1")  # of no process
        gone.mkdir()
        other = Fence(started(1 * MB).pid, 100 * MB)
        assert not gone.exists()
        assert fence.group.folder.exists()
        process.kill()
        process.wait()
        fence.close()
        other._end("over")
        other.close()

    def test_where_none_can_be_made_there_is_none(self, tmp_path):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("0::/user.slice/mine\n")
        assert ControlGroup.around(1, 100, tmp_path) is None
        (tmp_path / "sys/fs/cgroup/user.slice/mine").mkdir(parents=True)
        read_only = tmp_path / "sys/fs/cgroup/user.slice/mine/cgroup.subtree_control"
        read_only.mkdir()  # can't be written, as where other processes are in the group
        assert ControlGroup.around(1, 100, tmp_path) is None
        assert list(read_only.parent.iterdir()) == [read_only]

    def test_version_2_is_told_the_limit_and_to_do_without_swap(self, tmp_path, monkeypatch):
        """Its files, in a folder that stands for the kernel's."""
        own = tmp_path / "sys/fs/cgroup/mine"
        own.mkdir(parents=True)
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("0::/mine\n")
        group = ControlGroup.around(42, 1000, tmp_path)
        written = {path.name: path.read_text() for path in group.folder.iterdir()}
        assert written == {"memory.max": "1000", "memory.swap.max": "0", "memory.oom.group": "1", "cgroup.procs": "42"}
        assert (own / "cgroup.subtree_control").read_text() == "+memory"
        (group.folder / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
        assert group.close() is True


class TestWithoutControlGroup:
    def test_a_limit_makes_it_an_error_that_can_be_caught(self, started, no_control_group, monkeypatch):
        monkeypatch.setattr(_fence, "UNTOUCHED_BYTES", 50 * MB)
        process = started(400 * MB)
        Fence(process.pid, 100 * MB)
        assert told(process) == "refused"
        assert process.wait() == 7

    def test_a_look_ends_the_whole_tree(self, started, no_control_group):
        """What the limit allows each of them, and all together not."""
        process = started(300 * MB, IN_A_CHILD)
        fence = Fence(process.pid, 100 * MB)
        assert told(process) == "holds"
        below = [psutil.Process(pid) for pid in tree_of(process.pid)]
        assert len(below) == 2
        fence.look()
        assert process.wait() == -signal.SIGKILL
        assert fence.overrun.startswith("ended at 3")
        assert psutil.wait_procs(below, timeout=60)[1] == []
        assert fence.close() is False

    def test_the_machine_keeps_its_reserve(self, started, monkeypatch):
        process = started(1 * MB)
        fence = Fence(process.pid, None)  # a card's memory is what is scarce
        monkeypatch.setattr(_fence, "RESERVE", 1.0)
        fence.look()
        assert process.wait() == -signal.SIGKILL
        assert fence.overrun.startswith("ended before the machine ran out")


def test_the_peak_of_a_tree_is_that_of_all_who_live(started):
    process = started(100 * MB, IN_A_CHILD)
    assert told(process) == "holds"
    alone = psutil.Process(process.pid).memory_info().rss
    assert tree_memory_bytes(process.pid, peak=True) > alone + 100 * MB
    process.communicate("\n")
    assert tree_memory_bytes(process.pid, peak=True) is None
    assert Path(f"/proc/{process.pid}").exists() is False


class TestWhomTheKernelEnded:
    @pytest.fixture
    def machine(self, tmp_path):
        def write(path, text):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

        write("proc/vmstat", "nr_free_pages 5\noom_kill 9\n")
        return tmp_path, write

    def test_in_its_own_group_of_version_2(self, machine):
        root, write = machine
        write("proc/self/cgroup", "0::/user.slice/mine\n")
        write("sys/fs/cgroup/user.slice/mine/memory.events", "oom 3\noom_kill 2\n")
        write("sys/fs/cgroup/user.slice/memory.events", "oom 8\noom_kill 7\n")
        assert oom_kills(root) == 2

    def test_in_its_own_group_of_version_1(self, machine):
        root, write = machine
        write("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n")
        write("sys/fs/cgroup/memory/docker/abc/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
        assert oom_kills(root) == 1

    def test_on_the_whole_machine_where_groups_do_not_count(self, machine):
        root, write = machine
        write("proc/self/cgroup", "0::/\n")
        assert oom_kills(root) == 9

    def test_nowhere(self, tmp_path):
        assert oom_kills(tmp_path) == 0
