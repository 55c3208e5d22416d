"""Export a trace for Perfetto, chrome://tracing and speedscope, in Chrome's JSON format; docs/export.md describes it.

All cells and nodes of a run share one timeline: the clock of the first cell's node 0, starting at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from rigdyno.base.files import atomic_write, disk_errors
from rigdyno.base.units import NS_PER_S
from rigdyno.report.export_data import ExportedRun, describe_outcome, list_channels, read_rows, split_rows
from rigdyno.schema.measured import Measurement
from rigdyno.schema.samples import WARM_UP, Header
from rigdyno.schema.spec import Participant, clock_of
from rigdyno.store.folder import StoredCell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAME_CLOCK_NS = 120 * NS_PER_S  # records state their start to the second, and starting takes a while

RUNS = 1  # process number of the runs themselves

STEPS, PHASES = 1, 2  # thread numbers of a participant

Event = dict[str, Any]

ToTimeline = Callable[["NDArray[np.int64]"], "NDArray[np.int64]"]


def write(runs: Sequence[ExportedRun], path: Path) -> None:
    """Write the trace event by event: it is never in memory as a whole."""
    with disk_errors(path), atomic_write(path) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        _write_events(file, _events(runs))
        file.write(b"\n]}\n")


def _write_events(file: IO[bytes], events: Iterator[Event]) -> None:
    encode, first = msgspec.json.Encoder().encode, True
    for event in events:
        file.write((b"" if first else b",\n") + encode(event))
        first = False


def _events(runs: Sequence[ExportedRun]) -> Iterator[Event]:
    cells = sorted((cell for run in runs for cell in run.cells), key=lambda cell: cell.record.started_at)
    timeline, processes = Timeline(cells), _Processes()
    yield _name_event("process_name", RUNS, 0, "runs")
    for number, run in enumerate(runs, 1):
        yield _name_event("thread_name", RUNS, number, run.name)
        verdicts = _measurements_by_cell(run.measurements)
        for cell in run.cells:
            yield from processes.name_events(cell)
            yield from _cell_events(cell, timeline, processes)
            yield from _cell_summary_events(cell, timeline, number, verdicts.get(cell.record.cell))


class _Processes:
    """Gives each participant a process number. The arms of a duel run at the same time, and have separate ones."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def name_events(self, cell: StoredCell) -> Iterator[Event]:
        for who in cell.record.participants:
            key = (who.id, cell.record.arm or "")
            if key in self._numbers:
                continue
            number = self._numbers[key] = RUNS + 1 + len(self._numbers)
            arm = f", arm {cell.record.arm.upper()}" if cell.record.arm else ""
            yield _name_event("process_name", number, 0, f"{who.id} (node {who.node}, {who.role}){arm}")
            if who.rank is not None:
                yield _name_event("thread_name", number, STEPS, "steps")
                yield _name_event("thread_name", number, PHASES, "phases")

    def number(self, cell: StoredCell, who: Participant) -> int:
        return self._numbers[who.id, cell.record.arm or ""]


def _name_event(name: str, process: int, thread: int, value: str) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {"name": value}}


def _cell_events(cell: StoredCell, timeline: Timeline, processes: _Processes) -> Iterator[Event]:
    for thread, kind in ((STEPS, "steps"), (PHASES, "phases")):
        for header, rows in read_rows(cell, kind):
            track = (processes.number(cell, header.participant), thread)
            yield from _step_events(header, rows, timeline.mapper(cell, header.participant), track)
            if thread == STEPS:
                yield from _warm_up_events(rows, timeline.mapper(cell, header.participant), track)
    for header, rows in read_rows(cell, "telemetry"):
        yield from _telemetry_events(
            header, rows, timeline.mapper(cell, header.participant), processes.number(cell, header.participant)
        )


def _step_events(
    header: Header, rows: NDArray[np.void], to_timeline: ToTimeline, track: tuple[int, int]
) -> Iterator[Event]:
    """Yield a slice per row: a step, a block of short steps, or a phase."""
    process, thread = track
    for chunk in split_rows(rows):
        starts, ends = to_timeline(chunk["start_ns"]).tolist(), to_timeline(chunk["end_ns"]).tolist()
        others = (chunk[name].tolist() for name in ("items", "steps", "kind", "flags"))
        for start, end, items, steps, kind, flags in zip(starts, ends, *others, strict=True):
            yield {
                "ph": "X", "name": header.kinds[kind], "cat": "warm-up" if flags & WARM_UP else "measured",
                "pid": process, "tid": thread, "ts": start / 1000, "dur": max(0, end - start) / 1000,
                "args": {"items": items, "steps": steps},
            }  # fmt: skip


def _warm_up_events(rows: NDArray[np.void], to_timeline: ToTimeline, track: tuple[int, int]) -> Iterator[Event]:
    """Mark the end of the warm-up, for each kind of steps."""
    import numpy as np

    from rigdyno.analyse.process import steady_of

    for kind in np.unique(rows["kind"]).tolist():
        own = rows[rows["kind"] == kind]
        steady = steady_of(own)
        at = float(to_timeline(own["start_ns"][steady.start : steady.start + 1])[0]) / 1000
        yield _instant_event("warm-up ends", at, track, {"steps before": int(own["steps"][: steady.start].sum())})


def _telemetry_events(header: Header, rows: NDArray[np.void], to_timeline: ToTimeline, process: int) -> Iterator[Event]:
    """Yield the telemetry. A missing reading is left out: it isn't zero."""
    import numpy as np

    for name, unit in list_channels(header):
        known = rows[np.isfinite(rows[name])]
        title = f"{name} ({unit})" if unit else name
        for chunk in split_rows(known):
            for at, value in zip(to_timeline(chunk["at_ns"]).tolist(), chunk[name].tolist(), strict=True):
                yield {"ph": "C", "name": title, "pid": process, "ts": at / 1000, "args": {"value": value}}


def _cell_summary_events(
    cell: StoredCell, timeline: Timeline, thread: int, found: Measurement | None
) -> Iterator[Event]:
    """Yield the span of a whole cell and the reasons of its verdict; nothing for a cell without steps and readings."""
    span = timeline.span(cell)
    if span is None:
        return
    record, status = cell.record, found.status if found is not None else ""
    arguments: Event = {"workload": record.spec.workload, "options": record.spec.named_options(), "verdict": status}
    arguments |= {"device": record.spec.device, "repeat": record.repeat, "label": record.label or ""}
    arguments["outcome"] = ": ".join(filter(None, describe_outcome(record)))
    yield {
        "ph": "X", "name": record.cell, "cat": "cell", "pid": RUNS, "tid": thread,
        "ts": span.start_ns / 1000, "dur": (span.end_ns - span.start_ns) / 1000, "args": arguments,
    }  # fmt: skip
    reasons = found.validity.reasons if found is not None and found.validity is not None else ()
    for reason in reasons:
        yield _instant_event(
            f"{status}: {reason.code}", span.end_ns / 1000, (RUNS, thread), {"reason": reason.sentence}
        )


def _instant_event(name: str, at: float, track: tuple[int, int], arguments: Event) -> Event:
    process, thread = track
    return {"ph": "i", "s": "t", "name": name, "pid": process, "tid": thread, "ts": at, "args": arguments}


def _measurements_by_cell(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    pairs = chain.from_iterable(((record.cell, each) for record in each.records) for each in measurements)
    return dict(pairs)


class TraceSpan(NamedTuple):
    """A time span on the clock of node 0."""

    start_ns: int
    end_ns: int


class Timeline:
    """Maps the times of all cells and participants to one timeline.

    Clocks of other nodes are corrected by the clock pairs in the record; a cell that ran after a reboot is placed by
    the seconds of the wall clock.
    """

    def __init__(self, cells: Sequence[StoredCell]) -> None:
        spans = [(cell, span) for cell in cells if (span := _find_span(cell)) is not None]
        ahead = [_wall_ahead_ns(cell, span) for cell, span in spans]
        first = next((each for each in ahead if each is not None), 0)
        shifts = [0 if each is None or abs(each - first) < SAME_CLOCK_NS else each - first for each in ahead]
        zero = min((span.start_ns + shift for (_, span), shift in zip(spans, shifts, strict=True)), default=0)
        self._spans = {cell.folder: span for cell, span in spans}
        self._shifts = {cell.folder: shift - zero for (cell, _), shift in zip(spans, shifts, strict=True)}

    def mapper(self, cell: StoredCell, who: Participant) -> ToTimeline:
        """Return a function that maps times of a participant's clock to the timeline."""
        shift, correction = self._shifts.get(cell.folder, 0), _correct_clock(cell, who)
        return lambda at_ns: correction(at_ns) + shift

    def span(self, cell: StoredCell) -> TraceSpan | None:
        """Return the span from the first step or reading of a cell to its last; None if it has none."""
        span, shift = self._spans.get(cell.folder), self._shifts.get(cell.folder, 0)
        return None if span is None else TraceSpan(span.start_ns + shift, span.end_ns + shift)


def _find_span(cell: StoredCell) -> TraceSpan | None:
    ends = [
        (int(rows[begin][0]), int(rows[end][-1]))
        for kind, begin, end in (("steps", "start_ns", "end_ns"), ("telemetry", "at_ns", "at_ns"))
        for header, rows in read_rows(cell, kind)
        if len(rows) and header.participant.clock == clock_of(0)
    ]
    return TraceSpan(min(start for start, _ in ends), max(end for _, end in ends)) if ends else None


def _wall_ahead_ns(cell: StoredCell, span: TraceSpan) -> int | None:
    """Return how far the wall clock was ahead of the clock of the steps; None if the start is unknown."""
    try:
        started_at = datetime.fromisoformat(cell.record.started_at).timestamp()
    except ValueError:
        return None
    return int(started_at * NS_PER_S) - span.start_ns


def _correct_clock(cell: StoredCell, who: Participant) -> ToTimeline:
    """Return a function that corrects a participant's clock: linear between two clock pairs, constant outside."""
    import numpy as np

    pairs = sorted(
        (pair.at_ns + pair.offset_ns, pair.offset_ns) for pair in cell.record.clocks if pair.clock == who.clock
    )
    if not pairs:
        return lambda at_ns: at_ns
    own, offsets = zip(*pairs, strict=True)
    return lambda at_ns: at_ns - np.interp(at_ns, own, offsets).astype(np.int64)
