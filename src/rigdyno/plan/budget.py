"""Fits what is wanted into the time that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from rigdyno.contracts import Wanted
from rigdyno.errors import BadValue, RigdynoError
from rigdyno.plan.build import workload_of
from rigdyno.schema.spec import RunSpec
from rigdyno.units import show_seconds

LEAST_SECONDS = 1.0  # a cell that measures for less says nothing


def fitted(wanted: Sequence[Wanted], seconds: float, *, keep_repeats: bool = False) -> list[Wanted]:
    """All cells measure longer or shorter by one factor. A suite's own repeats are given up one by one before a cell
    becomes too short; repeats that the user asked for are kept, or it is said that they don't fit."""
    starting = [start_seconds(cell.spec) for cell in wanted]
    most = max((cell.repeat for cell in wanted), default=1)
    for limit in [most] if keep_repeats else range(most, 0, -1):
        repeats = [min(cell.repeat, limit) for cell in wanted]
        left = seconds - sum(start * repeat for start, repeat in zip(starting, repeats, strict=True))
        asked = sum(cell.spec.budget.seconds * repeat for cell, repeat in zip(wanted, repeats, strict=True))
        if left >= LEAST_SECONDS * sum(repeats):
            return [_scaled(cell, repeat, left / asked) for cell, repeat in zip(wanted, repeats, strict=True)]
    least = sum((start + LEAST_SECONDS) * repeat for start, repeat in zip(starting, repeats, strict=True))
    raise BadValue(f"a budget of {show_seconds(seconds)} is too short: this takes at least {show_seconds(least)}")


def _scaled(cell: Wanted, repeat: int, factor: float) -> Wanted:
    budget = cell.spec.budget
    seconds = max(LEAST_SECONDS, round(budget.seconds * factor, 2))
    spec = msgspec.structs.replace(cell.spec, budget=msgspec.structs.replace(budget, seconds=seconds))
    return replace(cell, spec=spec, repeat=repeat)


def start_seconds(spec: RunSpec) -> float:
    try:
        return workload_of(spec).start_seconds()
    except RigdynoError:
        return 0.0  # what is wrong with it is said when the cell itself is asked
