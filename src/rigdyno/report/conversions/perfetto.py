"""For Perfetto, chrome://tracing and speedscope: a trace in Chrome's JSON form, docs/export.md says what is where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from rigdyno.report.conversions._clock import OnTimeLine, TimeLine
from rigdyno.report.conversions._material import Converted, channels_of, outcome_words, pieces, rows_of
from rigdyno.schema.measured import Measurement
from rigdyno.schema.participant import Participant
from rigdyno.schema.samples import WARM_UP, Header
from rigdyno.store.files import replaced
from rigdyno.store.folder import StoredCell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RUNS, STEPS, PHASES = 1, 1, 2  # the process of the runs themselves; threads of a participant

Event = dict[str, Any]


def write(runs: Sequence[Converted], path: Path) -> None:
    """Event by event: the whole is never in memory."""
    with replaced(path) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        _write_events(file, _events(runs))
        file.write(b"\n]}\n")


def _write_events(file: IO[bytes], events: Iterator[Event]) -> None:
    encode, first = msgspec.json.Encoder().encode, True
    for event in events:
        file.write((b"" if first else b",\n") + encode(event))
        first = False


def _events(runs: Sequence[Converted]) -> Iterator[Event]:
    cells = sorted((cell for run in runs for cell in run.cells), key=lambda cell: cell.record.started_at)
    line, processes = TimeLine(cells), _Processes()
    yield _meta("process_name", RUNS, 0, "runs")
    for number, run in enumerate(runs, 1):
        yield _meta("thread_name", RUNS, number, run.name)
        verdicts = _by_cell(run.measurements)
        for cell in run.cells:
            yield from processes.named(cell)
            yield from _of_cell(cell, line, processes)
            yield from _whole_cell(cell, line, number, verdicts.get(cell.record.cell))


class _Processes:
    """A number for each participant by its name; the arms of a duel run at the same time, and have their own."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def named(self, cell: StoredCell) -> Iterator[Event]:
        for who in cell.record.participants:
            key = (who.id, cell.record.arm or "")
            if key in self._numbers:
                continue
            number = self._numbers[key] = RUNS + 1 + len(self._numbers)
            arm = f", arm {cell.record.arm.upper()}" if cell.record.arm else ""
            yield _meta("process_name", number, 0, f"{who.id} (node {who.node}, {who.role}){arm}")
            if who.rank is not None:
                yield _meta("thread_name", number, STEPS, "steps")
                yield _meta("thread_name", number, PHASES, "phases")

    def of(self, cell: StoredCell, who: Participant) -> int:
        return self._numbers[who.id, cell.record.arm or ""]


def _meta(name: str, process: int, thread: int, value: str) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {"name": value}}


def _of_cell(cell: StoredCell, line: TimeLine, processes: _Processes) -> Iterator[Event]:
    for thread, kind in ((STEPS, "steps"), (PHASES, "phases")):
        for header, rows in rows_of(cell, kind):
            place = (processes.of(cell, header.participant), thread)
            yield from _slices(header, rows, line.of(cell, header.participant), place)
            if thread == STEPS:
                yield from _cut(rows, line.of(cell, header.participant), place)
    for header, rows in rows_of(cell, "telemetry"):
        yield from _counters(header, rows, line.of(cell, header.participant), processes.of(cell, header.participant))


def _slices(header: Header, rows: NDArray[np.void], on_line: OnTimeLine, place: tuple[int, int]) -> Iterator[Event]:
    """A row is a step, a block of short ones, or a phase."""
    process, thread = place
    for piece in pieces(rows):
        starts, ends = on_line(piece["start_ns"]).tolist(), on_line(piece["end_ns"]).tolist()
        others = (piece[name].tolist() for name in ("items", "steps", "kind", "flags"))
        for start, end, items, steps, kind, flags in zip(starts, ends, *others, strict=True):
            yield {
                "ph": "X", "name": header.kinds[kind], "cat": "warm-up" if flags & WARM_UP else "measured",
                "pid": process, "tid": thread, "ts": start / 1000, "dur": max(0, end - start) / 1000,
                "args": {"items": items, "steps": steps},
            }  # fmt: skip


def _cut(rows: NDArray[np.void], on_line: OnTimeLine, place: tuple[int, int]) -> Iterator[Event]:
    """Where the steps that figures rest on begin, kind by kind."""
    import numpy as np

    from rigdyno.analyse.measure import steady_of

    for kind in np.unique(rows["kind"]).tolist():
        own = rows[rows["kind"] == kind]
        steady = steady_of(own)
        at = float(on_line(own["start_ns"][steady.start : steady.start + 1])[0]) / 1000
        yield _instant("warm-up ends", at, place, {"steps before": int(own["steps"][: steady.start].sum())})


def _counters(header: Header, rows: NDArray[np.void], on_line: OnTimeLine, process: int) -> Iterator[Event]:
    """A reading that isn't there is left out: it is no zero."""
    import numpy as np

    for name, unit in channels_of(header):
        known = rows[np.isfinite(rows[name])]
        title = f"{name} ({unit})" if unit else name
        for piece in pieces(known):
            for at, value in zip(on_line(piece["at_ns"]).tolist(), piece[name].tolist(), strict=True):
                yield {"ph": "C", "name": title, "pid": process, "ts": at / 1000, "args": {"value": value}}


def _whole_cell(cell: StoredCell, line: TimeLine, thread: int, found: Measurement | None) -> Iterator[Event]:
    """What can't be placed in time isn't drawn."""
    span = line.span(cell)
    if span is None:
        return
    record, status = cell.record, found.status if found is not None else ""
    arguments: Event = {"workload": record.spec.workload, "options": record.spec.named_options(), "verdict": status}
    arguments |= {"device": record.spec.device, "repeat": record.repeat, "label": record.label or ""}
    arguments["outcome"] = ": ".join(filter(None, outcome_words(record)))
    yield {
        "ph": "X", "name": record.cell, "cat": "cell", "pid": RUNS, "tid": thread,
        "ts": span.start_ns / 1000, "dur": (span.end_ns - span.start_ns) / 1000, "args": arguments,
    }  # fmt: skip
    reasons = found.validity.reasons if found is not None and found.validity is not None else ()
    for reason in reasons:
        yield _instant(f"{status}: {reason.code}", span.end_ns / 1000, (RUNS, thread), {"reason": reason.sentence})


def _instant(name: str, at: float, place: tuple[int, int], arguments: Event) -> Event:
    process, thread = place
    return {"ph": "i", "s": "t", "name": name, "pid": process, "tid": thread, "ts": at, "args": arguments}


def _by_cell(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    pairs = chain.from_iterable(((record.cell, each) for record in each.records) for each in measurements)
    return dict(pairs)
