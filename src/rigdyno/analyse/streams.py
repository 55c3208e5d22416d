"""Stored rows as streams: one rank's steps of one kind, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigdyno.errors import DamagedRun
from rigdyno.schema.samples import STEP_FIELDS, WARM_UP, Fields, Header, telemetry_fields
from rigdyno.units import NS_PER_S

Rows = NDArray[np.void]
Floats = NDArray[np.float64]

MOST_ITEMS = 1e30  # in a row: nothing counts further, and sums of it stay finite


class TimeRanBackwards(DamagedRun):
    """All else of the rows is sound."""


def streams(header: Header, rows: Rows) -> dict[str, Rows]:
    """The rows of each kind, in the header's order; kinds without a row are left out."""
    check_rows(header, rows)
    found = {name: rows[rows["kind"] == index] for index, name in enumerate(header.kinds)}
    return {name: part for name, part in found.items() if len(part)}


def check_rows(header: Header, rows: Rows) -> None:
    """Raises DamagedRun for rows that no meter writes."""
    _require_fields(rows, STEP_FIELDS, "step")
    if np.any(rows["steps"] == 0) or np.any(rows["kind"] >= len(header.kinds)):
        raise DamagedRun("the step rows hold one without steps, or of an unknown kind")
    if not np.all((rows["items"] >= 0) & (rows["items"] <= MOST_ITEMS)):
        raise DamagedRun("the step rows hold a count of items that isn't a number")
    starts, ends = rows["start_ns"], rows["end_ns"]
    if np.any(starts < 0):
        raise DamagedRun("the step rows hold a time before the clock began")
    if np.any(ends <= starts) or np.any(starts[1:] < starts[:-1]):
        raise TimeRanBackwards("time runs backwards in the step rows: the clock jumped, or the file is damaged")


def check_telemetry(rows: Rows) -> None:
    """Raises DamagedRun for rows that no sampler writes."""
    _require_fields(rows, telemetry_fields([name for name in rows.dtype.names or () if name != "at_ns"]), "telemetry")


def _require_fields(rows: Rows, fields: Fields, what: str) -> None:
    has = dict(rows.dtype.fields or {})
    wrong = [name for name, form in fields if name not in has or has[name][0] != np.dtype(form)]
    if wrong:
        raise DamagedRun(f"the {what} rows have no {', '.join(sorted(wrong))}")


def row_seconds(rows: Rows) -> Floats:
    return _floats((rows["end_ns"] - rows["start_ns"]) / NS_PER_S)


def step_seconds(rows: Rows) -> Floats:
    """Of one step; a row may be a block of short ones."""
    return _floats(row_seconds(rows) / rows["steps"])


def pace_seconds(rows: Rows) -> Floats:
    """Of one step, as long as it would be with the usual number of items. By these a stream is judged: a step that is
    shorter because it did less (the last batch, a block at a volume's face) is no change of the rate."""
    seconds, items_per_step = step_seconds(rows), items(rows) / rows["steps"]
    counted = items_per_step > 0
    usual = float(np.median(items_per_step[counted])) if np.any(counted) else 1.0
    return _floats(seconds * (usual / np.where(counted, items_per_step, usual)))


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
