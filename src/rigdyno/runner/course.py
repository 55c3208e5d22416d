"""Which pair of a duel comes next, if any: decided from what is stored, so that an interrupted duel can go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from rigdyno.analyse.duel import duel_of, is_enough
from rigdyno.analyse.measure import CellData
from rigdyno.clock import Clock
from rigdyno.errors import DamagedRun
from rigdyno.schema.comparison import Duel
from rigdyno.schema.spec import Cell, DuelPlan, Plan
from rigdyno.store.folder import RunFolder
from rigdyno.units import seconds_of_ns

LATE_SHARE = 0.1


@dataclass
class DuelCourse:
    folder: RunFolder
    plan: Plan
    clock: Clock

    def pairs(self) -> Iterator[tuple[Cell, Cell]]:
        duel = self.plan.duel
        if duel is None:
            return
        began_ns = self.clock.now_ns()
        lost_before = len(self._so_far(duel).lost)
        for a, b in _pairs(self.plan):
            if self.folder.is_finished(a) and self.folder.is_finished(b):
                continue
            so_far = self._so_far(duel)
            spent = seconds_of_ns(self.clock.now_ns() - began_ns)
            if is_enough(so_far, duel) or len(so_far.lost) > lost_before or _late(so_far, duel, spent):
                return
            yield a, b

    def _so_far(self, duel: DuelPlan) -> Duel:
        stored = [cell for cell in self.folder.cells([]) if cell.record.pair is not None]
        found = []
        for cell in stored:
            with suppress(DamagedRun):  # the report names it
                found.append(CellData(cell.record, cell.steps()))
        return duel_of(found, duel)


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
