"""The phases of a job's time, against sums by hand."""

import struct
from itertools import pairwise

import numpy as np
import pytest

from rigdyno.analyse.measurements import measurements
from rigdyno.analyse.phases import job_seconds, job_time
from rigdyno.analyse.process import CellData
from rigdyno.schema.record import Completed, Failed, Quality
from rigdyno.schema.samples import PHASES, STEP_FIELDS, STEP_STRUCT, Header
from rigdyno.schema.spec import Budget, RunSpec
from support import a_rank, a_record

MS = 1_000_000


def rows_of(*rows):
    return np.frombuffer(b"".join(struct.pack(STEP_STRUCT, *row) for row in rows), np.dtype(list(STEP_FIELDS)))


def steps_of(rank, begin_ms, each_ms, count=4, items=64.0):
    """End to end, but for a millisecond of the meter's own after the second."""
    times = [begin_ms + each_ms * number + (1 if number > 1 else 0) for number in range(count)]
    rows = rows_of(*((at * MS, (at + each_ms) * MS, items, 1, 0, 0) for at in times))
    return Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank(rank)), rows


def phases_of(rank, begin_ms, each_ms, data_ms, waiting_ms, count=4):
    rows = []
    for number in range(count):
        at = begin_ms + each_ms * number + (1 if number > 1 else 0)
        ends = [at, at + data_ms, at + each_ms - waiting_ms, at + each_ms]
        parts = zip(("data", "backward", "communication"), pairwise(ends), strict=True)
        for name, (start, end) in parts:
            rows.append((start * MS, end * MS, 0.0, 1, PHASES.index(name), 0))
    return Header(fields=STEP_FIELDS, kinds=PHASES, participant=a_rank(rank)), rows_of(*rows)


def a_job(seconds=3.0, outcome=None, **changes):
    spec = RunSpec(workload="mnist_cnn", world_size=2, arrangement="ddp", budget=Budget(job_steps=4))
    done = Completed(quality=Quality(accuracy=0.9, evaluation_seconds=0.5))
    return a_record(spec, seconds=seconds, outcome=outcome or done, **changes)


STEPS = [steps_of(0, 1000, 100), steps_of(1, 1010, 100)]
PARTS = [phases_of(0, 1000, 100, 10, 20), phases_of(1, 1010, 100, 30, 60)]


def test_the_parts_are_sums_by_hand_and_add_up_to_the_whole():
    found = job_time([job_seconds(a_job(), STEPS, PARTS)])
    assert found.seconds.value == 3.0
    assert found.loop == pytest.approx(0.401)
    assert found.evaluation == 0.5
    assert found.start == pytest.approx(3.0 - 0.401 - 0.5)
    assert found.data == pytest.approx(4 * (0.010 + 0.030) / 2)
    assert found.communication == pytest.approx(4 * (0.020 + 0.060) / 2)
    assert found.training == pytest.approx(0.401 - 0.08 - 0.16)
    assert (found.steps, found.items) == (4, 2 * 4 * 64)
    parts = (found.start, found.data, found.training, found.communication, found.evaluation)
    assert sum(parts) == pytest.approx(found.seconds.value)


def test_what_an_evaluation_marks_is_no_part_of_the_loop():
    behind = rows_of((1500 * MS, 4000 * MS, 0.0, 1, PHASES.index("broadcast"), 0))
    marked = [(header, np.concatenate((rows, behind))) for header, rows in PARTS]
    assert job_time([job_seconds(a_job(), STEPS, marked)]) == job_time([job_seconds(a_job(), STEPS, PARTS)])


def test_without_phases_the_loop_is_training():
    found = job_time([job_seconds(a_job(), STEPS, [])])
    assert found.data is None
    assert found.communication is None
    assert found.training == pytest.approx(0.401)


def test_what_is_no_job_or_did_not_end_has_no_time():
    assert job_seconds(a_record(), STEPS, PARTS) is None
    failed = Failed(kind="signal", phase="measure", message="SIGKILL")
    assert job_seconds(a_job(outcome=failed), STEPS, PARTS) is None
    assert job_seconds(a_job(), [], []) is None
    assert job_time([]) is None


def test_several_processes_give_an_interval():
    found = job_time([job_seconds(a_job(seconds), STEPS, PARTS) for seconds in (3.0, 3.2, 3.1)])
    assert found.seconds.low < 3.1 < found.seconds.high
    assert found.seconds.n == 3
    assert found.start == pytest.approx(found.seconds.value - 0.401 - 0.5)


def test_a_measurement_has_it():
    [found] = measurements([CellData(a_job(), tuple(STEPS), (), tuple(PARTS))])
    assert found.job is not None
    assert found.job.items == 512
    assert found.usage is None
