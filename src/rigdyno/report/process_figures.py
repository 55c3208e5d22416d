"""The figures of one process, from its samples: what it did over time, and how long its steps took."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from rigdyno.analyse.measure import CellData, facts_of, steady_of
from rigdyno.analyse.streams import Floats, Rows, check_telemetry, items, row_seconds, step_seconds, streams
from rigdyno.analyse.telemetry import span_of
from rigdyno.analyse.thinning import thinned
from rigdyno.errors import RigdynoError
from rigdyno.report.format_entry import scaled_text
from rigdyno.report.over_time import TIME, cut_event, cut_sentence
from rigdyno.schema.estimate import Validity
from rigdyno.schema.figure import Axis, Datum, Event, Figure, Panel, Period, Series, datum, figure_key
from rigdyno.schema.measured import Measurement
from rigdyno.schema.participant import Participant
from rigdyno.schema.samples import CLOCK_JUMPED
from rigdyno.store.folder import StoredCell
from rigdyno.units import NS_PER_S, rate_unit

MOST_PROCESSES = 12  # of which figures are made: the first of each configuration
MOST_STREAMS = 4  # of ranks and kinds, in one panel
MOST_PANELS = 6
BINS = 40
OUTLIERS = 99.5  # percentile of the steps behind which a histogram would be mostly empty


class Stream(NamedTuple):
    """The steps of one kind of one rank."""

    who: Participant
    kind: str
    rows: Rows

    def name(self, *, several: bool) -> str:
        return f"{self.kind}, rank {self.who.rank}" if several else "rate"


class Shown(NamedTuple):
    """A channel of telemetry as people know it. One that is there for each device has the device before its name."""

    channel: str
    quantity: str
    unit: str


SHOWN = (
    Shown("power_w", "power", "W"),
    Shown("utilisation", "usage", "share"),
    Shown("worker_cpu_share", "worker CPU", "cores"),
    Shown("run_queue_wait_share", "core wait", "cores"),
    Shown("frequency_mhz", "clock", "MHz"),
    Shown("sm_clock_mhz", "clock", "MHz"),
    Shown("temperature_c", "temperature", "°C"),
    Shown("worker_memory_bytes", "memory", "B"),
)
_OF_DEVICE = re.compile(r"(gpu\d+)_(\w+)")


def process_figures(cells: Sequence[StoredCell], measurements: Sequence[Measurement]) -> Iterator[Figure]:
    """Of the first process of each configuration."""
    judged = {measurement.spec.key(): measurement.validity for measurement in measurements}
    first: dict[str, StoredCell] = {}
    for cell in cells:
        if cell.record.is_figure and cell.record.spec.key() in judged:
            first.setdefault(cell.record.spec.key(), cell)
    for key, cell in list(first.items())[:MOST_PROCESSES]:
        try:
            data = CellData(cell.record, cell.steps(), cell.telemetry(), cell.phases())
            yield from _figures(data, judged[key])
        except RigdynoError:
            continue  # the view's warnings say what can't be read


def _figures(data: CellData, validity: Validity | None) -> Iterator[Figure]:
    ranks = [(header.participant, streams(header, rows)) for header, rows in data.steps]
    found = [Stream(who, kind, rows) for who, kinds in ranks for kind, rows in kinds.items()]
    if found:
        yield _time_line(data, found, validity)
        yield _distribution(data, found[0], validity)


def _time_line(data: CellData, found: Sequence[Stream], validity: Validity | None) -> Figure:
    """The rate of each rank and kind, and below it what the machine did, by the same clock."""
    first = found[0]
    began, steady = int(first.rows["start_ns"][0]), steady_of(first.rows)
    cut = cut_event(first.rows, steady)
    whole = (int(first.rows["end_ns"][-1]) - began) / NS_PER_S
    left_out = len(found) - MOST_STREAMS
    return Figure(
        key=figure_key("time", data.record.cell),
        kind="timeline",
        title=f"Over time: {data.record.cell}",
        x=TIME,
        panels=(_rates(data, found[:MOST_STREAMS], began), *_channels(data, first, began))[:MOST_PANELS],
        events=(*(() if cut is None else (replace(cut, label="warm-up cut"),)), *_jumps(first.rows, began)),
        periods=() if cut is None else _periods(cut.x, whole),
        caption=f"Steps of the first process, and what the machine did meanwhile; {cut_sentence(first.rows, steady)}",
        notes=(f"{left_out} more ranks or kinds are not drawn.",) if left_out > 0 else (),
        **_verdict(validity),
    )


def _periods(cut: float, whole: float) -> tuple[Period, ...]:
    return Period(name="warm-up", start=0.0, end=cut), Period(name="measured", start=cut, end=whole)


def _verdict(validity: Validity | None) -> dict[str, Any]:
    if validity is None:
        return {}
    return {"verdict": validity.verdict, "reasons": tuple(reason.code for reason in validity.reasons)}


def _rates(data: CellData, found: Sequence[Stream], began: int) -> Panel:
    unit = rate_unit(facts_of(data.record, [found[0].rows]).unit)
    series = []
    for stream in found:
        rows = stream.rows
        middles = ((rows["start_ns"] - began) + (rows["end_ns"] - began)) / (2 * NS_PER_S)
        name = stream.name(several=len(found) > 1)
        series.append(_series(name, middles, items(rows) / row_seconds(rows)))
    return Panel(title="rate", y=Axis(quantity="rate", unit=unit), series=tuple(series))


def _series(name: str, at: Floats, values: Floats) -> Series:
    kept = thinned(np.asarray(at, dtype=np.float64), np.asarray(values, dtype=np.float64))
    return Series(name=name, role="measured", data=tuple(map(datum, kept.at.tolist(), kept.values.tolist())))


def _jumps(rows: Rows, began: int) -> tuple[Event, ...]:
    jumped = rows[(rows["flags"] & CLOCK_JUMPED) != 0]
    at = ((jumped["start_ns"] - began) / NS_PER_S).tolist()
    return tuple(Event(x=x, label="the clock jumped", kind="clock_jumped") for x in at[:MOST_STREAMS])


def _channels(data: CellData, first: Stream, began: int) -> Iterator[Panel]:
    """Of the node that the first rank ran on; none where nobody sampled, or a channel couldn't be read."""
    telemetry = data.telemetry_of(first.who)
    if telemetry is None or len(telemetry) == 0:
        return
    check_telemetry(telemetry)
    span = span_of(first.rows)
    inside = telemetry[(telemetry["at_ns"] >= span.start_ns) & (telemetry["at_ns"] <= span.end_ns)]
    at = (inside["at_ns"] - began) / NS_PER_S
    for shown in SHOWN:
        names = [name for name in inside.dtype.names or () if _is_of(name, shown.channel)]
        series = tuple(_series(_who(name) or shown.quantity, at, inside[name]) for name in names)
        series = tuple(each for each in series if any(value.value is not None for value in each.data))
        if series:
            yield Panel(title=shown.quantity, y=Axis(quantity=shown.quantity, unit=shown.unit), series=series)


def _is_of(name: str, channel: str) -> bool:
    return name == channel or ((match := _OF_DEVICE.fullmatch(name)) is not None and match[2] == channel)


def _who(name: str) -> str:
    match = _OF_DEVICE.fullmatch(name)
    return "" if match is None else match[1]


def _distribution(data: CellData, stream: Stream, validity: Validity | None) -> Figure:
    """Of single steps, or of the means of blocks where steps are too short to be timed one by one."""
    rows, steady = stream.rows, steady_of(stream.rows)
    seconds = step_seconds(rows)
    edges = _edges(seconds)
    kept, cut = seconds[steady.start :], seconds[: steady.start]
    blocks = int(rows["steps"].max()) > 1
    what = "blocks of steps" if blocks else "steps"
    series = [_binned("kept", kept, edges)]
    if len(cut):
        series.append(replace(_binned("cut: warm-up", cut, edges), cut=True))
    median = float(np.median(kept if len(kept) else seconds))
    beyond = int((seconds > edges[-1]).sum())
    return Figure(
        key=figure_key("steps", data.record.cell),
        kind="distribution",
        title=f"How long steps took: {data.record.cell}",
        x=Axis(quantity="time of a step", unit="s"),
        panels=(Panel(y=Axis(quantity=what), series=tuple(series)),),
        events=(Event(x=median, label=f"median {scaled_text(median, 's')}"),) if median <= edges[-1] else (),
        caption=f"{len(kept):,} {what} were kept and {len(cut):,} cut",
        notes=_beyond(beyond, float(seconds.max()), what),
        **_verdict(validity),
    )


def _beyond(count: int, longest: float, what: str) -> tuple[str, ...]:
    return (f"{count:,} {what} took longer and are not drawn, at most {scaled_text(longest, 's')}.",) if count else ()


def _edges(seconds: Floats) -> Floats:
    """Bins of equal width as far as nearly all steps reach."""
    low, high = float(seconds.min()), float(np.percentile(seconds, OUTLIERS))
    if float(seconds.max()) <= 2 * high - low:
        high = float(seconds.max())
    return np.linspace(low, high if high > low else low * 1.01, BINS + 1)


def _binned(name: str, seconds: Floats, edges: Floats) -> Series:
    counts, _ = np.histogram(seconds, edges)
    data = tuple(
        Datum(x=left, x_end=right, value=float(count))
        for left, right, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    )
    return Series(name=name, role="measured", data=data)
