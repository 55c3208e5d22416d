"""Live figures of a cell that is under way, read from the rows its worker has written so far."""

from __future__ import annotations

import struct
from collections import deque
from pathlib import Path

from rigdyno.schema.samples import STEP_STRUCT
from rigdyno.units import NS_PER_S, seconds_of_ns

RECENT_NS = 2 * NS_PER_S
_ROW = struct.Struct(STEP_STRUCT)


class LiveRate:
    """Reads only what is new: asking twice a second costs next to nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset: int | None = None  # of the next row; None until the header is there
        self._recent: deque[tuple[int, int, float]] = deque()
        self.counts = False  # whether a step is more than one item

    def rate(self) -> float | None:
        """Items per second over the last two seconds; None before the first row."""
        for start_ns, end_ns, items, steps, *_ in _ROW.iter_unpack(self._new_rows()):
            self._recent.append((start_ns, end_ns, items))
            self.counts = self.counts or items != steps
        while len(self._recent) > 1 and self._recent[-1][1] - self._recent[0][1] > RECENT_NS:
            self._recent.popleft()
        spent_ns = sum(end_ns - start_ns for start_ns, end_ns, _ in self._recent)
        return sum(items for *_, items in self._recent) / seconds_of_ns(spent_ns) if spent_ns else None

    def _new_rows(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if self._offset is None:
                    header = file.readline()
                    self._offset = len(header) if header.endswith(b"\n") else None
                if self._offset is None:
                    return b""
                file.seek(self._offset)
                rows = file.read()
        except FileNotFoundError:
            return b""
        whole = len(rows) - len(rows) % _ROW.size
        self._offset += whole
        return rows[:whole]
