"""Two loaded runs held against each other: for `compare`, and for a page of several runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rigdyno.schema.comparison import Comparison
from rigdyno.schema.estimate import Reason
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.api import Run


def compared(baseline: Run, candidate: Run, margin: float) -> list[Comparison]:
    from rigdyno.analyse.compare import Sides, compare, not_comparable

    runs = (baseline, candidate)
    alike = baseline.folder.name == candidate.folder.name
    names = [utf8(str(run.path) if alike else run.folder.name) for run in runs]
    sides = Sides(names[0], names[1], margin, _noise(runs))
    for name, run in zip(names, runs, strict=True):
        if run.head.plan.is_duel:
            reason = Reason(code="duel", sentence=f"{name} is a duel, which gives ratios and never rates")
            return [not_comparable(run.head.plan.name, sides, reason)]
    return compare(baseline.measurements, candidate.measurements, sides)


def _noise(runs: tuple[Run, Run]) -> float | None:
    """The larger of what the two runs measured, if any did."""
    from rigdyno.analyse.duel import meaningless_below

    bounds = [meaningless_below(run.duel) for run in runs if run.duel is not None and not run.head.plan.is_duel]
    return max((bound for bound in bounds if bound is not None), default=None)


def described(run: Run) -> str:
    label = f"{run.head.plan.label}: " if run.head.plan.label else ""
    return f"{utf8(run.folder.name)}, {label}{run.head.system.line()}"
