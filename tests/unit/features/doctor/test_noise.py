"""How noise is judged, and listened for without waiting."""

import math
from typing import ClassVar

from rigdyno.contracts import Channel, Unavailable
from rigdyno.features.doctor.diagnose import check_meter, judge, noise_now


class StillClock:
    def __init__(self):
        self.slept = 0.0

    def now_ns(self):
        return 0

    def sleep(self, seconds):
        self.slept += seconds


class Scripted:
    """A probe with one good and one bad channel."""

    hints: ClassVar = {"temperature_c": "buy a thermometer"}
    closed = False

    def availability(self):
        return None

    def open(self, worker_pids):
        assert worker_pids()
        return [Channel("run_queue_wait_share", "share"), Channel("temperature_c", "C")]

    def read(self):
        return [0.5, math.nan]

    def close(self):
        self.closed = True


class Absent(Scripted):
    def availability(self):
        return Unavailable("not here", "go there")


def test_the_wait_is_per_core():
    found = {finding.name: finding for finding in judge({"run_queue_wait_share": 0.06}, cores=4, load_average=0.1)}
    assert found["run queue"].status == "fine"
    assert "1.5 %" in found["run queue"].sentence
    assert found["steal"].status == "unknown"
    assert found["load"].status == "fine"


def test_a_busy_machine_is_told_with_a_way_out():
    values = {"run_queue_wait_share": 0.8, "steal_share": 0.2, "psi_cpu_some": 0.5}
    found = {finding.name: finding for finding in judge(values, cores=2, load_average=3.0)}
    for name in ("run queue", "steal", "cpu pressure", "load"):
        assert found[name].status == "trap"
        assert found[name].fix


def test_listening_loads_the_cores_and_closes_the_probe():
    probe, clock = Scripted(), StillClock()
    findings = noise_now(probe, clock, cores=2, load_average=None, seconds=1.0)
    assert clock.slept == 1.0
    assert probe.closed
    assert findings[0].status == "trap"


def test_a_host_that_can_not_be_read():
    assert noise_now(Absent(), StillClock(), 2, None)[0].sentence == "not here"


def test_a_meter_tells_what_it_reads_and_what_not():
    state = check_meter("scripted", Scripted(), StillClock())
    assert state.summary == "A probe with one good and one bad channel."
    assert state.readable == ("run_queue_wait_share",)
    assert state.unreadable == {"temperature_c": "buy a thermometer"}


def test_a_meter_that_is_absent_gives_the_fix():
    state = check_meter("absent", Absent(), StillClock())
    assert (state.readable, state.reason, state.fix) == ((), "not here", "go there")


def test_a_meter_that_throws_or_hangs_is_a_finding_about_itself(monkeypatch):
    from threading import Event

    broken, stuck, let_go = Scripted(), Scripted(), Event()
    broken.read = lambda: {}["no such key"]
    stuck.open = lambda pids: let_go.wait()
    monkeypatch.setattr("rigdyno.features.doctor.diagnose.PATIENCE_SECONDS", 0.05)
    assert check_meter("stuck", stuck, StillClock()).reason == "it didn't answer within 0.05 s"
    let_go.set()
    monkeypatch.setattr("rigdyno.features.doctor.diagnose.PATIENCE_SECONDS", 60.0)
    assert check_meter("broken", broken, StillClock()).reason.startswith("it failed: ")
