"""What a run is converted from, and rows in pieces that need little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rigdyno.errors import DamagedRun, RigdynoError
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, Failed, RunHead, RunRecord
from rigdyno.schema.samples import Header
from rigdyno.store.folder import StoredCell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PIECE = 20_000  # rows


@dataclass(frozen=True)
class Converted:
    """One run, as it is stored, and what its samples say."""

    name: str
    head: RunHead
    cells: Sequence[StoredCell]
    measurements: Sequence[Measurement]


Rows = tuple[Header, "NDArray[np.void]"]


def rows_of(cell: StoredCell, kind: str) -> tuple[Rows, ...]:
    """Rows of a file that can't be read are none: the report names it."""
    try:
        found = {"steps": cell.steps, "phases": cell.phases, "telemetry": cell.telemetry}[kind]()
        for header, rows in found:
            _require(header, rows, kind)
    except RigdynoError:
        return ()
    return found


def _require(header: Header, rows: NDArray[np.void], kind: str) -> None:
    from rigdyno.analyse.streams import check_rows, check_telemetry

    if kind == "telemetry":
        check_telemetry(rows)
        if len(header.channels) != len(header.fields) - 1:
            raise DamagedRun("the telemetry has channels that aren't described")
    else:
        check_rows(header, rows)


def pieces(rows: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    for start in range(0, len(rows), PIECE):
        yield rows[start : start + PIECE]


def channels_of(header: Header) -> list[tuple[str, str]]:
    """Names and units, in the order of the fields behind the time."""
    return list(zip((name for name, _ in header.fields[1:]), (each.unit for each in header.channels), strict=True))


def outcome_words(record: RunRecord) -> tuple[str, str | None]:
    """How a cell ended, and why, unless it is complete."""
    if isinstance(record.outcome, Completed):
        return "completed", None
    if isinstance(record.outcome, Failed):
        return "failed", record.outcome.message
    return "skipped", record.outcome.reason
