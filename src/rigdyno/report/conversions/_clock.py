"""One time line for all cells and nodes of a run: that of the first cell's leader, from 0 on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from rigdyno.report.conversions._material import rows_of
from rigdyno.schema.participant import Participant, clock_of
from rigdyno.store.folder import StoredCell
from rigdyno.units import NS_PER_S

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAME_CLOCK_NS = 120 * NS_PER_S  # records tell their start to the second, and starting takes a while

OnTimeLine = Callable[["NDArray[np.int64]"], "NDArray[np.int64]"]


class Span(NamedTuple):
    """By the clock of the cell's leader."""

    start_ns: int
    end_ns: int


class TimeLine:
    """Nodes other than the leader are set right by the pairs of clocks in the record; a cell that ran after a reboot,
    by the wall clock's seconds."""

    def __init__(self, cells: Sequence[StoredCell]) -> None:
        spans = [(cell, span) for cell in cells if (span := _span_of(cell)) is not None]
        ahead = [_wall_ahead_ns(cell, span) for cell, span in spans]
        first = next((each for each in ahead if each is not None), 0)
        shifts = [0 if each is None or abs(each - first) < SAME_CLOCK_NS else each - first for each in ahead]
        zero = min((span.start_ns + shift for (_, span), shift in zip(spans, shifts, strict=True)), default=0)
        self._spans = {cell.folder: span for cell, span in spans}
        self._shifts = {cell.folder: shift - zero for (cell, _), shift in zip(spans, shifts, strict=True)}

    def of(self, cell: StoredCell, who: Participant) -> OnTimeLine:
        shift, correction = self._shifts.get(cell.folder, 0), _correction(cell, who)
        return lambda at_ns: correction(at_ns) + shift

    def span(self, cell: StoredCell) -> Span | None:
        """From its first step or reading to its last, on the time line; None: it has none."""
        span, shift = self._spans.get(cell.folder), self._shifts.get(cell.folder, 0)
        return None if span is None else Span(span.start_ns + shift, span.end_ns + shift)


def _span_of(cell: StoredCell) -> Span | None:
    ends = [
        (int(rows[begin][0]), int(rows[end][-1]))
        for kind, begin, end in (("steps", "start_ns", "end_ns"), ("telemetry", "at_ns", "at_ns"))
        for header, rows in rows_of(cell, kind)
        if len(rows) and header.participant.clock == clock_of(0)
    ]
    return Span(min(start for start, _ in ends), max(end for _, end in ends)) if ends else None


def _wall_ahead_ns(cell: StoredCell, span: Span) -> int | None:
    """How far the wall clock was ahead of the one that the steps were timed by."""
    try:
        started_at = datetime.fromisoformat(cell.record.started_at).timestamp()
    except ValueError:
        return None
    return int(started_at * NS_PER_S) - span.start_ns


def _correction(cell: StoredCell, who: Participant) -> OnTimeLine:
    """Between the two pairs of its clock in proportion to the time, outside as at the nearer one."""
    import numpy as np

    pairs = sorted(
        (pair.at_ns + pair.offset_ns, pair.offset_ns) for pair in cell.record.clocks if pair.clock == who.clock
    )
    if not pairs:
        return lambda at_ns: at_ns
    own, offsets = zip(*pairs, strict=True)
    return lambda at_ns: at_ns - np.interp(at_ns, own, offsets).astype(np.int64)
