"""Marks on a clock that is moved by hand."""

from rigdyno.frameworks.torch import Torch
from rigdyno.runner.phases import PhaseClock
from rigdyno.schema.samples import PHASES, STEP_FIELDS, Header, RowFile, read_rows
from support import ManualClock, a_rank


def marked(path, script):
    """`script`: (seconds that pass, then the mark), or None for a flush."""
    clock = ManualClock()
    file = RowFile(path, Header(fields=STEP_FIELDS, kinds=PHASES, participant=a_rank()))
    phases = PhaseClock(file, clock, Torch(), "cpu")
    for entry in script:
        if entry is None:
            phases.flush()
        else:
            clock.advance(entry[0])
            phases.mark(entry[1])
    phases.close()
    header, rows = read_rows(path)
    return [(header.kinds[row["kind"]], round((row["end_ns"] - row["start_ns"]) / 1e9, 3)) for row in rows]


STEP = [(9.0, ""), (0.1, "data"), (0.2, "forward"), (0.6, "backward"), (0.1, "optimizer")]
TIMED = [("data", 0.1), ("forward", 0.2), ("backward", 0.6), ("optimizer", 0.1)]


def test_every_phase_begins_where_the_last_one_ended(tmp_path):
    assert marked(tmp_path / "phases.0.rows", STEP) == TIMED


def test_the_time_between_two_steps_is_no_phase(tmp_path):
    """The meter's own work, and the writing of these very rows."""
    assert marked(tmp_path / "one.rows", [*STEP, *STEP]) == TIMED * 2
    assert marked(tmp_path / "two.rows", [*STEP, None, *STEP, None, None]) == TIMED * 2


def test_a_phase_that_takes_no_time_is_left_out(tmp_path):
    assert marked(tmp_path / "phases.0.rows", [(1.0, ""), (0.0, "data"), (0.5, "forward")]) == [("forward", 0.5)]
