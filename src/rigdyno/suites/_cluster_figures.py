"""The figures of the cluster suite: run time against its ideal, and usage and power over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rigdyno.reference.published import PublishedJob, cluster_jobs
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of, figure_key
from rigdyno.schema.measured import Measurement, NodeUsage
from rigdyno.suites._cluster_curves import PARTS, Curve, Shown
from rigdyno.suites._soak import verdict_of

FRAMEWORKS = {"mnist_cnn": "pytorch", "mnist_cnn_tensorflow": "tensorflow"}  # as the published table calls them

Values = tuple[float | None, ...]


def all_of(shown: Shown) -> tuple[Figure, ...]:
    if not shown.jobs:
        return ()
    named = [(_named(curve, point, shown), point) for curve in shown.curves for point in curve.points]
    idle = [("idle", shown.idle)] if shown.idle is not None else []
    over_time = (_over_time(name, each) for name, each in (*idle, *named))
    times = (figure for curve in shown.curves for figure in (_run_time(curve, shown), _relative(curve)))
    drawn = (*times, _parts(shown), *over_time)
    return tuple(figure for figure in drawn if figure is not None)


def _named(curve: Curve, point: Measurement, shown: Shown) -> str:
    count = point.spec.world_size
    return f"{curve.name}, {count} {shown.cards_word if count > 1 else shown.cards_word.removesuffix('s')}"


def _axis(shown: Shown) -> Axis:
    return Axis(quantity=shown.cards_word, along="devices")


def _run_time(curve: Curve, shown: Shown) -> Figure | None:
    known = [(point, point.job) for point in curve.whole if point.job is not None]
    if len(known) < 2:
        return None
    own = tuple(datum_of(point.spec.world_size, job.seconds, verdict=verdict_of(point)) for point, job in known)
    shared = [(point.spec.world_size, curve.ideal(point.spec.world_size)) for point, _ in known]
    ideal = tuple(datum(size, each.value) for size, each in shared if each is not None)
    series = (Series(name="this cluster", role="measured", data=own), Series(name="ideal", role="ideal", data=ideal))
    return Figure(
        key=figure_key("run-time", curve.name),
        kind="curve",
        title=f"Run time by number of {shown.cards_word}: {curve.name}",
        x=_axis(shown),
        panels=(Panel(y=Axis(quantity="time of the job", unit="s"), series=series),),
        caption="From the start of the processes to their end, against what one took, shared out",
        counted="processes",
    )


def _relative(curve: Curve) -> Figure | None:
    """Against one card: the published jobs are other jobs on other cards, and can be held against nothing else."""
    if curve.alone is None or len(curve.whole) < 2:
        return None
    one = curve.alone.without_start
    own = tuple(
        datum(point.spec.world_size, point.job.without_start / one, verdict=verdict_of(point))
        for point in curve.whole
        if point.job is not None
    )
    theirs = [job for job in cluster_jobs() if job.framework == FRAMEWORKS[curve.first.spec.workload]]
    sizes = sorted({each.spec.world_size for each in curve.whole} | {cards for job in theirs for cards in job.seconds})
    series = (
        Series(name="this cluster", role="measured", data=own),
        *(_published(job) for job in theirs),
        Series(name="ideal", role="ideal", data=tuple(datum(size, 1 / size) for size in sizes)),
    )
    return Figure(
        key=figure_key("run-time-against-one", curve.name),
        kind="curve",
        title=f"Run time against one card, beside the published jobs: {curve.name}",
        x=Axis(quantity="cards", along="devices"),
        panels=(Panel(y=Axis(quantity="time over that of one", unit="x"), series=series),),
        caption="All without start-up, which the published clocks leave out; other jobs, on Jetson Nano kits",
    )


def _published(job: PublishedJob) -> Series:
    shares = tuple(datum(cards, seconds / job.seconds[1]) for cards, seconds in sorted(job.seconds.items()))
    return Series(name=job.job, role="published", data=shares, source=job.source)


def _parts(shown: Shown) -> Figure | None:
    known = [
        (_named(curve, point, shown), point.job)
        for curve in shown.curves
        for point in curve.points
        if point.job is not None
    ]
    if not known:
        return None
    series = tuple(
        Series(
            name={"start": "start-up"}.get(part, part),
            role="measured",
            data=tuple(datum(name, getattr(job, part)) for name, job in known),
        )
        for part in PARTS
        if any(getattr(job, part) for _, job in known)
    )
    return Figure(
        key="where-time-goes",
        kind="stack",
        title="Where the time of the job goes",
        x=Axis(quantity=shown.cards_word, along="category"),
        panels=(Panel(y=Axis(quantity="time of the job", unit="s"), series=series),),
        caption="Means over the processes; communication: waiting for the gradients of others",
    )


def _over_time(name: str, measurement: Measurement) -> Figure | None:
    if measurement.usage is None:
        return None
    nodes = measurement.usage.nodes
    panels = (
        _panel(name, "device usage", "share", nodes, lambda node: node.device),
        _panel(name, "CPU usage", "share", nodes, lambda node: node.cpu),
        _panel(name, "power", "W", nodes, lambda node: node.watts, together="all nodes"),
    )
    found = tuple(panel for panel in panels if panel is not None)
    if not found:
        return None
    return Figure(
        key=figure_key("over-time", name),
        kind="timeline",
        title=f"Usage and power over time: {name}",
        x=Axis(quantity="time since the first step", unit="s", along="time"),
        panels=found,
        caption="The first process, node by node, from its start to its end",
        verdict=verdict_of(measurement),
    )


def _panel(
    name: str,
    quantity: str,
    unit: str,
    nodes: Sequence[NodeUsage],
    values_of: Callable[[NodeUsage], Values],
    together: str | None = None,
) -> Panel | None:
    """`together`: what the sum over the nodes is called, where it means something."""
    known = [node for node in nodes if any(value is not None for value in values_of(node))]
    if not known:
        return None
    several = len(nodes) > 1
    series = [
        Series(name=f"node {node.node}" if several else quantity, role="measured", data=_data(node, values_of(node)))
        for node in known
    ]
    if together is not None and several and len(known) == len(nodes):
        series.append(Series(name=together, role="measured", data=_summed(known, values_of)))
    return Panel(title=f"{name}: {quantity}", y=Axis(quantity=quantity, unit=unit), series=tuple(series))


def _data(node: NodeUsage, values: Values) -> tuple[Datum, ...]:
    return tuple(datum(seconds, value) for seconds, value in zip(node.seconds, values, strict=True))


def _summed(nodes: Sequence[NodeUsage], values_of: Callable[[NodeUsage], Values]) -> tuple[Datum, ...]:
    """At the first node's times, as long as all were read: each counts its seconds from the step that all begin."""
    import numpy as np  # which a listing can do without

    begin, end = max(node.seconds[0] for node in nodes), min(node.seconds[-1] for node in nodes)
    times = [seconds for seconds in nodes[0].seconds if begin <= seconds <= end]
    total = np.zeros(len(times))
    for node in nodes:
        known = [(at, value) for at, value in zip(node.seconds, values_of(node), strict=True) if value is not None]
        total += np.interp(times, [at for at, _ in known], [value for _, value in known])
    return tuple(datum(at, float(value)) for at, value in zip(times, total, strict=True))
