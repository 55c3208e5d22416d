"""Memory over the batch up to the wall, and how fast each size is."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.measured import Measurement
from rigdyno.suites._fit_curves import FitCurve, epoch_seconds, memory_of, pace
from rigdyno.suites._soak import verdict_of
from rigdyno.units import rate_unit, show_bytes


def fit_figures(curves: Sequence[FitCurve]) -> tuple[Figure, ...]:
    drawn = (_memory(curves), _pace(curves))
    return tuple(figure for figure in drawn if figure is not None and not figure.is_empty)


def _memory(curves: Sequence[FitCurve]) -> Figure | None:
    """One wall: searches in several memories have no common picture."""
    allowed = {curve.allowed_bytes for curve in curves}
    measured = [Series(name=curve.name, role="measured", data=_peaks(curve)) for curve in curves]
    values = [float(each.x) for series in measured for each in series.data]
    if len(allowed) != 1 or not values:
        return None
    wall = float(allowed.pop())
    ends = (min(values), max(values))
    limit = Series(name="the wall", role="limit", data=tuple(datum(x, wall) for x in dict.fromkeys(ends)))
    return Figure(
        key="memory-by-batch",
        kind="curve",
        title=f"Memory by {curves[0].option}",
        x=_axis(curves),
        panels=(Panel(y=Axis(quantity="memory", unit="B"), series=(*measured, limit, *_lines(curves))),),
        caption=f"Peaks of the tries and of what was measured; the wall is at {show_bytes(int(wall))}",
        counted="processes",
    )


def _axis(curves: Sequence[FitCurve]) -> Axis:
    return Axis(quantity=curves[0].option, along="batch", scale="log")


def _peaks(curve: FitCurve) -> tuple[Datum, ...]:
    """The most that each value took."""
    peaks: dict[int, int] = {}
    sized = [(curve.value_of(each), memory_of(each)) for each in curve.sizes]
    for value, memory in [*((each.value, each.memory_bytes) for each in curve.attempts), *sized]:
        if value is not None and memory is not None:
            peaks[value] = max(memory, peaks.get(value, 0))
    return tuple(datum(value, float(peaks[value])) for value in sorted(peaks))


def _lines(curves: Sequence[FitCurve]) -> list[Series]:
    """Fixed and so much for each sample, as far as tries went."""
    found = []
    for curve in curves:
        line, values = curve.line, sorted({each.value for each in curve.attempts if each.memory_bytes is not None})
        if line is not None:
            data = tuple(datum(value, max(0.0, line.at(value))) for value in values)
            found.append(Series(name=f"{curve.name}, fitted", role="predicted", data=data))
    return found


def _pace(curves: Sequence[FitCurve]) -> Figure | None:
    timed = [each for curve in curves for each in curve.sizes if each.kinds]
    if len(timed) < 2:
        return None
    epochs = all(epoch_seconds(each) is not None for each in timed)
    units = {rate_unit(each.facts.unit) for each in timed}
    if not epochs and len(units) != 1:
        return None
    series = tuple(Series(name=curve.name, role="measured", data=_paces(curve, epochs=epochs)) for curve in curves)
    y = Axis(quantity="epoch", unit="s") if epochs else Axis(quantity="rate", unit=units.pop())
    return Figure(
        key="epoch-by-batch" if epochs else "rate-by-batch",
        kind="curve",
        title=f"Time of an epoch by {curves[0].option}" if epochs else f"Rate by {curves[0].option}",
        x=_axis(curves),
        panels=(Panel(y=y, series=series),),
        caption="Parts of the largest that fits, each measured by itself",
        counted="steps",
    )


def _paces(curve: FitCurve, *, epochs: bool) -> tuple[Datum, ...]:
    known = [(value, each) for each in curve.sizes if (value := curve.value_of(each)) is not None]
    return tuple(_timed(value, each, epochs=epochs) for value, each in sorted(known, key=lambda pair: pair[0]))


def _timed(value: int, measurement: Measurement, *, epochs: bool) -> Datum:
    entry = pace(measurement) if epochs else measurement.throughput()
    return datum_of(value, entry, verdict=verdict_of(measurement))
