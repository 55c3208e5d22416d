"""The sentences of the scaling suite: how well it scales, and where the lost time of a step went.

Every rank does as much work in a step as one alone, so any longer step is a loss. All ranks wait for the one that
computes longest: time up to there is lost to computing, time after that to the link. Clocks of different nodes are
never compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median_low
from typing import NamedTuple

from rigdyno.base.units import show_bytes, show_percent, show_scaled
from rigdyno.reference.published import load_resnet50_scaling
from rigdyno.schema.measured import Measurement, Phases
from rigdyno.schema.samples import COMPUTING
from rigdyno.schema.view import Headline, Neighbour, Published
from rigdyno.suites.scaling import tables

STRAGGLES = 1.15  # ratio to the typical computing time: processes of the same code differ by a few percent


class Shortfall(NamedTuple):
    """The parts of the lost time of a step, in seconds."""

    ideal: float  # the step of one rank alone
    computing: float  # extra computing of a typical rank: cores share caches, memory and power
    waiting: float  # extra computing of the slowest rank, for which all others wait
    communication: float  # not overlapped with computing
    slowest_rank: int
    slowest_ratio: float  # its computing time relative to the typical one

    @property
    def lost(self) -> float:
        return self.computing + self.waiting + self.communication

    @property
    def efficiency(self) -> float:
        return self.ideal / (self.ideal + self.lost)

    @property
    def cause(self) -> str:
        """Return the name of the largest part of the loss."""
        parts = {"computing": self.computing, "waiting": self.waiting, "communication": self.communication}
        return max(parts, key=lambda name: parts[name])

    def share(self, part: float) -> float:
        return max(0.0, part) / self.lost if self.lost > 0 else 0.0


def headline(curve: Sequence[Measurement]) -> Headline | None:
    """Return the speedup of the largest number of devices; the rate if there is only one."""
    if not curve:
        return None
    first, largest = curve[0], curve[-1]
    if largest is first:
        return Headline(what="ResNet-50 on one device", figure=first.throughput(), status=first.status)
    what = f"ResNet-50, {largest.spec.world_size} {tables.devices_word(largest)} over one"
    place, neighbours = _published_neighbours(largest.spec.world_size)
    figure = tables.speedup_entry(largest, first)
    return Headline(what=what, figure=figure, status=largest.status, place=place, neighbours=neighbours)


def _published_neighbours(devices: int) -> tuple[str, tuple[Neighbour, ...]]:
    same = next((row for row in load_resnet50_scaling() if row.devices == devices), None)
    if same is None:
        return f"the published table has no row of {devices} devices", ()
    figure = Published(value=same.speedup, unit="x", source=same.source)
    return f"beside the published speedup of {devices} GPUs", (Neighbour(name=f"{devices} K80s", figure=figure),)


def closing(curve: Sequence[Measurement], measurements: Sequence[Measurement]) -> tuple[str, ...]:
    timed = [(each, each.phases) for each in curve if each.phases is not None]
    if len(timed) < 2 or timed[0][0].spec.world_size != 1:
        return ()
    (_, alone), (largest, together) = timed[0], timed[-1]
    return (_sentence(shortfall(alone, together), largest, measurements),)


def _sentence(found: Shortfall, largest: Measurement, measurements: Sequence[Measurement]) -> str:
    several = "devices" if _in_one_process(largest) else "ranks"
    head = f"{largest.spec.world_size} {several}, efficiency {show_percent(found.efficiency)}: "
    if found.lost <= 0:
        return f"{head}nothing is lost."
    causes = {"communication": _link_sentence, "waiting": _straggler_sentence, "computing": _computing_sentence}
    return head + causes[found.cause](found, largest, measurements)


def _in_one_process(measurement: Measurement) -> bool:
    return measurement.spec.arrangement == "data_parallel"


def _link_sentence(found: Shortfall, largest: Measurement, measurements: Sequence[Measurement]) -> str:
    if _in_one_process(largest):
        share = show_percent(found.share(found.communication))
        return f"{share} of the loss is sending inputs, parameters and outputs between the devices of one process."
    gradients = largest.facts.settled.get("gradient_bytes")
    sent = f"gradients {show_bytes(float(gradients))} a step" if isinstance(gradients, (int, float)) else "gradients"
    carried = _link_bandwidth(measurements)
    over = f" over a link that carries {carried}" if carried else ""
    return f"{sent}{over}; {show_percent(found.share(found.communication))} of the loss is exposed communication."


def _straggler_sentence(found: Shortfall, _largest: Measurement, _measurements: Sequence[Measurement]) -> str:
    share = show_percent(found.share(found.waiting))
    if found.slowest_ratio < STRAGGLES:
        return f"{share} of the loss is ranks that wait for each other, now for one, now for another."
    slower = show_percent(found.slowest_ratio - 1)
    return f"rank {found.slowest_rank} computes {slower} longer than the others; {share} of the loss is waiting for it."


def _computing_sentence(found: Shortfall, largest: Measurement, _measurements: Sequence[Measurement]) -> str:
    shared = " they share caches, memory and power" if largest.spec.device == "cpu" else " power or heat may be why"
    return (
        f"{show_percent(found.share(found.computing))} of the loss is computing that takes longer beside the others:"
        f"{shared}."
    )


def _link_bandwidth(measurements: Sequence[Measurement]) -> str | None:
    """Return the bus bandwidth of the largest all-reduce, in bits per second like the data sheets of links."""
    sweep = next((each for each in measurements if each.spec.workload == "allreduce" and each.kinds), None)
    if sweep is None:
        return None
    *_, largest = sweep.kinds.values()
    return show_scaled(8 * largest.throughput.value, "bit/s")


def shortfall(alone: Phases, together: Phases) -> Shortfall:
    (one,) = alone.by_rank.values()
    computed = {rank: _seconds_computing(phases) for rank, phases in together.by_rank.items()}
    typical = median_low(computed.values())  # of two, the faster one: the other is the straggler
    slowest = max(computed, key=lambda rank: computed[rank])
    return Shortfall(
        ideal=sum(one.values()),
        computing=typical - _seconds_computing(one),
        waiting=together.longest_computing - typical,
        communication=fmean(sum(phases.values()) for phases in together.by_rank.values()) - together.longest_computing,
        slowest_rank=slowest,
        slowest_ratio=computed[slowest] / typical,
    )


def _seconds_computing(rank: Mapping[str, float]) -> float:
    return sum(rank.get(phase, 0.0) for phase in COMPUTING)
