"""Make the figures of one process from its samples: a timeline, and the distribution of its step times.

Long series are reduced for the drawing such that no peak is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rigdyno.analyse.process import CellData, facts_of, steady_of
from rigdyno.analyse.streams import Floats, Rows, check_telemetry, items, row_seconds, span_of, step_durations, streams
from rigdyno.base.errors import RigdynoError
from rigdyno.base.units import NS_PER_S, rate_unit
from rigdyno.report.over_time import TIME, describe_warm_up_cut, find_warm_up_cut
from rigdyno.report.text import format_scaled
from rigdyno.schema.estimate import Validity
from rigdyno.schema.figure import Axis, Datum, Event, Figure, Panel, Period, Series, datum, figure_key
from rigdyno.schema.measured import Measurement
from rigdyno.schema.samples import CLOCK_JUMPED
from rigdyno.schema.spec import Participant
from rigdyno.store.folder import StoredCell

BUCKETS = 300  # two values each: more than a drawing has pixels for

_LONG_PAUSE = 4.0  # times the median time between two samples; after a longer pause, samples are missing

MOST_PROCESSES = 12  # processes with figures: the first one of each configuration

MOST_STREAMS = 4  # step streams (rank and kind) in one panel

MOST_PANELS = 6

BINS = 40

OUTLIERS = 99.5  # percentile of step times; a histogram beyond it would be mostly empty

_DEVICE_CHANNEL = re.compile(r"(gpu\d+)_(\w+)")


class StepStream(NamedTuple):
    """The steps of one kind of one rank."""

    who: Participant
    kind: str
    rows: Rows

    def name(self, *, several: bool) -> str:
        return f"{self.kind}, rank {self.who.rank}" if several else "rate"


class NamedChannel(NamedTuple):
    """A telemetry channel with its name for readers. Channels of a device have the device as a prefix."""

    channel: str
    quantity: str
    unit: str


CHANNELS = (
    NamedChannel("power_w", "power", "W"),
    NamedChannel("utilisation", "usage", "share"),
    NamedChannel("worker_cpu_share", "worker CPU", "cores"),
    NamedChannel("run_queue_wait_share", "core wait", "cores"),
    NamedChannel("frequency_mhz", "clock", "MHz"),
    NamedChannel("sm_clock_mhz", "clock", "MHz"),
    NamedChannel("temperature_c", "temperature", "°C"),
    NamedChannel("worker_memory_bytes", "memory", "B"),
)


def draw_process_figures(cells: Sequence[StoredCell], measurements: Sequence[Measurement]) -> Iterator[Figure]:
    """Yield the figures of the first process of each configuration."""
    judged = {measurement.spec.key(): measurement.validity for measurement in measurements}
    first: dict[str, StoredCell] = {}
    for cell in cells:
        if cell.record.is_figure and cell.record.spec.key() in judged:
            first.setdefault(cell.record.spec.key(), cell)
    for key, cell in list(first.items())[:MOST_PROCESSES]:
        try:
            data = CellData(cell.record, cell.steps(), cell.telemetry(), cell.phases())
            yield from _make_figures(data, judged[key])
        except RigdynoError:
            continue  # the warnings of the view name what can't be read


def _make_figures(data: CellData, validity: Validity | None) -> Iterator[Figure]:
    ranks = [(header.participant, streams(header, rows)) for header, rows in data.steps]
    found = [StepStream(who, kind, rows) for who, kinds in ranks for kind, rows in kinds.items()]
    if found:
        yield _make_timeline(data, found, validity)
        yield _make_distribution(data, found[0], validity)


def _make_timeline(data: CellData, found: Sequence[StepStream], validity: Validity | None) -> Figure:
    """Return the rate of each rank and kind over time, above the telemetry of the machine on the same clock."""
    first = found[0]
    began, steady = int(first.rows["start_ns"][0]), steady_of(first.rows)
    cut = find_warm_up_cut(first.rows, steady)
    whole = (int(first.rows["end_ns"][-1]) - began) / NS_PER_S
    left_out = len(found) - MOST_STREAMS
    panels = (_make_rate_panel(data, found[:MOST_STREAMS], began), *_make_channel_panels(data, first, began))
    return Figure(
        key=figure_key("time", data.record.cell),
        kind="timeline",
        title=f"Over time: {data.record.cell}",
        x=TIME,
        panels=panels[:MOST_PANELS],
        events=(*(() if cut is None else (replace(cut, label="warm-up cut"),)), *_find_clock_jumps(first.rows, began)),
        periods=() if cut is None else _make_periods(cut.x, whole),
        caption=(
            f"Steps of the first process, and what the machine did meanwhile; "
            f"{describe_warm_up_cut(first.rows, steady)}"
        ),
        notes=(f"{left_out} more ranks or kinds are not drawn.",) if left_out > 0 else (),
        **_verdict_fields(validity),
    )


def _make_periods(cut: float, whole: float) -> tuple[Period, ...]:
    return Period(name="warm-up", start=0.0, end=cut), Period(name="measured", start=cut, end=whole)


def _verdict_fields(validity: Validity | None) -> dict[str, Any]:
    if validity is None:
        return {}
    return {"verdict": validity.verdict, "reasons": tuple(reason.code for reason in validity.reasons)}


def _make_rate_panel(data: CellData, found: Sequence[StepStream], began: int) -> Panel:
    unit = rate_unit(facts_of(data.record, [found[0].rows]).unit)
    series = []
    for stream in found:
        rows = stream.rows
        middles = ((rows["start_ns"] - began) + (rows["end_ns"] - began)) / (2 * NS_PER_S)
        name = stream.name(several=len(found) > 1)
        series.append(_make_series(name, middles, items(rows) / row_seconds(rows)))
    return Panel(title="rate", y=Axis(quantity="rate", unit=unit), series=tuple(series))


def _make_series(name: str, at: Floats, values: Floats) -> Series:
    kept = reduce_points(np.asarray(at, dtype=np.float64), np.asarray(values, dtype=np.float64))
    return Series(name=name, role="measured", data=tuple(map(datum, kept.at.tolist(), kept.values.tolist())))


def _find_clock_jumps(rows: Rows, began: int) -> tuple[Event, ...]:
    jumped = rows[(rows["flags"] & CLOCK_JUMPED) != 0]
    at = ((jumped["start_ns"] - began) / NS_PER_S).tolist()
    return tuple(Event(x=x, label="the clock jumped", kind="clock_jumped") for x in at[:MOST_STREAMS])


def _make_channel_panels(data: CellData, first: StepStream, began: int) -> Iterator[Panel]:
    """Yield a panel for each telemetry channel of the first rank's node that was sampled and could be read."""
    telemetry = data.telemetry_of(first.who)
    if telemetry is None or len(telemetry) == 0:
        return
    check_telemetry(telemetry)
    span = span_of(first.rows)
    inside = telemetry[(telemetry["at_ns"] >= span.start_ns) & (telemetry["at_ns"] <= span.end_ns)]
    at = (inside["at_ns"] - began) / NS_PER_S
    for shown in CHANNELS:
        names = [name for name in inside.dtype.names or () if _is_channel(name, shown.channel)]
        series = tuple(_make_series(_device_name(name) or shown.quantity, at, inside[name]) for name in names)
        series = tuple(each for each in series if any(value.value is not None for value in each.data))
        if series:
            yield Panel(title=shown.quantity, y=Axis(quantity=shown.quantity, unit=shown.unit), series=series)


def _is_channel(name: str, channel: str) -> bool:
    return name == channel or ((match := _DEVICE_CHANNEL.fullmatch(name)) is not None and match[2] == channel)


def _device_name(name: str) -> str:
    match = _DEVICE_CHANNEL.fullmatch(name)
    return "" if match is None else match[1]


def _make_distribution(data: CellData, stream: StepStream, validity: Validity | None) -> Figure:
    """Return a histogram of the step times; of block means where steps are too short to be timed one by one."""
    rows, steady = stream.rows, steady_of(stream.rows)
    seconds = step_durations(rows)
    edges = _bin_edges(seconds)
    kept, cut = seconds[steady.start :], seconds[: steady.start]
    blocks = int(rows["steps"].max()) > 1
    what = "blocks of steps" if blocks else "steps"
    series = [_make_histogram("kept", kept, edges)]
    if len(cut):
        series.append(replace(_make_histogram("cut: warm-up", cut, edges), cut=True))
    median = float(np.median(kept if len(kept) else seconds))
    beyond = int((seconds > edges[-1]).sum())
    return Figure(
        key=figure_key("steps", data.record.cell),
        kind="distribution",
        title=f"How long steps took: {data.record.cell}",
        x=Axis(quantity="time of a step", unit="s"),
        panels=(Panel(y=Axis(quantity=what), series=tuple(series)),),
        events=(Event(x=median, label=f"median {format_scaled(median, 's')}"),) if median <= edges[-1] else (),
        caption=f"{len(kept):,} {what} were kept and {len(cut):,} cut",
        notes=_note_outliers(beyond, float(seconds.max()), what),
        **_verdict_fields(validity),
    )


def _note_outliers(count: int, longest: float, what: str) -> tuple[str, ...]:
    return (f"{count:,} {what} took longer, up to {format_scaled(longest, 's')}, and are not drawn.",) if count else ()


def _bin_edges(seconds: Floats) -> Floats:
    """Return the edges of bins of equal width that cover nearly all steps."""
    low, high = float(seconds.min()), float(np.percentile(seconds, OUTLIERS))
    if float(seconds.max()) <= 2 * high - low:
        high = float(seconds.max())
    return np.linspace(low, high if high > low else low * 1.01, BINS + 1)


def _make_histogram(name: str, seconds: Floats, edges: Floats) -> Series:
    counts, _ = np.histogram(seconds, edges)
    data = tuple(
        Datum(x=left, x_end=right, value=float(count))
        for left, right, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    )
    return Series(name=name, role="measured", data=data)


class ReducedPoints(NamedTuple):
    at: NDArray[np.float64]
    values: NDArray[np.float64]  # NaN for a gap


def reduce_points(at: NDArray[np.float64], values: NDArray[np.float64], buckets: int = BUCKETS) -> ReducedPoints:
    """Reduce a series to the lowest and the highest value of each bucket of time. Short series stay unchanged.

    A mean would hide the peaks that a reader looks for. Missing samples leave a gap: they couldn't be read (NaN), or
    none was taken for much longer than usual.
    """
    at, values = _insert_gaps(at, values)
    if len(at) <= 2 * buckets:
        return ReducedPoints(at, values)
    index = np.minimum(((at - at[0]) * (buckets / max(at[-1] - at[0], 1e-300))).astype(np.int64), buckets - 1)
    first_of = np.flatnonzero(np.diff(index, prepend=-1))
    kept = [
        position
        for start, end in zip(first_of, [*first_of[1:], len(at)], strict=True)
        for position in _find_extremes(values[start:end], int(start))
    ]
    return ReducedPoints(at[kept], values[kept])


def _find_extremes(values: NDArray[np.float64], start: int) -> list[int]:
    """Return the positions of the lowest value, the highest value and the first gap, in order."""
    known = np.isfinite(values)
    gap = [start + int(np.argmin(known))] if not known.all() else []
    if not known.any():
        return gap
    lowest, highest = int(np.nanargmin(values)), int(np.nanargmax(values))
    return sorted({start + lowest, start + highest, *gap})


def _insert_gaps(at: NDArray[np.float64], values: NDArray[np.float64]) -> ReducedPoints:
    """Insert a NaN in the middle of each long pause."""
    values = np.where(np.isfinite(values), values, np.nan)
    if len(at) < 3:
        return ReducedPoints(at, values)
    steps = np.diff(at)
    pauses = np.flatnonzero(steps > _LONG_PAUSE * np.median(steps))
    middles = (at[pauses] + at[pauses + 1]) / 2
    return ReducedPoints(np.insert(at, pauses + 1, middles), np.insert(values, pauses + 1, np.nan))
