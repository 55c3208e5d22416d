"""Read runs for exports: whole runs, and their rows in chunks that need little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rigdyno.base.errors import DamagedRun, RigdynoError
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, Failed, RunHead, RunRecord
from rigdyno.schema.samples import Header
from rigdyno.store.folder import StoredCell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK_ROWS = 20_000

Rows = tuple[Header, "NDArray[np.void]"]


@dataclass(frozen=True)
class ExportedRun:
    """A stored run and the measurements derived from its samples."""

    name: str
    head: RunHead
    cells: Sequence[StoredCell]
    measurements: Sequence[Measurement]


def list_measurements(runs: Sequence[ExportedRun]) -> list[Measurement]:
    return [each for run in runs for each in run.measurements]


def read_rows(cell: StoredCell, kind: str) -> tuple[Rows, ...]:
    """Return the rows of a cell's files; empty if one can't be read, which the report says."""
    try:
        found = {"steps": cell.steps, "phases": cell.phases, "telemetry": cell.telemetry}[kind]()
        for header, rows in found:
            _check_rows(header, rows, kind)
    except RigdynoError:
        return ()
    return found


def _check_rows(header: Header, rows: NDArray[np.void], kind: str) -> None:
    from rigdyno.analyse.streams import check_rows, check_telemetry

    if kind == "telemetry":
        check_telemetry(rows)
        if len(header.channels) != len(header.fields) - 1:
            raise DamagedRun("the telemetry has channels that aren't described")
    else:
        check_rows(header, rows)


def split_rows(rows: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


def list_channels(header: Header) -> list[tuple[str, str]]:
    """Return the name and unit of each channel, in the order of the fields after the time."""
    return list(zip((name for name, _ in header.fields[1:]), (each.unit for each in header.channels), strict=True))


def describe_outcome(record: RunRecord) -> tuple[str, str | None]:
    """Return how a cell ended, and why if it didn't complete."""
    if isinstance(record.outcome, Completed):
        return "completed", None
    if isinstance(record.outcome, Failed):
        return "failed", record.outcome.message
    return "skipped", record.outcome.reason
