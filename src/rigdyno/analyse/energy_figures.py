"""Compute the energy of a configuration from the meters of its processes: gross and net of idle, per item and step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rigdyno.analyse.energy import NodeEnergy, meters_of, totals_of
from rigdyno.analyse.statistics import across_processes
from rigdyno.analyse.streams import Rows, TimeSpan
from rigdyno.analyse.validity.thresholds import METERS_DISAGREE
from rigdyno.analyse.validity.verdict import Finding
from rigdyno.base.errors import DamagedRun
from rigdyno.base.units import energy_unit, seconds_of_ns, show_percent, show_scaled
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.measured import UPDATES_OF_A_TURN, WHOLES, EnergyFigures, MeterEnergy, Whole
from rigdyno.schema.samples import Header

LEAST_COVERAGE = 0.8  # of the window: below this, too much of the energy per item would be unmetered

Samples = tuple[Header, Rows]

NO_IDLE = "the idle machine was not measured; `--idle 10s` does"

Rates = Sequence[float | None]


@dataclass(frozen=True)
class ProcessEnergy:
    """The energy of one cell in its steady window, by the meters of its nodes."""

    totals: dict[int, dict[Whole, NodeEnergy]] = field(default_factory=dict)  # by node
    meters: tuple[MeterEnergy, ...] = ()
    seconds: float = 0.0  # length of the window; the shortest if nodes differ
    rate: float | None = None  # items/s; None: several kinds of step take turns
    step_rate: float | None = None
    absent: dict[str, str] = field(default_factory=dict)  # probes that couldn't be read, and why

    def whole(self, whole: Whole) -> list[NodeEnergy] | None:
        """Return the totals of that part, one per node; None if a node has none."""
        found = [by_whole.get(whole) for by_whole in self.totals.values()]
        known = [total for total in found if total is not None]
        return known if known and len(known) == len(found) else None


class NotMetered(DamagedRun):
    """The meter has too few readings to tell the turns of a duel apart."""


def process_energy(
    telemetry: Sequence[Samples], windows: Mapping[int, TimeSpan], rate: float | None, step_rate: float | None
) -> ProcessEnergy | None:
    """Return the energy of one cell; None if it was not sampled.

    `windows`: the steady window of each node, by the clock of that node.
    """
    sampled = {header.participant.node: (header, rows) for header, rows in telemetry if header.channels}
    if not sampled or not windows or any(span.end_ns <= span.start_ns for span in windows.values()):
        return None
    by_node = {
        node: meters_of(sampled[node][0].channels, sampled[node][1], span, node) if node in sampled else []
        for node, span in windows.items()
    }
    return ProcessEnergy(
        totals={node: totals_of(meters) for node, meters in by_node.items()},
        meters=tuple(meter for meters in by_node.values() for meter in meters),
        seconds=min(seconds_of_ns(span.end_ns - span.start_ns) for span in windows.values()),
        rate=rate,
        step_rate=step_rate,
        absent=next(iter(sampled.values()))[0].absent,
    )


def disagreements(energy: ProcessEnergy | None) -> list[Finding]:
    """Report a meter whose energy counter and power differ. Either may be wrong: some GPUs sample 25 % of the time."""
    for meter in energy.meters if energy is not None else ():
        if meter.check_watts is None or max(meter.watts, meter.check_watts) <= 0:
            continue
        apart = abs(meter.watts - meter.check_watts) / max(meter.watts, meter.check_watts)
        if apart > METERS_DISAGREE:
            counted, integrated = show_scaled(meter.watts, "W"), show_scaled(meter.check_watts, "W")
            sentence = f"{meter.title}: its energy counter says {counted}, the readings of its power {integrated}"
            return [Finding("SUSPECT", "meters_disagree", f"{sentence}: {show_percent(apart)} apart")]
    return []


def energy_figures(processes: Sequence[ProcessEnergy], unit: str) -> EnergyFigures | Missing | None:
    """Return the energy of a configuration; Missing, with what would add a meter, if none could be read."""
    if not processes:
        return None
    whole = next((whole for whole in WHOLES if all(each.whole(whole) for each in processes)), None)
    if whole is None:
        return Missing(reason=_why_none(processes))
    totals = [each.whole(whole) or [] for each in processes]
    watts = [sum(total.watts for total in found) for found in totals]
    coverage = min(total.coverage for found in totals for total in found)
    per_item = _energy_per(watts, [each.rate for each in processes], coverage, unit)
    return EnergyFigures(
        whole=whole,
        source="; ".join(dict.fromkeys(total.source for total in totals[0])),
        joules=_mean_over_processes([sum(total.joules for total in found) for found in totals], "J"),
        watts=_mean_over_processes(watts, "W"),
        peak_watts=_peak_watts(totals),
        coverage=coverage,
        per_item=per_item,
        per_step=_energy_per(watts, [each.step_rate for each in processes], coverage, "step"),
        idle_watts=Missing(reason=NO_IDLE),
        net_watts=Missing(reason=NO_IDLE),
        net_per_item=Missing(reason=NO_IDLE),
        watts_by_node={
            node: fmean(each.totals[node][whole].watts for each in processes) for node in processes[0].totals
        },
        meters=processes[0].meters,
        process_per_item=_energy_of_each(watts, [each.rate for each in processes], unit)
        if isinstance(per_item, Estimate)
        else (),
    )


def _why_none(processes: Sequence[ProcessEnergy]) -> str:
    having = [node for each in processes for node, found in each.totals.items() if found]
    if having:
        lacking = sorted({node for each in processes for node in each.totals} - set(having))
        return "not all nodes have the same meter" + (f": node {lacking[0]} has none" if lacking else "")
    absent = processes[0].absent
    tried = next((f"{name}: {absent[name]}" for name in ("rapl", "nvml", "ina3221") if name in absent), "")
    return f"no meter of power or energy could be read ({tried})" if tried else "no meter of power or energy is here"


def _peak_watts(totals: Sequence[Sequence[NodeEnergy]]) -> float | None:
    """Return the highest peak if each process has a single meter; the peaks of several needn't coincide."""
    peaks = [found[0].peak_watts for found in totals if len(found) == 1]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if len(known) == len(totals) else None


def _energy_per(watts: Sequence[float], rates: Rates, coverage: float, unit: str) -> Estimate | Missing:
    if not all(rates):
        return Missing(reason="kinds of step take turns: what each took can't be told apart")
    if coverage < LEAST_COVERAGE:
        return Missing(reason=f"the meter covered {show_percent(coverage)} of the steady window alone")
    return _mean_over_processes(_energy_of_each(watts, rates, unit), energy_unit(unit)[0])


def _energy_of_each(watts: Sequence[float], rates: Rates, unit: str) -> tuple[float, ...]:
    factor = energy_unit(unit)[1]
    return tuple(power / rate * factor for power, rate in zip(watts, rates, strict=True) if rate)


def _mean_over_processes(values: Sequence[float], unit: str) -> Estimate:
    """Return the mean; it has an interval for two processes or more if all values are positive."""
    if len(values) > 1 and min(values) > 0:
        return across_processes(values, unit, of="processes' figures")
    method = "one process, no interval" if len(values) == 1 else f"mean of {len(values)} processes, no interval"
    return Estimate(value=fmean(values), n=len(values), unit=unit, method=method)


def net_of(energy: EnergyFigures, idle: EnergyFigures | Missing | None) -> EnergyFigures:
    """Subtract the idle power, measured by the same meters on the same nodes."""
    if idle is None:
        return energy
    nodes = energy.watts_by_node.keys()
    if isinstance(idle, Missing):
        return _with_missing_net(energy, idle)
    if idle.whole != energy.whole or not nodes <= idle.watts_by_node.keys():
        reason = "the idle machine was not measured by the same meters on the same nodes"
        return _with_missing_net(energy, Missing(reason=reason))
    base = sum(idle.watts_by_node[node] for node in nodes)
    share = 1 - base / energy.watts.value if energy.watts.value else 0.0
    method = f"less {show_scaled(base, 'W')} of the idle machine"
    idle_watts = replace(idle.watts, value=base, low=None, high=None, confidence=None, method="mean of idle windows")
    return replace(
        energy,
        idle_watts=idle_watts,
        net_watts=_subtract(energy.watts, energy.watts.value * share, method),
        net_per_item=energy.per_item
        if isinstance(energy.per_item, Missing)
        else _subtract(energy.per_item, energy.per_item.value * share, method),
    )


def _with_missing_net(energy: EnergyFigures, reason: Missing) -> EnergyFigures:
    return replace(energy, idle_watts=reason, net_watts=reason, net_per_item=reason)


def _subtract(figure: Estimate, value: float, method: str) -> Estimate:
    """Shift the estimate to `value`; the width of the interval stays."""
    shift = value - figure.value
    low, high = (None, None) if figure.interval is None else (figure.interval[0] + shift, figure.interval[1] + shift)
    return replace(figure, value=value, low=low, high=high, method=f"{figure.method}, {method}")


def joules_per_item(header: Header, rows: Rows, turns: Rows) -> NDArray[np.float64]:
    """Return the joules per item of each turn of a duel; raise NotMetered if a turn has too few readings."""
    return np.array([_joules_per_item_of_turn(header, rows, turn) for turn in turns], dtype=np.float64)


def _joules_per_item_of_turn(header: Header, rows: Rows, turn: np.void) -> float:
    span = TimeSpan(int(turn["start_ns"]), int(turn["end_ns"]))
    totals = totals_of(meters_of(header.channels, rows, span))
    total = next((totals[whole] for whole in WHOLES if whole in totals), None)
    if total is None:
        raise NotMetered("no meter of power or energy covered the turns; `rigdyno doctor` says what would add one")
    updates = min(meter.updates for meter in total.meters)
    if updates < UPDATES_OF_A_TURN:
        few = f"a turn had {updates} updates of {total.source}, and it takes {UPDATES_OF_A_TURN}"
        raise NotMetered(f"{few}: the steps became quicker than they were at first, or readings are missing")
    if total.coverage < LEAST_COVERAGE or total.watts <= 0:
        raise NotMetered(f"{total.source} covered {show_percent(total.coverage)} of a turn alone")
    return total.watts * seconds_of_ns(span.end_ns - span.start_ns) / float(turn["items"])
