"""Which cells of a run come next: decided from what is stored, so that an interrupted run can go on anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from rigdyno.analyse.duel import NOT_METERED, duel_of, is_enough
from rigdyno.analyse.measure import CellData, measurements
from rigdyno.clock import Clock
from rigdyno.errors import DamagedRun
from rigdyno.runner.schedule import Schedule
from rigdyno.runner.search import next_attempt
from rigdyno.runner.sessions import Sessions
from rigdyno.schema.comparison import Duel
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Cell, DuelPlan, Plan
from rigdyno.store.folder import RunFolder, StoredCell
from rigdyno.units import seconds_of_ns

LATE_SHARE = 0.1


class Course(Protocol):
    def next_cells(self, stored: RunFolder) -> Sequence[Cell]:
        """One cell, or the two of a pair; none: it is over. Asked again once they have a record."""
        ...


@dataclass
class PlannedCourse:
    """In the plan's order, until the time is up; what can't run here is recorded in any case. A cell with an option
    that is as large as fits is tried with several values first."""

    plan: Plan
    schedule: Schedule
    sessions: Sessions

    def __post_init__(self) -> None:
        self._left = [cell for cell in self.plan.cells if cell.is_planned]

    def next_cells(self, stored: RunFolder) -> Sequence[Cell]:
        while self._left:
            cell = self._left[0]
            ready = None if stored.is_finished(cell) else self._ready(cell, stored)
            if ready is None or ready.attempt_of is None:
                self._left.pop(0)
            if ready is not None:
                return [ready]
            self.schedule.passed_over(cell)
        return []

    def _ready(self, cell: Cell, stored: RunFolder) -> Cell | None:
        """None: its time is up, or its nodes are gone."""
        if cell.refusal is None and self.sessions.is_lost(cell):
            return None
        if cell.refusal is None and cell.spec.is_open:
            own = cell.spec.search_key()
            alike = {each.name for each in self.plan.cells if each.spec.largest and each.spec.search_key() == own}
            cell = next_attempt(cell, alike, stored)
            self.schedule.replaced(cell)
        return cell if cell.refusal is not None else self.schedule.allotted(cell)


@dataclass
class SpareCourse:
    """As long as there is time: one more process of whatever is known least well."""

    cells: Sequence[Cell]
    schedule: Schedule
    sessions: Sessions

    def next_cells(self, stored: RunFolder) -> Sequence[Cell]:
        left = [cell for cell in self.cells if not stored.is_finished(cell) and not self.sessions.is_lost(cell)]
        cell = self.schedule.spare(left, _measured(stored.cells([]))) if left else None
        ready = None if cell is None else self.schedule.allotted(cell)
        return [] if ready is None else [ready]


@dataclass
class DuelCourse:
    """Pair by pair, until it is decided as precisely as was set beforehand, the time is up, or an arm fails."""

    plan: Plan
    clock: Clock

    def __post_init__(self) -> None:
        self._left = _pairs(self.plan)
        self._began_ns = self.clock.now_ns()
        self._lost_before: int | None = None  # what an earlier attempt at the run lost ends nothing

    def next_cells(self, stored: RunFolder) -> Sequence[Cell]:
        while self._left and all(map(stored.is_finished, self._left[0])):
            self._left.pop(0)
        if self.plan.duel is None or not self._left:
            return []
        so_far = _fought(stored.cells([]), self.plan.duel)
        if self._lost_before is None:
            self._lost_before = len(so_far.lost)
        spent = seconds_of_ns(self.clock.now_ns() - self._began_ns)
        unmetered = any(reason.code == NOT_METERED for reason in so_far.comparison.reasons)
        lost = len(so_far.lost) > self._lost_before or unmetered
        if lost or is_enough(so_far, self.plan.duel) or _late(so_far, self.plan.duel, spent):
            return []
        return self._left.pop(0)


def _measured(stored: Sequence[StoredCell]) -> list[Measurement]:
    return measurements(_readable([cell for cell in stored if cell.record.is_figure], telemetry=True))


def _fought(stored: Sequence[StoredCell], duel: DuelPlan) -> Duel:
    pairs = [cell for cell in stored if cell.record.pair is not None]
    return duel_of(_readable(pairs, telemetry=duel.by == "joules"), duel)


def _readable(stored: Sequence[StoredCell], *, telemetry: bool = False) -> list[CellData]:
    found = []
    for cell in stored:
        with suppress(DamagedRun):  # the report names it
            found.append(CellData(cell.record, cell.steps(), cell.telemetry() if telemetry else ()))
    return found


def _pairs(plan: Plan) -> list[tuple[Cell, Cell]]:
    arms = {(cell.pair, cell.arm): cell for cell in plan.cells}
    numbers = dict.fromkeys(cell.pair for cell in plan.cells if cell.pair is not None)
    return [(arms[number, "a"], arms[number, "b"]) for number in numbers]


def _late(so_far: Duel, duel: DuelPlan, spent_seconds: float) -> bool:
    """Whether one more pair would end after the time is up. Two are the least that have an interval; and where the plan
    had time for some, a start that took a little longer doesn't cost the last of them."""
    count = len(so_far.pairs)
    if count < 2:
        return False
    typical = sum(pair.seconds for pair in so_far.pairs) / count
    allowed = duel.budget_seconds * (1 + LATE_SHARE if count < duel.least_pairs else 1)
    return spent_seconds + typical > allowed
