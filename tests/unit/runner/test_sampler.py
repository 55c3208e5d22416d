from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from rigdyno.base.files import write_json
from rigdyno.contracts import Channel
from rigdyno.probes.common.probe_set import ProbeSet
from rigdyno.runner.sampler import Sampler, pid_files, worker_pids
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.samples import read_rows
from rigdyno.schema.spec import Cell, RunSpec, assign_participants, sampler_of
from support import ManualClock


class ScriptedProbe:
    """Reads slowly, and one thing it can't read."""

    def __init__(self, clock, cost_seconds):
        self._clock, self._cost = clock, cost_seconds
        self.pids: list[list[int]] = []
        self.closed = False
        self._count = 0.0

    def availability(self):
        return None

    def open(self, pids):
        self._pids = pids
        return [Channel("count", "1"), Channel("temperature_c", "°C")]

    def read(self):
        self._clock.advance(self._cost)
        self._count += 1
        self.pids.append(list(self._pids()))
        return [self._count, math.nan]

    def close(self):
        self.closed = True


def sampled(tmp_path, clock, probe, readings, cpu_ns=lambda: 0, **limits):
    meters = ProbeSet({"scripted": probe}, list, clock)
    sampler = Sampler(tmp_path / "telemetry.rows", sampler_of(0), clock, meters, cpu_ns, **limits)
    stops = iter([False] * readings + [True])
    sampler.run(lambda: next(stops))
    sampler.close()
    return read_rows(tmp_path / "telemetry.rows")


def test_the_sampler_reads_at_fixed_times_and_keeps_missing_values_missing(tmp_path):
    clock = ManualClock()
    probe = ScriptedProbe(clock, cost_seconds=0.02)
    header, rows = sampled(tmp_path, clock, probe, readings=4)
    assert [name for name, _ in header.fields] == ["at_ns", "count", "temperature_c", "scripted_probe_state"]
    assert [channel.unit for channel in header.channels] == ["1", "°C", "code"]
    assert list(rows["at_ns"] - rows["at_ns"][0]) == [0, 500_000_000, 1_000_000_000, 1_500_000_000]
    assert list(rows["count"]) == [1, 2, 3, 4]
    assert all(math.isnan(value) for value in rows["temperature_c"])
    assert probe.closed


def test_a_reading_that_takes_too_long_does_not_make_it_catch_up(tmp_path):
    clock = ManualClock()
    _, rows = sampled(tmp_path, clock, ScriptedProbe(clock, cost_seconds=0.7), readings=3)
    assert list(rows["at_ns"] - rows["at_ns"][0]) == [0, 700_000_000, 1_400_000_000]


@pytest.mark.parametrize(
    ("cost_ms", "limits", "seconds"),
    [(0.7, {}, 0.5), (1.2, {}, 0.8), (9.0, {}, 1.0), (9.0, {"most_rarely_ns": 500_000_000}, 0.5)],
)
def test_a_rig_with_dear_meters_is_read_more_rarely(tmp_path, cost_ms, limits, seconds):
    clock, spent_ns = ManualClock(), itertools.count(0, round(cost_ms * 1e6))
    probe = ScriptedProbe(clock, cost_seconds=0.0)
    _, rows = sampled(tmp_path, clock, probe, 4, lambda: next(spent_ns), **limits)
    assert list(np.diff(rows["at_ns"]) / 1e9) == pytest.approx([seconds] * 3)


def test_one_dear_reading_is_soon_forgotten(tmp_path):
    clock, spent_ns = ManualClock(), iter([0, 500_000, 9_000_000, *(9_000_000 + n * 500_000 for n in range(1, 20))])
    _, rows = sampled(tmp_path, clock, ScriptedProbe(clock, cost_seconds=0.0), 20, lambda: next(spent_ns))
    pauses = np.diff(rows["at_ns"]) / 1e9
    assert (pauses[0], pauses[1] > 0.9, pauses[-1]) == (0.5, True, 0.5)


def test_the_sampler_finds_workers_that_start_after_it(tmp_path):
    cell = Cell(name="01-x", spec=RunSpec(workload="w", world_size=4), participants=assign_participants(4, 2, "cpu"))
    write_json(CellFolder(tmp_path).spec, cell)
    files = pid_files(tmp_path, node=1)
    assert worker_pids(files) == []
    for name, text in (("rank1", "5"), ("rank2", "17"), ("rank3", ""), ("node1", "4")):  # rank3's is just being written
        (tmp_path / name).mkdir()
        (tmp_path / name / "pid").write_text(text)
    assert worker_pids(files) == [17]


def test_rows_of_two_probes_stand_side_by_side(tmp_path):
    clock = ManualClock()
    first, second = ScriptedProbe(clock, 0.0), ScriptedProbe(clock, 0.0)
    second.open = lambda pids: setattr(second, "_pids", pids) or [Channel("power_w", "W"), Channel("other", "1")]
    sampler = Sampler(
        tmp_path / "telemetry.rows", sampler_of(0), clock, ProbeSet({"one": first, "two": second}, list, clock)
    )
    stops = iter([False, True])
    sampler.run(lambda: next(stops))
    sampler.close()
    header, rows = read_rows(tmp_path / "telemetry.rows")
    assert [name for name, _ in header.fields] == [
        "at_ns", "count", "temperature_c", "one_probe_state", "power_w", "other", "two_probe_state",
    ]  # fmt: skip
    assert rows["power_w"][0] == pytest.approx(1.0)


class RestlessClock(ManualClock):
    """Goes on whenever it is looked at, and doesn't sleep backwards: like a real one."""

    def now_ns(self):
        self.advance(0.001)
        return self.at_ns

    def sleep(self, seconds):
        assert seconds >= 0
        self.advance(seconds)


def test_a_reading_that_is_late_by_a_hair_does_not_end_it(tmp_path):
    clock = RestlessClock()
    _, rows = sampled(tmp_path, clock, ScriptedProbe(clock, cost_seconds=0.1), readings=3)
    assert len(rows) == 3
