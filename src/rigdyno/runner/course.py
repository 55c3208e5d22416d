"""Decide which cells of a run come next, from the stored results alone: an interrupted run can be resumed anywhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from rigdyno.analyse.measurements import measurements
from rigdyno.analyse.pairs import NOT_METERED, analyse_pairs, is_enough
from rigdyno.analyse.process import CellData
from rigdyno.base.clock import Clock, Stopwatch
from rigdyno.base.errors import DamagedRun
from rigdyno.runner.schedule import Schedule
from rigdyno.runner.sessions import Sessions
from rigdyno.schema.comparison import Duel
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Cell, DuelPlan, RunPlan
from rigdyno.store.folder import RunFolder, StoredCell

LATE_SHARE = 0.1  # of a duel's budget, by which the planned pairs may exceed it

# Settle(cell, names of the cells that share its search, folder) returns the next try of a search for the largest value
# of an option, or the cell with the value that was found, or the cell with a refusal.
Settle = Callable[[Cell, Collection[str], RunFolder], Cell]


class Course(Protocol):
    def next_cells(self, stored: RunFolder) -> Sequence[Cell]:
        """Return one cell, or the two of a pair; empty at the end. It is called again when they have a record."""
        ...


@dataclass
class PlannedCourse:
    """Runs the cells in the plan's order, until the time is up. Refused cells are recorded in any case.

    A cell with an option that is to be as large as fits is tried with several values first."""

    plan: RunPlan
    schedule: Schedule
    sessions: Sessions
    settle: Settle

    def __post_init__(self) -> None:
        self._remaining = [cell for cell in self.plan.cells if cell.is_planned]

    def next_cells(self, stored: RunFolder) -> Sequence[Cell]:
        while self._remaining:
            cell = self._remaining[0]
            ready = None if stored.is_finished(cell) else self._prepare(cell, stored)
            if ready is None or ready.attempt_of is None:
                self._remaining.pop(0)
            if ready is not None:
                return [ready]
            self.schedule.drop(cell)
        return []

    def _prepare(self, cell: Cell, stored: RunFolder) -> Cell | None:
        """Return the cell with its time and options; None if its time is up, or its nodes are gone."""
        if cell.refusal is None and self.sessions.is_lost(cell):
            return None
        if cell.refusal is None and cell.spec.is_open:
            own = cell.spec.search_key()
            same_search = {each.name for each in self.plan.cells if each.spec.largest and each.spec.search_key() == own}
            cell = self.settle(cell, same_search, stored)
            self.schedule.update(cell)
        return cell if cell.refusal is not None else self.schedule.allot(cell)


@dataclass
class SpareCourse:
    """Adds processes of the configuration with the widest interval, while there is time."""

    cells: Sequence[Cell]
    schedule: Schedule
    sessions: Sessions

    def next_cells(self, stored: RunFolder) -> Sequence[Cell]:
        left = [cell for cell in self.cells if not stored.is_finished(cell) and not self.sessions.is_lost(cell)]
        cell = self.schedule.choose_spare(left, _analyse_cells(stored.cells([]))) if left else None
        ready = None if cell is None else self.schedule.allot(cell)
        return [] if ready is None else [ready]


@dataclass
class DuelCourse:
    """Runs pair after pair, until the result is as precise as planned, the time is up, or an arm fails."""

    plan: RunPlan
    clock: Clock

    def __post_init__(self) -> None:
        self._remaining = _list_pairs(self.plan)
        self._stopwatch = Stopwatch(self.clock)
        self._lost_before: int | None = None  # pairs lost before a resume; they don't end the duel

    def next_cells(self, stored: RunFolder) -> Sequence[Cell]:
        while self._remaining and all(map(stored.is_finished, self._remaining[0])):
            self._remaining.pop(0)
        if self.plan.duel is None or not self._remaining:
            return []
        duel_so_far = _analyse_duel(stored.cells([]), self.plan.duel)
        if self._lost_before is None:
            self._lost_before = len(duel_so_far.lost)
        spent = self._stopwatch.seconds
        unmetered = any(reason.code == NOT_METERED for reason in duel_so_far.comparison.reasons)
        lost = len(duel_so_far.lost) > self._lost_before or unmetered
        if lost or is_enough(duel_so_far, self.plan.duel) or _is_late(duel_so_far, self.plan.duel, spent):
            return []
        return self._remaining.pop(0)


def _analyse_cells(stored: Sequence[StoredCell]) -> list[Measurement]:
    return measurements(_read_cells([cell for cell in stored if cell.record.is_figure], telemetry=True))


def _analyse_duel(stored: Sequence[StoredCell], duel: DuelPlan) -> Duel:
    pairs = [cell for cell in stored if cell.record.pair is not None]
    return analyse_pairs(_read_cells(pairs, telemetry=duel.by == "joules"), duel)


def _read_cells(stored: Sequence[StoredCell], *, telemetry: bool = False) -> list[CellData]:
    found = []
    for cell in stored:
        with suppress(DamagedRun):  # the report names damaged cells
            found.append(CellData(cell.record, cell.steps(), cell.telemetry() if telemetry else ()))
    return found


def _list_pairs(plan: RunPlan) -> list[tuple[Cell, Cell]]:
    arms = {(cell.pair, cell.arm): cell for cell in plan.cells}
    numbers = dict.fromkeys(cell.pair for cell in plan.cells if cell.pair is not None)
    return [(arms[number, "a"], arms[number, "b"]) for number in numbers]


def _is_late(duel_so_far: Duel, duel: DuelPlan, spent_seconds: float) -> bool:
    """Return whether one more pair would end after the time is up.

    Two pairs always run: fewer have no interval. The number of pairs that the plan had time for may take a little
    longer, so that a slow start doesn't cost the last of them."""
    count = len(duel_so_far.pairs)
    if count < 2:
        return False
    typical = sum(pair.seconds for pair in duel_so_far.pairs) / count
    allowed = duel.budget_seconds * (1 + LATE_SHARE if count < duel.least_pairs else 1)
    return spent_seconds + typical > allowed
