"""Stored rows as streams: one rank's steps of one kind, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigdyno.errors import DamagedRun
from rigdyno.schema.samples import STEP_FIELDS, WARM_UP, Header
from rigdyno.units import NS_PER_S

Rows = NDArray[np.void]
Floats = NDArray[np.float64]


def streams(header: Header, rows: Rows) -> dict[str, Rows]:
    """The rows of each kind, in the header's order; kinds without a row are left out."""
    check_rows(header, rows)
    found = {name: rows[rows["kind"] == index] for index, name in enumerate(header.kinds)}
    return {name: part for name, part in found.items() if len(part)}


def check_rows(header: Header, rows: Rows) -> None:
    """Raises DamagedRun for rows that no meter writes."""
    missing = {name for name, _ in STEP_FIELDS} - set(rows.dtype.names or ())
    if missing:
        raise DamagedRun(f"the step rows have no {', '.join(sorted(missing))}")
    starts, ends = rows["start_ns"], rows["end_ns"]
    if np.any(ends <= starts) or np.any(starts[1:] < starts[:-1]):
        raise DamagedRun("time runs backwards in the step rows: the clock jumped, or the file is damaged")
    if np.any(rows["steps"] == 0) or np.any(rows["kind"] >= len(header.kinds)):
        raise DamagedRun("the step rows hold one without steps, or of an unknown kind")
    if not np.all(np.isfinite(rows["items"])) or np.any(rows["items"] < 0):
        raise DamagedRun("the step rows hold a count of items that isn't a number")


def row_seconds(rows: Rows) -> Floats:
    return _floats((rows["end_ns"] - rows["start_ns"]) / NS_PER_S)


def step_seconds(rows: Rows) -> Floats:
    """Of one step; a row may be a block of short ones."""
    return _floats(row_seconds(rows) / rows["steps"])


def items(rows: Rows) -> Floats:
    return _floats(rows["items"])


def seconds_since(rows: Rows, index: int) -> float:
    """From the stream's first start to the start of row `index`: where a plot marks a cut."""
    return float(rows["start_ns"][index] - rows["start_ns"][0]) / NS_PER_S


def measured_from(rows: Rows) -> int:
    """Index of the first row behind the meter's own warm-up; 0 if the stream ended before that did."""
    behind = np.flatnonzero((rows["flags"] & WARM_UP) == 0)
    return int(behind[0]) if len(behind) else 0


def _floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)
