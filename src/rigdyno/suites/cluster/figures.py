"""The figures of the cluster suite: run time against its ideal, and usage and power over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rigdyno.reference.published import PublishedJob, load_cluster_jobs
from rigdyno.report.sections import find_verdict
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of, figure_key
from rigdyno.schema.measured import Measurement, NodeUsage
from rigdyno.suites.cluster.curves import PARTS, ClusterResults, JobCurve

FRAMEWORKS = {"mnist_cnn": "pytorch", "mnist_cnn_tensorflow": "tensorflow"}  # their names in the published table

Values = tuple[float | None, ...]


def make_figures(results: ClusterResults) -> tuple[Figure, ...]:
    if not results.jobs:
        return ()
    named = [(_point_name(curve, point, results), point) for curve in results.curves for point in curve.points]
    idle = [("idle", results.idle)] if results.idle is not None else []
    over_time = (_usage_figure(name, each) for name, each in (*idle, *named))
    times = (figure for curve in results.curves for figure in (_run_time_figure(curve, results), _relative_time(curve)))
    drawn = (*times, _parts_figure(results), *over_time)
    return tuple(figure for figure in drawn if figure is not None)


def _point_name(curve: JobCurve, point: Measurement, results: ClusterResults) -> str:
    count = point.spec.world_size
    return f"{curve.name}, {count} {results.cards_word if count > 1 else results.cards_word.removesuffix('s')}"


def _axis(results: ClusterResults) -> Axis:
    return Axis(quantity=results.cards_word, along="devices")


def _run_time_figure(curve: JobCurve, results: ClusterResults) -> Figure | None:
    known = [(point, point.job) for point in curve.whole if point.job is not None]
    if len(known) < 2:
        return None
    own = tuple(datum_of(point.spec.world_size, job.seconds, verdict=find_verdict(point)) for point, job in known)
    shared = [(point.spec.world_size, curve.ideal(point.spec.world_size)) for point, _ in known]
    ideal = tuple(datum(size, each.value) for size, each in shared if each is not None)
    series = (Series(name="this cluster", role="measured", data=own), Series(name="ideal", role="ideal", data=ideal))
    return Figure(
        key=figure_key("run-time", curve.name),
        kind="curve",
        title=f"Run time by number of {results.cards_word}: {curve.name}",
        x=_axis(results),
        panels=(Panel(y=Axis(quantity="time of the job", unit="s"), series=series),),
        caption="From the start of the processes to their end, against what one took, shared out",
        counted="processes",
    )


def _relative_time(curve: JobCurve) -> Figure | None:
    """Draw the time relative to one device: the published jobs differ, so only ratios can be compared."""
    if curve.alone is None or len(curve.whole) < 2:
        return None
    one = curve.alone.without_start
    own = tuple(
        datum(point.spec.world_size, point.job.without_start / one, verdict=find_verdict(point))
        for point in curve.whole
        if point.job is not None
    )
    theirs = [job for job in load_cluster_jobs() if job.framework == FRAMEWORKS[curve.first.spec.workload]]
    sizes = sorted({each.spec.world_size for each in curve.whole} | {cards for job in theirs for cards in job.seconds})
    series = (
        Series(name="this cluster", role="measured", data=own),
        *(_published_series(job) for job in theirs),
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


def _published_series(job: PublishedJob) -> Series:
    shares = tuple(datum(cards, seconds / job.seconds[1]) for cards, seconds in sorted(job.seconds.items()))
    return Series(name=job.job, role="published", data=shares, source=job.source)


def _parts_figure(results: ClusterResults) -> Figure | None:
    known = [
        (_point_name(curve, point, results), point.job)
        for curve in results.curves
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
        x=Axis(quantity=results.cards_word, along="category"),
        panels=(Panel(y=Axis(quantity="time of the job", unit="s"), series=series),),
        caption="Means over the processes; communication: waiting for the gradients of others",
    )


def _usage_figure(name: str, measurement: Measurement) -> Figure | None:
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
        verdict=find_verdict(measurement),
    )


def _panel(
    name: str,
    quantity: str,
    unit: str,
    nodes: Sequence[NodeUsage],
    values_of: Callable[[NodeUsage], Values],
    together: str | None = None,
) -> Panel | None:
    """Return a panel with one series per node. `together`: the name of the sum over nodes, if it is meaningful."""
    known = [node for node in nodes if any(value is not None for value in values_of(node))]
    if not known:
        return None
    several = len(nodes) > 1
    series = [
        Series(name=f"node {node.node}" if several else quantity, role="measured", data=_data(node, values_of(node)))
        for node in known
    ]
    if together is not None and several and len(known) == len(nodes):
        series.append(Series(name=together, role="measured", data=_sum_over_nodes(known, values_of)))
    return Panel(title=f"{name}: {quantity}", y=Axis(quantity=quantity, unit=unit), series=tuple(series))


def _data(node: NodeUsage, values: Values) -> tuple[Datum, ...]:
    return tuple(datum(seconds, value) for seconds, value in zip(node.seconds, values, strict=True))


def _sum_over_nodes(nodes: Sequence[NodeUsage], values_of: Callable[[NodeUsage], Values]) -> tuple[Datum, ...]:
    """Add up the nodes at the first node's times, while all were read. All count from their common first step."""
    import numpy as np  # a listing doesn't need it

    begin, end = max(node.seconds[0] for node in nodes), min(node.seconds[-1] for node in nodes)
    times = [seconds for seconds in nodes[0].seconds if begin <= seconds <= end]
    total = np.zeros(len(times))
    for node in nodes:
        known = [(at, value) for at, value in zip(node.seconds, values_of(node), strict=True) if value is not None]
        total += np.interp(times, [at for at, _ in known], [value for _, value in known])
    return tuple(datum(at, float(value)) for at, value in zip(times, total, strict=True))
