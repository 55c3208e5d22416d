"""What the scaling suite says at the end: how well it scales, and what eats the rest."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.shortfall import Shortfall, shortfall
from rigdyno.reference.published import resnet50_scaling
from rigdyno.schema.measured import Measurement
from rigdyno.schema.view import Headline, Neighbour, Published
from rigdyno.suites import _scaling_tables as tables
from rigdyno.units import show_bytes, show_percent, show_scaled

STRAGGLES = 1.15  # times what the others compute: processes of the same code differ by a few percent


def headline(curve: Sequence[Measurement]) -> Headline | None:
    """What the largest number of devices gives over one; the rate itself where there is one alone."""
    if not curve:
        return None
    first, largest = curve[0], curve[-1]
    if largest is first:
        return Headline(what="ResNet-50 on one device", figure=first.throughput(), status=first.status)
    what = f"ResNet-50, {largest.spec.world_size} {tables.devices_word(largest)} over one"
    place, neighbours = _beside_published(largest.spec.world_size)
    figure = tables.speedup(largest, first)
    return Headline(what=what, figure=figure, status=largest.status, place=place, neighbours=neighbours)


def _beside_published(devices: int) -> tuple[str, tuple[Neighbour, ...]]:
    same = next((row for row in resnet50_scaling() if row.devices == devices), None)
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
    causes = {"communication": _link, "waiting": _straggler, "computing": _computing}
    return head + causes[found.cause](found, largest, measurements)


def _in_one_process(measurement: Measurement) -> bool:
    return measurement.spec.arrangement == "data_parallel"


def _link(found: Shortfall, largest: Measurement, measurements: Sequence[Measurement]) -> str:
    if _in_one_process(largest):
        share = show_percent(found.share(found.communication))
        return f"{share} of the loss is sending inputs, parameters and outputs between the devices of one process."
    gradients = largest.facts.settled.get("gradient_bytes")
    sent = f"gradients {show_bytes(float(gradients))} a step" if isinstance(gradients, (int, float)) else "gradients"
    carried = carries(measurements)
    over = f" over a link that carries {carried}" if carried else ""
    return f"{sent}{over}; {show_percent(found.share(found.communication))} of the loss is exposed communication."


def _straggler(found: Shortfall, _largest: Measurement, _measurements: Sequence[Measurement]) -> str:
    share = show_percent(found.share(found.waiting))
    if found.slowest_ratio < STRAGGLES:
        return f"{share} of the loss is ranks that wait for each other, now for one, now for another."
    slower = show_percent(found.slowest_ratio - 1)
    return f"rank {found.slowest_rank} computes {slower} longer than the others; {share} of the loss is waiting for it."


def _computing(found: Shortfall, largest: Measurement, _measurements: Sequence[Measurement]) -> str:
    shared = " they share caches, memory and power" if largest.spec.device == "cpu" else " power or heat may be why"
    return (
        f"{show_percent(found.share(found.computing))} of the loss is computing that takes longer beside the others:"
        f"{shared}."
    )


def carries(measurements: Sequence[Measurement]) -> str | None:
    """Bus bandwidth of the largest all-reduce that was measured, in bits a second as links are sold."""
    sweep = next((each for each in measurements if each.spec.workload == "allreduce" and each.kinds), None)
    if sweep is None:
        return None
    *_, largest = sweep.kinds.values()
    return show_scaled(8 * largest.throughput.value, "bit/s")
