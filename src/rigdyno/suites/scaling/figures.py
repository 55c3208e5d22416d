"""The figures of the scaling suite: speedup against its ideal, time by phase, and the bandwidth of the link."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.base.units import bytes_from
from rigdyno.reference.published import load_resnet50_scaling
from rigdyno.report.sections import find_verdict, phase_title
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.measured import Measurement
from rigdyno.schema.samples import PHASES
from rigdyno.suites.scaling import tables


def make_figures(curve: Sequence[Measurement], measurements: Sequence[Measurement]) -> tuple[Figure, ...]:
    drawn = (_speedup_figure(curve), _phase_figure(curve), _link_figure(measurements))
    return tuple(figure for figure in drawn if figure is not None)


def _speedup_figure(curve: Sequence[Measurement]) -> Figure | None:
    """Draw speedups instead of rates: the published machines trained larger images on other devices."""
    if len(curve) < 2:
        return None
    own = tuple(_speedup_datum(each, curve[0]) for each in curve)
    published = tuple(
        datum(each.devices, each.speedup)
        for each in load_resnet50_scaling()
        if each.devices <= _largest_published(curve)
    )
    ideal = tuple(datum(x, float(x)) for x in sorted({each.x for each in own if not isinstance(each.x, str)}))
    series = (
        Series(name="this machine", role="measured", data=own),
        Series(name="K80 GPUs", role="published", data=published, source=load_resnet50_scaling()[0].source),
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


def _largest_published(curve: Sequence[Measurement]) -> int:
    """Return the largest number of devices to draw: one published size beyond the measured ones."""
    return 2 * max(each.spec.world_size for each in curve)


def _speedup_datum(each: Measurement, first: Measurement) -> Datum:
    return datum_of(each.spec.world_size, tables.speedup_entry(each, first), verdict=find_verdict(each))


def _phase_figure(curve: Sequence[Measurement]) -> Figure | None:
    timed = [(f"{each.spec.world_size} {_ranks(each)}", each.phases) for each in curve if each.phases is not None]
    if not timed:
        return None
    parts = {name: [(case, tables.mean_seconds(phases, name)) for case, phases in timed] for name in PHASES}
    series = tuple(
        Series(name=phase_title(name), role="measured", data=tuple(datum(*each) for each in found))
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


def _link_figure(measurements: Sequence[Measurement]) -> Figure | None:
    found = next((each for each in measurements if each.spec.workload == "allreduce" and each.kinds), None)
    if found is None:
        return None
    rates = sorted((bytes_from(size), figures.throughput) for size, figures in found.kinds.items())
    own = tuple(datum_of(float(size), rate, verdict=find_verdict(found)) for size, rate in rates)
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
