"""Tests of the host probe on simulated /proc and /sys files."""

import math
import os
from pathlib import Path

import pytest

from rigdyno.probes.host import Host

SECOND = 10**9


class ManualClock:
    now = 0

    def now_ns(self):
        return self.now

    def sleep(self, seconds):
        self.now += int(seconds * SECOND)


class Machine:
    """A small Linux: two cores, one worker (pid 7) with a child (pid 9)."""

    def __init__(self, root):
        self.root = root
        self.write("proc/stat", "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 5\n")
        self.write("proc/meminfo", "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:   2000 kB\n")
        for resource in ("cpu", "memory", "io"):
            self.pressure(resource, 0)
        self.write("proc/7/task/7/children", "9 ")
        for pid, tid in ((7, 7), (7, 8), (9, 9)):
            self.thread(pid, tid, 0, 0, 0)
        self.process(7, faults=1, pages=100)
        self.process(9, faults=0, pages=10)

    def write(self, path, text):
        """Write in place: the probe keeps the file open."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def pressure(self, resource, total_us):
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\nfull avg10=0.00 total=1\n"
        self.write(f"proc/pressure/{resource}", text)

    def thread(self, pid, tid, ran_ns, waited_ns, switches):
        self.write(f"proc/{pid}/task/{tid}/schedstat", f"{ran_ns} {waited_ns} 3\n")
        status = f"Name:\tx\nvoluntary_ctxt_switches:\t99\nnonvoluntary_ctxt_switches:\t{switches}\n"
        self.write(f"proc/{pid}/task/{tid}/status", status)

    def process(self, pid, faults, pages, user_ticks=0, system_ticks=0, childrens_ticks=0, state="S"):
        fields = [state, *"12345678", "9", *(str(n) for n in range(100, 111)), str(pages), "0"]
        fields[9] = str(faults)
        fields[11:15] = str(user_ticks), str(system_ticks), str(childrens_ticks), "0"
        assert fields[21] == str(pages)
        self.write(f"proc/{pid}/stat", f"{pid} (a (b) c) {' '.join(fields)}\n")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def probe(machine, clock):
    host = Host(clock, machine.root)
    yield host
    host.close()


def read(probe, channels):
    return dict(zip([channel.name for channel in channels], probe.read(), strict=True))


def test_usage_is_a_share_of_each_core(machine, clock, probe):
    channels = probe.open(lambda: [7])
    clock.sleep(0.1)
    machine.write("proc/stat", "cpu 8 0 2 5 2 0 0 3\ncpu0 8 0 2 0 0 0 0 0 0 0\ncpu1 0 0 0 5 2 0 0 3 0 0\nintr 5\n")
    values = read(probe, channels)
    assert (values["cpu0"], values["cpu1"]) == (1.0, 0.0)
    assert values["steal_share"] == pytest.approx(3 / 20)
    assert values["memory_available_bytes"] == 2000 * 1024


def test_cores_that_the_worker_may_not_use_are_left_out(machine, clock):
    host = Host(clock, machine.root, usable_cores={1})
    assert [channel.name for channel in host.open(lambda: [7]) if channel.name.startswith("cpu")] == ["cpu1"]
    host.close()


def test_usage_without_a_tick_is_nan(machine, clock, probe):
    channels = probe.open(lambda: [7])
    clock.sleep(0.001)
    assert math.isnan(read(probe, channels)["cpu0"])


def test_run_queue_wait_is_summed_over_the_workers_threads(machine, clock, probe):
    machine.thread(7, 7, 5 * SECOND, 3 * SECOND, 0)  # what was before counts for nothing
    channels = probe.open(lambda: [7])
    clock.sleep(0.5)
    machine.thread(7, 7, 5 * SECOND + SECOND // 2, 3 * SECOND, 0)
    machine.thread(7, 8, SECOND // 4, SECOND // 4, 0)
    machine.thread(9, 9, 0, SECOND // 8, 0)
    values = read(probe, channels)
    assert values["run_queue_wait_share"] == pytest.approx(0.75)


def test_cpu_time_includes_threads_that_are_not_listed_yet(machine, clock, probe):
    """Threads are listed once a second; what a new one does before must not be attributed to other processes."""
    tick = SECOND // os.sysconf("SC_CLK_TCK")
    machine.process(7, faults=1, pages=100, user_ticks=500)  # what was before counts for nothing
    channels = probe.open(lambda: [7])
    clock.sleep(0.5)
    machine.thread(7, 10, SECOND // 2, 0, 0)
    machine.process(7, faults=1, pages=100, user_ticks=500 + SECOND // 2 // tick, system_ticks=SECOND // 4 // tick)
    assert read(probe, channels)["worker_cpu_share"] == pytest.approx(1.5)


def test_cpu_time_includes_children_between_two_listings(machine, clock, probe):
    """A data loader's processes come and go like this at every epoch."""
    tick = SECOND // os.sysconf("SC_CLK_TCK")
    channels = probe.open(lambda: [7])
    clock.sleep(0.5)
    machine.process(7, faults=1, pages=100, childrens_ticks=SECOND // 2 // tick)
    assert read(probe, channels)["worker_cpu_share"] == pytest.approx(1.0)


def test_cpu_time_of_an_ended_child_stays_counted(machine, clock, probe):
    tick = SECOND // os.sysconf("SC_CLK_TCK")
    machine.process(9, faults=0, pages=10, user_ticks=SECOND // tick)
    channels = probe.open(lambda: [7])
    clock.sleep(0.5)
    machine.process(9, faults=0, pages=10)  # as if gone: what it ran is now its parent's
    machine.process(7, faults=1, pages=100, childrens_ticks=SECOND // tick + SECOND // 4 // tick)
    assert read(probe, channels)["worker_cpu_share"] == pytest.approx(0.5)


def test_pressure_is_a_share_of_the_interval(machine, clock, probe):
    channels = probe.open(lambda: [7])
    clock.sleep(0.1)
    machine.pressure("cpu", 25_000)
    values = read(probe, channels)
    assert values["psi_cpu_some"] == pytest.approx(0.25)
    assert values["psi_memory_some"] == 0


def test_faults_memory_and_switches_cover_the_whole_tree(machine, clock, probe):
    channels = probe.open(lambda: [7])
    clock.sleep(2)
    machine.process(7, faults=5, pages=200)
    machine.thread(7, 8, 0, 0, switches=6)
    values = read(probe, channels)
    assert values["major_faults"] == 2.0
    assert values["worker_memory_bytes"] == 210 * os.sysconf("SC_PAGE_SIZE")
    assert values["involuntary_switches"] == 3.0


@pytest.mark.parametrize(("state", "share"), [("T", 1), ("t", 1), ("S", 0), ("R", 0)])
def test_a_stopped_worker_is_reported(machine, clock, probe, state, share):
    """It may be stopped by a signal or by a debugger, and it may be only the child."""
    channels = probe.open(lambda: [7])
    clock.sleep(0.1)
    machine.process(9, faults=0, pages=10, state=state)
    assert read(probe, channels)["worker_stopped_share"] == share


def test_throttling_by_the_workers_quota_is_reported(machine, clock, probe):
    machine.write("proc/7/cgroup", "0::/mine\n")
    machine.write("sys/fs/cgroup/mine/cpu.max", "50000 100000\n")
    machine.write("sys/fs/cgroup/mine/cpu.stat", "throttled_usec 0\n")
    channels = probe.open(lambda: [7])
    clock.sleep(0.1)
    machine.write("sys/fs/cgroup/mine/cpu.stat", "throttled_usec 40000\n")
    assert read(probe, channels)["throttled_share"] == pytest.approx(0.4)


def test_new_threads_are_seen_after_a_second(machine, clock, probe):
    channels = probe.open(lambda: [7])
    machine.thread(7, 12, 0, 4 * SECOND, 0)
    for _ in range(2):  # the first reading lists threads at once, the next a second later
        clock.sleep(1)
        values = read(probe, channels)
    assert values["run_queue_wait_share"] == 0
    clock.sleep(0.1)
    machine.thread(7, 12, 0, 4 * SECOND + SECOND // 10, 0)
    assert read(probe, channels)["run_queue_wait_share"] == pytest.approx(1)


def test_a_missing_worker_is_nan_and_not_zero(machine, clock, probe):
    channels = probe.open(lambda: [4711])
    clock.sleep(0.1)
    values = read(probe, channels)
    for name in ("run_queue_wait_share", "worker_cpu_share", "major_faults", "worker_memory_bytes", "throttled_share"):
        assert math.isnan(values[name]), name


def test_missing_files_are_nan(machine, clock, probe):
    (machine.root / "proc/pressure/io").unlink()
    channels = probe.open(lambda: [7])
    clock.sleep(0.1)
    values = read(probe, channels)
    for name in ("frequency_mhz", "temperature_c", "psi_io_some"):
        assert math.isnan(values[name]), name


def test_clocks_come_from_cpufreq_and_temperature_from_the_hottest_sensor(machine, clock, probe):
    for core, khz in ((0, 2_000_000), (1, 3_000_000)):
        machine.write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{khz}\n")
    for zone, (kind, millidegrees) in enumerate((("CPU-therm", 40500), ("PMIC-Die", 100000), ("GPU-therm", 41000))):
        machine.write(f"sys/class/thermal/thermal_zone{zone}/type", kind)
        machine.write(f"sys/class/thermal/thermal_zone{zone}/temp", f"{millidegrees}\n")
    machine.write("sys/class/hwmon/hwmon0/name", "nvme\n")
    machine.write("sys/class/hwmon/hwmon0/temp1_input", "90000\n")
    channels = probe.open(lambda: [7])
    clock.sleep(0.1)
    values = read(probe, channels)
    assert values["frequency_mhz"] == 2500
    assert values["temperature_c"] == 41


@pytest.mark.parametrize(("flags", "known"), [("fpu aperfmperf", True), ("fpu hypervisor", False)])
def test_the_clock_in_cpuinfo_counts_only_if_it_is_measured(machine, clock, probe, flags, known):
    machine.write("proc/cpuinfo", f"cpu MHz\t\t: 2000.0\nflags\t: {flags}\n\ncpu MHz\t\t: 3000.0\nflags\t: {flags}\n")
    channels = probe.open(lambda: [7])
    clock.sleep(0.1)
    mhz = read(probe, channels)["frequency_mhz"]
    assert mhz == 2500 if known else math.isnan(mhz)


def test_a_system_without_proc_is_unavailable(tmp_path):
    unavailable = Host(root=tmp_path).availability()
    assert unavailable is not None
    assert "/proc" in unavailable.reason


def test_closing_twice_or_before_opening_is_harmless(machine, clock, probe):
    probe.close()
    probe.open(lambda: [7])
    probe.close()
    probe.close()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no /proc/self/schedstat on this system")
def test_this_machine_is_read():
    host = Host()
    channels = host.open(lambda: [os.getpid()])
    values = read(host, channels)
    host.close()
    assert values["worker_stopped_share"] == 0
    assert values["worker_memory_bytes"] > 10**6
    assert values["memory_available_bytes"] > 10**6
