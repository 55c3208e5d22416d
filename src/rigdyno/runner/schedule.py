"""Keeps a run to its time: how long each cell may measure, and which configuration gets another process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from rigdyno.analyse.verdict import STEADINESS
from rigdyno.clock import Clock
from rigdyno.plan.budget import FEWEST_REPEATS, LEAST_SECONDS
from rigdyno.schema.estimate import relative_half_width
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, RunRecord
from rigdyno.schema.spec import Cell, Plan
from rigdyno.units import seconds_of_ns

# Without a budget a process may take so many times its seconds to come to the rows that a verdict needs.
LONGEST = 3.0
# A try may take so long to come to its few steps: with fewer it would not say what it takes.
LONGEST_TRY_SECONDS = 240.0  # one that is ended for its time counts as too large, and large ones take minutes
# Of the time that nobody else has been promised, so that the first in need doesn't take all of it.
RESERVE_SHARE = 0.5
# Of the whole time: so much later a cell may end than it should, or the last one would be lost to a few milliseconds.
LATE = 0.05
# Of the time for the pairs of the machine's own noise that must be left: fewer than all of them say nothing.
NOISE_SHARE = 0.9
# Half-widths below this are narrow enough: processes of the same code differ by as much.
PRECISE = 0.02


def still_to_run(plan: Plan, is_finished: Callable[[Cell], bool]) -> list[Cell]:
    """Spare cells only where something else is left: a run that is complete stays as it is."""
    left = [cell for cell in plan.runnable if not is_finished(cell)]
    planned = [cell for cell in left if cell.is_planned]
    return left if planned else [cell for cell in left if not cell.spare]


def seconds_needed(plan: Plan, left: Sequence[Cell], spare_spent: float = 0.0) -> float:
    """For these cells that are still to run: the whole budget where they are all of them."""
    spare = max(0.0, plan.spare_seconds - spare_spent) if any(cell.spare for cell in left) else 0.0
    planned = sum(cell.seconds for cell in left if not cell.spare) + spare
    return max(planned, plan.budget_seconds or 0.0) if len(left) == len(plan.runnable) else planned


@dataclass
class Schedule:
    """What took longer than planned is taken from the cells that are still to come; what is over when all have run goes
    to those whose interval is widest."""

    plan: Plan
    left: Sequence[Cell]  # that are still to run
    clock: Clock
    spare_spent: float = 0.0  # seconds of spare cells that ran before this run was interrupted
    within: float | None = None  # seconds that there are, where others share them; None: as many as the plan says
    _starts: dict[str, list[float]] = field(default_factory=dict)  # by launcher: how many times what was planned

    def __post_init__(self) -> None:
        self._began_ns, self._begun = self.clock.now_ns(), False
        self._rest = [cell for cell in self.left if cell.is_planned]
        self._pairs = sum(cell.seconds for cell in self.left if cell.pair is not None)
        needed = seconds_needed(self.plan, self.left, self.spare_spent)
        self._allowed = needed if self.within is None else self.within

    def allotted(self, cell: Cell) -> Cell | None:
        """With the time that it may measure for; None: there is none left."""
        seconds = cell.spec.budget.seconds
        if cell.spec.budget.stop == "clock" or cell.spec.budget.is_job:
            return _with_budget(cell, seconds, seconds, None)
        if cell.attempt_of is not None and self.plan.budget_seconds is None:
            return _with_budget(cell, seconds, LONGEST_TRY_SECONDS, None)
        if self.plan.budget_seconds is None:
            return _with_budget(cell, seconds, LONGEST * seconds, None)
        start = self._start_of(cell)
        if self._begun and self.left_seconds + LATE * self._allowed < start + LEAST_SECONDS:
            return None
        if cell.attempt_of is not None:  # of the time that is kept for its search; less of it would not say the same
            return _with_budget(cell, seconds, LONGEST_TRY_SECONDS, None)
        rest = self._rest if any(each.name == cell.name for each in self._rest) else [*self._rest, cell]
        starts = sum(map(self._start_of, rest))
        measuring = sum(each.spec.budget.seconds for each in rest)
        room = self.left_seconds - starts - self._pairs
        seconds = cell.spec.budget.seconds * min(1.0, room / measuring if measuring else 1.0)
        seconds = max(LEAST_SECONDS, min(seconds, self.left_seconds - start))
        reserve = max(0.0, room - measuring)
        return _with_budget(cell, seconds, seconds + RESERVE_SHARE * reserve, start)

    def passed_over(self, cell: Cell) -> None:
        """Nothing is kept for it any more: its nodes are gone, or its time."""
        self._rest = [each for each in self._rest if each.name != cell.name]

    def replaced(self, cell: Cell) -> None:
        """By the same with what became known of it: a search came to its end, and its time needn't be kept."""
        self._rest = [cell if each.name == cell.name else each for each in self._rest]

    def ended(self, cell: Cell, record: RunRecord) -> None:
        self._begun = True
        self.passed_over(cell)
        planned = _planned_start(cell)
        if record.start_seconds is not None and planned > 0:
            self._starts.setdefault(cell.spec.launcher, []).append(record.start_seconds / planned)

    def spare(self, cells: Sequence[Cell], measurements: Sequence[Measurement]) -> Cell | None:
        """Of these spare cells, the one that narrows the widest interval and still ends in time."""
        by_key: dict[str, Cell] = {}
        for cell in cells:
            by_key.setdefault(cell.spec.key(), cell)
        best: Cell | None = None
        room, widest = self.left_seconds - self._pairs, PRECISE
        for each in measurements:
            candidate = by_key.get(each.spec.key())
            # One more than a single process is none: it takes three to have an interval.
            missing = max(1, FEWEST_REPEATS - len(each.records))
            if candidate is not None and missing * self._seconds_of(candidate) <= room and width(each) > widest:
                best, widest = candidate, width(each)
        return best

    @property
    def left_seconds(self) -> float:
        return self._allowed - seconds_of_ns(self.clock.now_ns() - self._began_ns)

    @property
    def has_time_for_pairs(self) -> bool:
        """The machine's own noise is the first thing that a late run goes without; a duel has its own time."""
        if self.plan.is_duel or self.plan.budget_seconds is None:
            return True
        return self.left_seconds >= NOISE_SHARE * self._pairs

    def _seconds_of(self, cell: Cell) -> float:
        return self._start_of(cell) + cell.spec.budget.seconds

    def _start_of(self, cell: Cell) -> float:
        """As it was planned, times what the others of its launcher have shown."""
        seen = self._starts.get(cell.spec.launcher, [1.0])
        return _planned_start(cell) * max(1.0, sum(seen) / len(seen))


def _planned_start(cell: Cell) -> float:
    return max(0.0, cell.seconds - cell.spec.budget.seconds)


def width(measurement: Measurement) -> float:
    """How uncertain its figure is, as a share of it; 0 where more processes don't help."""
    if not isinstance(measurement.outcome, Completed) or measurement.validity is None or not measurement.kinds:
        return 0.0
    processes = sum(isinstance(record.outcome, Completed) for record in measurement.records)
    if not all(reason.code in STEADINESS for reason in measurement.validity.reasons):
        return 0.0  # a disturbance stays one, however many come after it
    if processes < FEWEST_REPEATS and (processes > 1 or measurement.status == "SUSPECT"):
        return math.inf  # one that was unsteady says little, and two have no interval to speak of
    widths = [relative_half_width(figures.throughput) for figures in measurement.kinds.values()]
    return max((each for each in widths if each is not None), default=0.0) if processes > 1 else 0.0


def _with_budget(cell: Cell, seconds: float, most: float, start: float | None) -> Cell:
    budget = msgspec.structs.replace(
        cell.spec.budget, seconds=round(seconds, 3), most_seconds=round(most, 3), start_seconds=start
    )
    return msgspec.structs.replace(cell, spec=msgspec.structs.replace(cell.spec, budget=budget))
