"""Keep a run within its time: decide how long each cell may measure, and which configuration gets another process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from rigdyno.analyse.validity.verdict import STEADINESS
from rigdyno.base.clock import Clock, Stopwatch
from rigdyno.plan.budget import FEWEST_REPEATS, LEAST_SECONDS
from rigdyno.schema.estimate import relative_half_width
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, RunRecord
from rigdyno.schema.spec import Cell, RunPlan

# Without a budget, a process may take this many times its planned seconds to reach the rows that a verdict needs.
LONGEST = 3.0

# Maximum time of one attempt of a search: with fewer steps its memory would not be known. An attempt that exceeds it
# counts as too large, and large ones take minutes.
LONGEST_TRY_SECONDS = 240.0

# Share of the uncommitted time that one cell may take, so that the first in need doesn't take all of it.
RESERVE_SHARE = 0.5

# Share of the whole time by which a cell may end late: otherwise a few milliseconds could cost the last cell.
LATE = 0.05

# Share of the noise pairs' time that must be left to start them: only the full number of pairs is informative.
NOISE_SHARE = 0.9

# Relative half-widths below this are narrow enough: processes of the same code differ by as much.
PRECISE = 0.02


def still_to_run(plan: RunPlan, is_finished: Callable[[Cell], bool]) -> list[Cell]:
    """Return the cells without a result. Spare cells count only if others are left: a complete run isn't extended."""
    left = [cell for cell in plan.runnable if not is_finished(cell)]
    planned = [cell for cell in left if cell.is_planned]
    return left if planned else [cell for cell in left if not cell.spare]


def seconds_needed(plan: RunPlan, left: Sequence[Cell], spare_spent: float = 0.0) -> float:
    """Return the time for the cells that are still to run: the whole budget if none has run yet."""
    spare = max(0.0, plan.spare_seconds - spare_spent) if any(cell.spare for cell in left) else 0.0
    planned = sum(cell.seconds for cell in left if not cell.spare) + spare
    return max(planned, plan.budget_seconds or 0.0) if len(left) == len(plan.runnable) else planned


@dataclass
class Schedule:
    """Divides the time of a run among its cells.

    A cell that takes longer than planned shortens those that follow. Time left at the end goes to the configurations
    with the widest intervals."""

    plan: RunPlan
    left: Sequence[Cell]  # cells that are still to run
    clock: Clock
    spare_spent: float = 0.0  # seconds of spare cells that ran before this run was interrupted
    within: float | None = None  # seconds left of a budget shared with other runs; None: as planned
    _starts: dict[str, list[float]] = field(default_factory=dict)  # by launcher: actual / planned start times

    def __post_init__(self) -> None:
        self._stopwatch, self._begun = Stopwatch(self.clock), False
        self._rest = [cell for cell in self.left if cell.is_planned]
        self._pairs = sum(cell.seconds for cell in self.left if cell.pair is not None)
        needed = seconds_needed(self.plan, self.left, self.spare_spent)
        self._allowed = needed if self.within is None else self.within

    def allot(self, cell: Cell) -> Cell | None:
        """Return the cell with the time that it may measure for; None if there is no time left."""
        seconds = cell.spec.budget.seconds
        if cell.spec.budget.stop == "clock" or cell.spec.budget.is_job:
            return _set_budget(cell, seconds, seconds, None)
        if cell.attempt_of is not None and self.plan.budget_seconds is None:
            return _set_budget(cell, seconds, LONGEST_TRY_SECONDS, None)
        if self.plan.budget_seconds is None:
            return _set_budget(cell, seconds, LONGEST * seconds, None)
        start = self._estimate_start(cell)
        if self._begun and self.left_seconds + LATE * self._allowed < start + LEAST_SECONDS:
            return None
        if cell.attempt_of is not None:  # uses the time planned for its search; a shorter attempt isn't comparable
            return _set_budget(cell, seconds, LONGEST_TRY_SECONDS, None)
        rest = self._rest if any(each.name == cell.name for each in self._rest) else [*self._rest, cell]
        starts = sum(map(self._estimate_start, rest))
        measuring = sum(each.spec.budget.seconds for each in rest)
        room = self.left_seconds - starts - self._pairs
        seconds = cell.spec.budget.seconds * min(1.0, room / measuring if measuring else 1.0)
        seconds = max(LEAST_SECONDS, min(seconds, self.left_seconds - start))
        reserve = max(0.0, room - measuring)
        return _set_budget(cell, seconds, seconds + RESERVE_SHARE * reserve, start)

    def drop(self, cell: Cell) -> None:
        """Keep no time for a cell any more: it has ended, its nodes are gone, or its time is up."""
        self._rest = [each for each in self._rest if each.name != cell.name]

    def update(self, cell: Cell) -> None:
        """Replace a cell after its search, whose time need not be kept any more."""
        self._rest = [cell if each.name == cell.name else each for each in self._rest]

    def note_end(self, cell: Cell, record: RunRecord) -> None:
        """Note that a cell has ended, and how long its start took compared with the plan."""
        self._begun = True
        self.drop(cell)
        planned = _find_planned_start(cell)
        if record.start_seconds is not None and planned > 0:
            self._starts.setdefault(cell.spec.launcher, []).append(record.start_seconds / planned)

    def choose_spare(self, cells: Sequence[Cell], measurements: Sequence[Measurement]) -> Cell | None:
        """Return the spare cell that narrows the widest interval and still ends in time."""
        by_key: dict[str, Cell] = {}
        for cell in cells:
            by_key.setdefault(cell.spec.key(), cell)
        best: Cell | None = None
        room, widest = self.left_seconds - self._pairs, PRECISE
        for each in measurements:
            candidate = by_key.get(each.spec.key())
            # After a single process, one more isn't enough: an interval takes three.
            missing = max(1, FEWEST_REPEATS - len(each.records))
            if candidate is not None and missing * self._estimate_seconds(candidate) <= room and width(each) > widest:
                best, widest = candidate, width(each)
        return best

    @property
    def left_seconds(self) -> float:
        return self._allowed - self._stopwatch.seconds

    @property
    def has_time_for_pairs(self) -> bool:
        """Return whether there is time to measure the noise floor, the first thing that a late run leaves out.

        A duel has its own budget."""
        if self.plan.is_duel or self.plan.budget_seconds is None:
            return True
        return self.left_seconds >= NOISE_SHARE * self._pairs

    def _estimate_seconds(self, cell: Cell) -> float:
        return self._estimate_start(cell) + cell.spec.budget.seconds

    def _estimate_start(self, cell: Cell) -> float:
        """Return the planned start time, scaled by the delays of earlier starts with the same launcher."""
        seen = self._starts.get(cell.spec.launcher, [1.0])
        return _find_planned_start(cell) * max(1.0, sum(seen) / len(seen))


def _find_planned_start(cell: Cell) -> float:
    return max(0.0, cell.seconds - cell.spec.budget.seconds)


def width(measurement: Measurement) -> float:
    """Return the relative half-width of the widest interval; 0 if more processes don't help."""
    if not isinstance(measurement.outcome, Completed) or measurement.validity is None or not measurement.kinds:
        return 0.0
    processes = sum(isinstance(record.outcome, Completed) for record in measurement.records)
    if not all(reason.code in STEADINESS for reason in measurement.validity.reasons):
        return 0.0  # more processes don't undo a disturbance
    if processes < FEWEST_REPEATS and (processes > 1 or measurement.status == "SUSPECT"):
        return math.inf  # one unsteady process is inconclusive, and two have no useful interval
    widths = [relative_half_width(figures.throughput) for figures in measurement.kinds.values()]
    return max((each for each in widths if each is not None), default=0.0) if processes > 1 else 0.0


def _set_budget(cell: Cell, seconds: float, most: float, start: float | None) -> Cell:
    budget = msgspec.structs.replace(
        cell.spec.budget, seconds=round(seconds, 3), most_seconds=round(most, 3), start_seconds=start
    )
    return msgspec.structs.replace(cell, spec=msgspec.structs.replace(cell.spec, budget=budget))
