"""Energy of configurations: over processes and nodes, an item, net of idle, and where meters disagree."""

import numpy as np
import pytest
from msgspec.structs import replace

from rigdyno.analyse.measurements import measurements, without_idle
from rigdyno.analyse.process import CellData
from rigdyno.schema.channel import Channel
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.measured import EnergyFigures
from rigdyno.schema.record import Facts, Failed
from rigdyno.schema.samples import telemetry_fields, telemetry_header
from rigdyno.schema.spec import RunSpec, assign_participants, clock_of, sampler_of
from scripted_rows import NS, step_header, step_rows
from support import a_record

INPUT = Channel("in_w", "W", "power", device="board", rail="VDD_IN", scope="board", extent="whole", sensor="ina3221")
PACKAGE = Channel("p_j", "J", "energy", "counter", "package0", "", "package", "whole", 0.001, "rapl")
CARD_POWER = Channel("g_w", "W", "power", device="gpu0", scope="card", extent="whole", sensor="nvml")
CARD_ENERGY = Channel("g_j", "J", "energy", "counter", "gpu0", "", "card", "whole", 0.1, "nvml")


def telemetry(rows, *channels, node=0, hertz=2.0, absent=None, **values):
    """Readings around the steps; a value is a number, or of a counter the watts that it rises by."""
    first, last = int(rows["start_ns"][0]), int(rows["end_ns"][-1])
    at = np.arange(first - NS, last + NS, int(NS / hertz), dtype="<i8")
    names = [channel.name for channel in channels]
    found = np.zeros(len(at), dtype=np.dtype(list(telemetry_fields(names))))
    found["at_ns"] = at
    for channel in channels:
        value = values[channel.name]
        found[channel.name] = (at - at[0]) / NS * value if channel.kind == "counter" else value
    return telemetry_header(channels, sampler_of(node), absent), found


def cell(*channels, seconds=0.1, count=200, items=8.0, spec=None, absent=None, **values):
    """Return the cell of one process: `count` steps of `items` each."""
    rows = step_rows([seconds] * count, items=items)
    record = a_record(spec or RunSpec(workload="resnet50"), facts=Facts(unit="image"))
    return CellData(record, ((step_header(), rows),), (telemetry(rows, *channels, absent=absent, **values),))


def energy_of(*cells):
    (found,) = measurements(cells)
    return found.energy


def test_an_image_by_hand():
    """80 images a second at 40 W: half a joule an image, four a step."""
    energy = energy_of(cell(INPUT, in_w=40.0))
    assert energy.per_item.value == pytest.approx(0.5)
    assert (energy.per_item.unit, energy.per_step.unit) == ("J/image", "J/step")
    assert energy.per_step.value == pytest.approx(4.0)
    assert energy.joules.value == pytest.approx(40.0 * 20, rel=0.2)  # the steady part of 20 s
    assert (energy.coverage, energy.peak_watts) == (pytest.approx(1.0), 40.0)
    assert isinstance(energy.net_per_item, Missing)


def test_voxels_are_counted_in_millions():
    one = cell(INPUT, in_w=50.0, items=2e6)
    one = replace_facts(one, Facts(unit="voxel"))
    energy = energy_of(one)
    assert energy.per_item.unit == "J/megavoxel"
    assert energy.per_item.value == pytest.approx(50.0 * 0.1 / 2)


def replace_facts(data, facts):
    return CellData(replace(data.record, facts=facts), data.steps, data.telemetry)


def test_the_interval_is_over_processes():
    energy = energy_of(*(cell(INPUT, in_w=watts) for watts in (39.0, 40.0, 41.0)))
    assert energy.per_item.n == 3
    assert energy.per_item.low < 39 / 80 < energy.per_item.value < 41 / 80 < energy.per_item.high
    assert energy.process_per_item == pytest.approx((39 / 80, 40 / 80, 41 / 80))


def test_net_of_an_idle_rig():
    idle = RunSpec(workload="idle")
    cells = [
        cell(INPUT, in_w=9.0, spec=idle, count=40),
        cell(INPUT, in_w=40.0),
        cell(INPUT, in_w=11.0, spec=idle, count=40),
    ]
    (found,) = without_idle(measurements(cells))  # the idle cell has no figure of its own
    assert found.energy.idle_watts.value == pytest.approx(10.0, rel=0.01)
    assert found.energy.net_watts.value == pytest.approx(30.0, rel=0.01)
    assert found.energy.net_per_item.value == pytest.approx(30 / 80, rel=0.01)


def test_idle_alone_is_a_figure():
    (found,) = without_idle(measurements([cell(INPUT, in_w=9.0, spec=RunSpec(workload="idle"))]))
    assert found.energy.watts.value == pytest.approx(9.0)


def test_an_idle_rig_by_other_meters_is_none():
    cells = [cell(PACKAGE, p_j=9.0, spec=RunSpec(workload="idle")), cell(INPUT, in_w=40.0)]
    (found,) = without_idle(measurements(cells))
    assert "same meters" in found.energy.net_watts.reason


@pytest.mark.parametrize(("watts", "suspect"), [(105.0, False), (125.0, True)])
def test_a_counter_and_readings_that_disagree_by_a_tenth_are_suspect(watts, suspect):
    (found,) = measurements([cell(CARD_POWER, CARD_ENERGY, g_w=watts, g_j=100.0)])
    reasons = {reason.code: reason.sentence for reason in found.validity.reasons}
    assert ("meters_disagree" in reasons) == suspect
    assert found.energy.watts.value == pytest.approx(100.0)  # the counter
    if suspect:
        assert found.status == "SUSPECT"
        assert "gpu0: its energy counter says 100 W, the readings of its power 125 W: 20 % apart" in reasons.values()


def test_without_a_meter_the_reason_says_what_was_tried():
    channel = Channel("cpu0", "share", "utilisation")
    energy = energy_of(cell(channel, cpu0=0.5, absent={"rapl": "a virtual machine; measure on its host"}))
    assert energy.reason == "no meter of power or energy could be read (rapl: a virtual machine; measure on its host)"


def test_without_telemetry_nothing_is_said():
    data = cell(INPUT, in_w=1.0)
    assert energy_of(CellData(data.record, data.steps)) is None


def test_a_meter_that_covers_little_gives_power_and_no_joules_an_item():
    data = cell(INPUT, in_w=40.0)
    header, rows = data.telemetry[0]
    rows["in_w"][len(rows) // 3 :] = np.nan
    energy = energy_of(CellData(data.record, data.steps, ((header, rows),)))
    assert energy.watts.value == pytest.approx(40.0)
    assert energy.coverage < 0.5
    assert "of the steady window" in energy.per_item.reason


def test_kinds_of_step_that_take_turns_have_no_joules_of_their_own():
    rows = step_rows([0.1] * 200, items=8.0)
    rows["kind"] = np.arange(200) % 2
    data = CellData(a_record(), ((step_header("read", "write"), rows),), (telemetry(rows, INPUT, in_w=40.0),))
    (found,) = measurements([data])
    assert found.energy.watts.value == pytest.approx(40.0)
    assert "take turns" in found.energy.per_item.reason
    assert all(figures.energy is None for figures in found.kinds.values())


def on_two_nodes(first, second, *, apart_ns=0):
    """Two ranks on two nodes, whose clocks need not agree."""
    spec = RunSpec(workload="resnet50", world_size=2, nodes=2, arrangement="ddp", launcher="ssh")
    steps, sampled = [], []
    for node, (channels, values) in enumerate((first, second)):
        rows = step_rows([0.1] * 200, items=8.0, begin_ns=5 * NS + node * apart_ns)
        steps.append((step_header(rank=node, node=node), rows))
        sampled.append(telemetry(rows, *channels, node=node, **values))
    record = a_record(spec, facts=Facts(unit="image"), participants=assign_participants(2, 2, "cpu"))
    return CellData(record, tuple(steps), tuple(sampled))


def test_nodes_are_summed_each_by_its_own_clock_an_hour_apart():
    data = on_two_nodes(((INPUT,), {"in_w": 40.0}), ((INPUT,), {"in_w": 60.0}), apart_ns=3600 * NS)
    assert [header.participant.clock for header, _ in data.telemetry] == [clock_of(0), clock_of(1)]
    energy = energy_of(data)
    assert energy.watts.value == pytest.approx(100.0)
    assert energy.watts_by_node == pytest.approx({0: 40.0, 1: 60.0})
    assert energy.per_item.value == pytest.approx(100 / 160)
    assert energy.peak_watts is None


def test_nodes_are_summed_only_where_all_have_the_same_meter():
    both = {"in_w": 40.0, "p_j": 20.0}
    shared = energy_of(on_two_nodes(((INPUT, PACKAGE), both), ((PACKAGE,), {"p_j": 25.0})))
    assert isinstance(shared, EnergyFigures)
    assert (shared.whole, shared.watts.value) == ("chips", pytest.approx(45.0))
    lacking = energy_of(on_two_nodes(((INPUT,), {"in_w": 40.0}), ((PACKAGE,), {"p_j": 25.0})))
    assert "not all nodes have the same meter" in lacking.reason


def test_the_figure_that_leaves_the_house():
    (found,) = measurements([cell(INPUT, in_w=40.0)])
    named = {metric.name: figure for metric, figure in found.kinds["step"].by_metric()}
    assert isinstance(named["energy per item"], Estimate)
    assert named["energy per item"].value == pytest.approx(0.5)


REASONS = Channel("bits", "bits", "throttle", device="gpu0", scope="card", sensor="nvml")


@pytest.mark.parametrize(
    ("bits", "words"), [(0x40, "heat"), (0x20 | 0x4, "heat"), (0x80, "a power brake"), (0x4, None)]
)
def test_a_card_that_lowers_its_clock_is_suspect_but_for_its_usual_cap_on_power(bits, words):
    (found,) = measurements([cell(CARD_POWER, REASONS, g_w=200.0, bits=float(bits))])
    sentences = [reason.sentence for reason in found.validity.reasons if reason.code == "card_throttled"]
    expected = [] if words is None else [f"throttled: gpu0 lowered its clock for {words} in 100 % of the readings"]
    assert sentences == expected


def test_an_idle_rig_that_could_not_be_measured_is_the_reason():
    failed = a_record(RunSpec(workload="idle"), outcome=Failed(kind="exit", phase="start", message="exit code 1"))
    (found,) = without_idle(measurements([CellData(failed), cell(INPUT, in_w=40.0)]))
    assert "the idle machine was not measured: exit while in start: exit code 1" in found.energy.net_per_item.reason
