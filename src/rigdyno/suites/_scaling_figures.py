"""The figures of the scaling suite: the speedup against its ideal, where the time goes, what the link carries."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.reference.published import resnet50_scaling
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.measured import Measurement
from rigdyno.schema.samples import PHASES
from rigdyno.suites import _scaling_tables as tables
from rigdyno.suites._soak import verdict_of
from rigdyno.units import bytes_from


def figures(curve: Sequence[Measurement], measurements: Sequence[Measurement]) -> tuple[Figure, ...]:
    drawn = (_speedups(curve), _spent(curve), _link(measurements))
    return tuple(figure for figure in drawn if figure is not None)


def _speedups(curve: Sequence[Measurement]) -> Figure | None:
    """Speedups, not rates: the published machines trained larger images on other devices."""
    if len(curve) < 2:
        return None
    own = tuple(_speedup(each, curve[0]) for each in curve)
    published = tuple(datum(each.devices, each.speedup) for each in resnet50_scaling() if each.devices <= _reach(curve))
    ideal = tuple(datum(x, float(x)) for x in sorted({each.x for each in own if not isinstance(each.x, str)}))
    series = (
        Series(name="this rig", role="measured", data=own),
        Series(name="K80 GPUs", role="published", data=published, source=resnet50_scaling()[0].source),
        Series(name="ideal", role="ideal", data=ideal),
    )
    return Figure(
        key="speedup",
        kind="curve",
        title=f"Speedup by number of {tables.devices_word(curve[0])}",
        x=Axis(quantity=tables.devices_word(curve[0]), along="devices"),
        panels=(Panel(y=Axis(quantity="speedup over one", unit="x"), series=series),),
        caption="ResNet-50; intervals take the worst of both sizes",
        counted="processes",
    )


def _reach(curve: Sequence[Measurement]) -> int:
    """As far as the measured ones go, and one published size further."""
    return 2 * max(each.spec.world_size for each in curve)


def _speedup(each: Measurement, first: Measurement) -> Datum:
    found = tables.speedup(each, first)
    if not isinstance(found, Estimate | Number | Missing):
        found = Missing(reason=each.why_missing())
    return datum_of(each.spec.world_size, found, verdict=verdict_of(each))


def _spent(curve: Sequence[Measurement]) -> Figure | None:
    timed = [(f"{each.spec.world_size} {_ranks(each)}", each.phases) for each in curve if each.phases is not None]
    if not timed:
        return None
    parts = {name: [(case, tables.mean_seconds(phases, name)) for case, phases in timed] for name in PHASES}
    series = tuple(
        Series(name=tables.phase_title(name), role="measured", data=tuple(datum(*each) for each in found))
        for name, found in parts.items()
        if any(seconds > 0 for _, seconds in found)
    )
    return Figure(
        key="where-time-goes",
        kind="stack",
        title="Where the time of a step goes",
        x=Axis(quantity=tables.devices_word(curve[0]), along="category"),
        panels=(Panel(y=Axis(quantity="time of a step", unit="s"), series=series),),
        caption="Means over all steps and ranks; exposed: waiting for gradients that the backward pass didn't hide",
    )


def _ranks(each: Measurement) -> str:
    return tables.devices_word(each).removesuffix("s") + ("" if each.spec.world_size == 1 else "s")


def _link(measurements: Sequence[Measurement]) -> Figure | None:
    found = next((each for each in measurements if each.spec.workload == "allreduce" and each.kinds), None)
    if found is None:
        return None
    rates = sorted((bytes_from(size), figures.throughput) for size, figures in found.kinds.items())
    own = tuple(datum_of(float(size), rate, verdict=verdict_of(found)) for size, rate in rates)
    return Figure(
        key="link",
        kind="curve",
        title=f"What the link between {found.spec.world_size} ranks carries",
        x=Axis(quantity="all-reduce of", unit="B", along="size", scale="log"),
        panels=(
            Panel(
                y=Axis(quantity="bus bandwidth", unit="B/s"),
                series=(Series(name="measured", role="measured", data=own),),
            ),
        ),
        caption="Bus bandwidth by the size of what is summed",
        counted="steps",
    )
