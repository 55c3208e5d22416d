"""The choice of a duel's next pair from the stored ones."""

import msgspec
import pytest

from rigdyno.runner.course import DuelCourse
from rigdyno.schema.record import Failed
from rigdyno.schema.spec import RunPlan
from rigdyno.store.folder import RunFolder
from stored_duels import DUEL, A, arm_cells, stored_duel, stored_suite, write_pairs
from support import ManualClock, a_stored_run

SLOWER = (0.968, 0.971, 0.969, 0.966, 0.972, 0.968)
WIDE = (1.05, 0.95, 1.02, 0.99, 1.06, 0.93)
KILLED = Failed(kind="signal", phase="measure", message="SIGKILL: killed from outside")


def a_course(path, **duel):
    plan = RunFolder(path).head().plan
    changed = None if plan.duel is None else msgspec.structs.replace(plan.duel, **duel)
    return DuelCourse(msgspec.structs.replace(plan, duel=changed), ManualClock())


def fight(path, ratios, *, seconds=0.0, outcomes=None, **duel):
    """Takes every pair that the course gives, each so long, with these ratios; their numbers."""
    folder, course, fought = RunFolder(path), a_course(path, **duel), []
    while pair := course.next_cells(folder):
        a, b = pair
        fought.append(a.pair)
        write_pairs(folder, (a, b), {a.pair - 1: ratios[a.pair - 1]}, outcomes)
        course.clock.advance(seconds)
    return fought


@pytest.fixture
def started(tmp_path):
    return lambda done=(), planned=10, **changes: stored_duel(tmp_path, done, planned=planned, **changes)


def test_a_plan_without_a_duel_has_no_pairs(tmp_path):
    assert fight(a_stored_run(tmp_path), ()) == []


def test_a_duel_ends_once_it_is_decided_and_precise(started):
    assert fight(started(), SLOWER * 2) == [1, 2, 3, 4, 5, 6]


def test_an_undecided_duel_continues_with_the_planned_pairs(started):
    assert fight(started(), WIDE * 2) == list(range(1, 11))


def test_completed_pairs_are_not_run_again(started):
    assert fight(started(SLOWER[:4]), SLOWER) == [5, 6]
    assert fight(started(SLOWER), SLOWER) == []


def test_a_pair_with_one_record_is_run_again(started):
    path = started(SLOWER[:4])
    (path / "cells" / "pair002-b" / "record.json").unlink()
    assert fight(path, SLOWER) == [2, 5, 6]


def test_a_damaged_pair_is_left_out_and_the_others_go_on(started):
    path = started(SLOWER[:4])
    (path / "cells" / "pair002-b" / "rank0" / "steps.rows").write_bytes(b"{")
    assert fight(path, SLOWER * 2) == [5, 6, 7]


def test_a_lost_arm_ends_it_and_what_was_lost_before_does_not(started):
    path = started()
    assert fight(path, SLOWER, outcomes={(3, "b"): KILLED}) == [1, 2, 3]
    assert fight(path, WIDE * 2) == [4, 5, 6, 7, 8, 9, 10]


def test_a_duel_ends_before_a_pair_that_would_end_too_late(started):
    """Pairs of 12 s, as their records say: the fifth would end after 50 s."""
    assert fight(started(), WIDE, seconds=12.0, budget_seconds=50.0) == [1, 2, 3, 4]


def test_two_pairs_are_run_however_late_it_is(started):
    assert fight(started(), WIDE, seconds=12.0, budget_seconds=5.0) == [1, 2]


def test_an_interrupted_duel_has_its_time_anew(started):
    assert fight(started(WIDE[:4]), WIDE * 2, seconds=12.0, budget_seconds=30.0) == [5, 6]


def test_a_suites_noise_comes_to_its_end(tmp_path):
    path = stored_suite(tmp_path, (1.3, 0.7, 1.2, 0.9))
    assert fight(path, ()) == []
    (path / "cells" / "pair004-a" / "record.json").unlink()
    assert fight(path, (1.3, 0.7, 1.2, 0.9)) == [4]


def test_pairs_are_found_in_a_plan_of_any_order(started):
    folder = RunFolder(started())
    cells = tuple(reversed(arm_cells(A, A, 3)))
    course = DuelCourse(RunPlan(name="x", cells=cells, duel=DUEL), ManualClock())
    pairs = list(iter(lambda: course.next_cells(folder), []))
    assert [(a.arm, b.arm, a.pair) for a, b in pairs] == [("a", "b", 3), ("a", "b", 2), ("a", "b", 1)]
