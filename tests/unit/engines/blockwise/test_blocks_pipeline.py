"""The pipeline gives the result of a simple loop, with a bounded number of blocks in memory."""

import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
from blocks_children import heard, kill, until
from blocks_fakes import Notes, Work
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.engines.blockwise import journal as journal_module
from rigdyno.engines.blockwise.boxes import Box, Grid
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting
from rigdyno.engines.blockwise.interfaces import Reading
from rigdyno.engines.blockwise.journal import BlockCounts, Journal
from rigdyno.engines.blockwise.pipeline import SKIP, max_blocks_in_memory, run_blocks
from rigdyno.engines.blockwise.watching import SilentWatcher

HOLDS_THREE = """
from rigdyno.engines.blockwise.journal import Journal
claims = Journal(Path(sys.argv[1]), 27).claims()
tell(*[next(claims) for _ in range(3)]), listen()
"""


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def test_the_result_is_that_of_a_simple_loop(work):
    summary = work.run()
    assert work.is_complete()
    assert (summary.done, summary.skipped, summary.failed, summary.missing) == (27, 0, 0, 0)
    assert summary.voxels == 9 * 10 * 11
    assert work.marks == b"\1" * 27


@settings(max_examples=30, deadline=None)
@given(*[st.integers(1, 5)] * 3, st.tuples(*[st.integers(1, 6)] * 3))
def test_any_number_of_threads_gives_the_same_result(tmp_path_factory, readers, writers, ahead, shape):
    work = Work(tmp_path_factory.mktemp("work"), shape, (2, 3, 2))
    summary = work.run(readers=readers, writers=writers, ahead=ahead)
    assert work.is_complete()
    assert summary.done == len(work.grid)


def test_a_second_run_finds_nothing_to_do(work):
    work.run()
    notes = Notes()
    assert work.run(watcher=notes).done == 0
    assert work.is_complete()
    assert notes.find("started") == [[BlockCounts(0, 27, 0, 0)]]


def test_predict_stays_in_the_calling_thread_and_nothing_else_does(work):
    threads = {"predict": set(), "others": set()}

    def record_thread(name, step):
        def recorded(*arguments):
            threads[name].add(threading.current_thread())
            return step(*arguments)

        return recorded

    work.predict = record_thread("predict", work.predict)
    for step in ("read", "encode", "write"):
        setattr(work, step, record_thread("others", getattr(work, step)))
    work.run()
    assert threads["predict"] == {threading.current_thread()}
    assert threads["others"].isdisjoint(threads["predict"])


# Blocks in memory.


class Census:
    """Count the blocks in each stage, from the begin of reading to the end of writing."""

    def __init__(self, work, before_writing=lambda: None):
        self._mutex, self._before_writing = threading.Lock(), before_writing
        self.begun = self.taken = self.predicted = self.written = 0
        self.most_ahead = self.most_alive = self.most_to_write = 0
        self._read, self._predict, self._write = work.read, work.predict, work.write
        work.read, work.predict, work.write = self.read, self.predict, self.write

    def _step(self, name):
        with self._mutex:
            setattr(self, name, getattr(self, name) + 1)
            self.most_ahead = max(self.most_ahead, self.begun - self.taken)
            self.most_to_write = max(self.most_to_write, self.predicted - self.written)
            self.most_alive = max(self.most_alive, self.begun - self.written)

    def read(self, box):
        self._step("begun")
        return self._read(box)

    def predict(self, reading):
        self._step("taken")
        predicted = self._predict(reading)
        self._step("predicted")
        return predicted

    def write(self, box, values):
        self._before_writing()
        self._write(box, values)
        self._step("written")


@pytest.mark.parametrize(("readers", "writers", "ahead"), [*itertools.product([1, 3], [1, 2], [1, 4])])
def test_memory_is_bounded_and_all_of_it_is_used(work, readers, writers, ahead):
    bound = max_blocks_in_memory(ahead=ahead, writers=writers)
    assert bound == ahead + 1 + writers

    def wait_until_full():
        until(lambda: census.most_alive >= bound, "all slots were taken")

    census = Census(work, wait_until_full)
    work.run(readers=readers, writers=writers, ahead=ahead)
    assert work.is_complete()
    assert census.most_alive == bound
    assert census.most_ahead <= ahead + 1  # one is on its way to the predictor
    assert census.most_to_write <= writers + 1  # one waits for a writer


def test_waiting_threads_hold_no_finished_blocks(work):
    """A frame that waits must not keep blocks alive that it has passed on: a block can have gigabytes."""
    inputs, outputs, begun, full = weakref.WeakSet(), weakref.WeakSet(), [], threading.Event()

    class Cargo(Reading):
        __hash__ = object.__hash__

    class Predicted:
        pass

    def read(box):
        begun.append(box)
        inputs.add(cargo := Cargo(work.volume))
        return cargo

    def predict(cargo):
        outputs.add(predicted := Predicted())
        return predicted

    def write(box, predicted):
        full.wait()

    work.read, work.predict, work.encode, work.write = read, predict, lambda predicted: predicted, write
    seen = []

    def count_references():
        try:
            until(lambda: len(begun) == 4, "all slots were taken")
            until(lambda: (len(inputs), len(outputs)) == (2, 2), "two blocks were read, and two were predicted")
            gc.collect()
            seen.append((len(inputs), len(outputs)))
        finally:
            full.set()

    counting = threading.Thread(target=count_references)
    counting.start()
    work.run(readers=1, writers=1, ahead=2)
    counting.join()
    assert seen == [(2, 2)]


# Blocks that aren't predicted.


def test_skipped_blocks_are_neither_predicted_nor_written(work):
    predicted, real_read, real_predict = [], work.read, work.predict
    work.read = lambda box: SKIP if box.start[0] == 4 else real_read(box)
    work.predict = lambda reading: predicted.append(1) or real_predict(reading)
    summary = work.run(ahead=1)
    assert (summary.done, summary.skipped) == (18, 9)
    assert len(predicted) == 18
    assert (work.times_written[4:8] == 0).all()
    assert (work.times_written[:4] == 1).all()
    assert work.marks == b"\1" * 9 + b"\2" * 9 + b"\1" * 9


def test_all_blocks_may_be_skipped(work):
    work.read = lambda box: SKIP
    assert work.run(readers=4, ahead=1).skipped == 27


def test_an_unreadable_block_does_not_affect_the_others(work):
    notes, real = Notes(), work.read
    bad = Box((4, 4, 4), (8, 8, 8))

    def read(box):
        if box == bad:
            raise BadRegion("chunk 1.1.1 can't be decoded:\nit is 3 bytes long")
        return real(box)

    work.read = read
    summary = work.run(watcher=notes)
    assert (summary.done, summary.failed) == (26, 1)
    (failure,) = summary.failures
    assert (failure.box, failure.reason) == (bad, "chunk 1.1.1 can't be decoded: it is 3 bytes long")
    assert [box for box, _ in notes.find("failed")] == [bad]
    assert work.marks[work.grid.index_of(bad)] == 3
    work.read = real
    assert work.run().done == 1
    assert work.is_complete()


def test_only_the_first_hundred_failures_are_kept(tmp_path):
    work = Work(tmp_path, (12, 12, 12), (2, 2, 2))

    def read(box):
        raise BadRegion(f"no {box}")

    work.read = read
    summary = work.run(readers=1, ahead=1)
    assert summary.failed == 216
    assert [failure.box for failure in summary.failures] == list(work.grid)[:100]


def test_missing_chunks_are_counted(work):
    real = work.read
    work.read = lambda box: Reading(real(box).values, missing=box.start[2] == 8)
    assert work.run().missing == 9


# Reports.


def test_each_block_is_reported_once_and_by_one_thread_at_a_time(work):
    notes = Notes()
    summary = work.run(readers=3, writers=3, watcher=notes)
    assert notes.calls[0] == ("started", BlockCounts(27, 0, 0, 0))
    assert notes.calls[-1] == ("over", summary)
    assert sorted(box for box, *_ in notes.find("done")) == sorted(work.grid)


def test_the_summary_states_where_the_time_went(work):
    """Each step advances a manual clock, in a pipeline with one thread of each kind."""
    now, notes = [0.0], Notes()
    real_read, real_predict, real_encode = work.read, work.predict, work.encode
    grid = Grid((4, 4, 4), (4, 4, 4))
    Journal.create(work.folder, 1)

    def advance_clock(seconds, step):
        def advancing(*arguments):
            now[0] += seconds
            return step(*arguments)

        return advancing

    with Journal(work.folder, 1) as journal:
        summary = run_blocks(
            journal=journal, grid=grid, read=advance_clock(5, real_read), predict=advance_clock(7, real_predict),
            encode=advance_clock(1, real_encode), write=advance_clock(2, work.write), readers=1, writers=1, ahead=1,
            watcher=notes, clock=lambda: now[0],
        )  # fmt: skip
    assert notes.find("done") == [[Box((0, 0, 0), (4, 4, 4)), 5.0, 7.0, 3.0]]
    assert summary.predict_seconds == 7.0
    assert summary.wall_seconds == 15.0
    assert summary.input_wait_seconds <= 8.0
    assert summary.writer_wait_seconds <= 3.0


def test_blocks_of_a_killed_worker_are_taken_over(work, children, monkeypatch):
    monkeypatch.setattr(journal_module, "LOOK_AGAIN_SECONDS", 0.001)
    worker = children.start(HOLDS_THREE, work.folder)
    assert heard(worker) == "0 1 2"
    notes = Notes()
    real = notes.waiting_for_others

    def waiting(blocks):
        real(blocks)
        kill(worker)

    notes.waiting_for_others = waiting
    assert work.run(watcher=notes).done == 27
    assert work.is_complete()
    assert notes.find("waiting")[0] == [3]


@pytest.mark.parametrize("zero", ["readers", "writers", "ahead"])
def test_zero_threads_are_refused(work, zero):
    with pytest.raises(BadSetting, match="each must be at least 1"):
        work.run(**{zero: 0})


def test_a_journal_of_another_grid_is_refused(work):
    work.grid = Grid((9, 10, 11), (3, 9, 1))
    with Journal(work.folder, 27) as journal, pytest.raises(BadSetting, match="is for 27 blocks, and this grid has 66"):
        run_blocks(
            journal=journal, grid=work.grid, read=work.read, predict=work.predict, encode=work.encode,
            write=work.write, readers=1, writers=1, ahead=1, watcher=SilentWatcher(),
        )  # fmt: skip


def test_blocks_may_be_of_any_type(work):
    """The pipeline only needs to know whether chunks were missing."""
    texts = {}
    work.read = lambda box: type("Text", (), {"missing": False, "text": str(box)})
    work.predict = lambda read: read.text
    work.encode = str.encode
    work.write = texts.__setitem__
    work.run()
    assert texts == {box: str(box).encode() for box in work.grid}
    assert not np.any(work.times_written)
