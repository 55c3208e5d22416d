"""Full disks, bugs, Ctrl-C and kills in the middle of a run: no error is hidden, and no block is lost."""

import random
import signal
import threading
import time

import numpy as np
import pytest
from blocks_children import ended_well, heard, kill, say, until
from blocks_fakes import Notes

from rigdyno.engines.blockwise.errors import BadNetwork, BadOutput, BadRegion
from rigdyno.engines.blockwise.journal import BlockCounts, Journal
from rigdyno.engines.blockwise.pipeline import ThreadGroup, max_blocks_in_memory

CLAIMS_WHAT_IS_FREE = """
from rigdyno.engines.blockwise.journal import Journal
def stop(seconds):
    sys.exit()
for block in Journal(Path(sys.argv[1]), int(sys.argv[2])).claims(wait=stop):
    tell(block)
"""
# A worker whose output is a file, which can be compared byte by byte.
WORKER = """
import os, threading, time
from types import SimpleNamespace
from rigdyno.engines.blockwise import journal as journal_module
from rigdyno.engines.blockwise.pipeline import ThreadGroup
from rigdyno.engines.blockwise.boxes import Grid
from rigdyno.engines.blockwise.journal import Journal
from rigdyno.engines.blockwise.pipeline import run_blocks
from rigdyno.engines.blockwise.boxes import Grid
from rigdyno.engines.blockwise.journal import Journal
from rigdyno.engines.blockwise.pipeline import ThreadGroup, run_blocks
from rigdyno.engines.blockwise.watching import SilentWatcher
journal_module.LOOK_AGAIN_SECONDS = 0.005
folder, start = Path(sys.argv[1]), float(sys.argv[2])
grid = Grid((40, 5, 10), (1, 1, 1))
data = os.open(folder / "data", os.O_RDWR)

def read(box):
    return SimpleNamespace(missing=False, index=grid.index_of(box))

def predict(read):
    return read.index % 251 + 1

def encode(value):
    return bytes([value])

def write(box, content):
    os.pwrite(data, content, grid.index_of(box))

def sleep_on():
    while True:
        time.sleep(0.01)  # a signal that arrives just before a sleep is handled after it

def run():
    with Journal(folder, len(grid), start=start) as journal:
        return run_blocks(journal=journal, grid=grid, read=read, predict=predict, encode=encode, write=write,
                          readers=2, writers=2, ahead=3, watcher=SilentWatcher())
"""
RUNS = (
    WORKER
    + """
tell("ready"), listen()
tell(run().done)
"""
)
IS_INTERRUPTED = (
    WORKER
    + """
calls = iter(range(1000))

def predict(read):
    if next(calls) == 5:
        tell("predicting")
        sleep_on()
    return read.index % 251 + 1

try:
    run()
except KeyboardInterrupt:
    tell("interrupted", threading.active_count())
"""
)
HANGS = (
    WORKER
    + """
real_join = ThreadGroup.join

def join(group):
    tell("stopping")
    real_join(group)

ThreadGroup.join = join

def write(box, content):
    threading.Event().wait()

calls = iter(range(1000))

def predict(read):
    if next(calls) == 1:
        tell("predicting")
        sleep_on()
    return 0

try:
    run()
except KeyboardInterrupt:
    tell("interrupted")
"""
)
BLOCKS = 2000


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture
def folder(tmp_path):
    Journal.create(tmp_path, BLOCKS)
    (tmp_path / "data").write_bytes(bytes(BLOCKS))
    return tmp_path


def counts(folder):
    with Journal(folder, BLOCKS) as journal:
        return journal.count()


def marked(folder):
    return [block for block, mark in enumerate((folder / "blocks").read_bytes()) if mark == 1]


def fails_at(number, error, step):
    """Return the step, changed so that its n-th call raises the error."""
    calls = iter(range(10**6))

    def failing(*arguments):
        if next(calls) == number:
            raise error
        return step(*arguments)

    return failing


def is_consistent(work):
    """Check that each marked block was written once, and that no block was written partly."""
    done = np.frombuffer(work.marks, np.uint8)
    assert set(done) <= {0, 1}
    for box, mark in zip(work.grid, done, strict=True):
        times = work.times_written[box.slices()]
        assert times.min() == times.max()
        assert mark <= times.max() <= 1
    return True


# Errors.


@pytest.mark.parametrize("step", ["read", "predict", "encode", "write"])
@pytest.mark.parametrize("kind", [BadOutput, MemoryError, ZeroDivisionError, SystemExit])
@pytest.mark.parametrize("number", [0, 13, 26])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_anywhere_stops_the_run_and_is_raised_unchanged(work, step, kind, number, threads):
    real, notes, error = getattr(work, step), Notes(), kind("it happened here")
    setattr(work, step, fails_at(number, error, real))
    with pytest.raises(kind) as raised:
        work.run(readers=threads, writers=threads, watcher=notes)
    assert raised.value is error
    assert is_consistent(work)
    *_, (last, summary) = notes.calls
    assert last == "over"
    assert summary.done == work.marks.count(b"\1") < 27
    setattr(work, step, real)
    assert work.run().done == 27 - summary.done
    assert work.is_complete()


def test_nothing_is_claimed_after_a_full_disk(work):
    begun, real = [], work.read
    work.read = lambda box: begun.append(box) or real(box)
    work.write = fails_at(0, BadOutput("can't write: no space left on device"), work.write)
    with pytest.raises(BadOutput, match="no space left"):
        work.run(readers=1, writers=1, ahead=2)
    assert len(begun) <= max_blocks_in_memory(ahead=2, writers=1)
    assert work.marks == bytes(27)


def test_unfinished_claims_are_released(work, children):
    """Claims are released while the journal is still open: the process may continue with something else."""
    found = []

    class Asks(Notes):
        def over(self, summary):
            super().over(summary)
            found.extend(ended_well(children.start(CLAIMS_WHAT_IS_FREE, work.folder, 27)).split())

    work.predict = fails_at(3, BadNetwork("it gave NaN"), work.predict)
    with pytest.raises(BadNetwork):
        work.run(watcher=Asks())
    assert [int(block) for block in found] == [block for block, mark in enumerate(work.marks) if mark == 0]


def test_a_write_in_progress_is_finished_when_another_fails(work):
    failed = threading.Event()
    first, real = work.grid[0], work.write

    def write(box, values):
        if box != first:
            failed.set()
            raise BadOutput("the disk is full")
        failed.wait()
        real(box, values)

    work.write = write
    with pytest.raises(BadOutput):
        work.run(readers=1, writers=2)
    assert work.marks[0] == 1
    assert is_consistent(work)


def test_two_errors_are_both_shown(work):
    both = threading.Barrier(2)
    errors = [BadOutput("the disk is full"), ZeroDivisionError("a bug")]

    def write(box, values):
        both.wait()
        raise errors.pop()

    work.write = write
    with pytest.raises((BadOutput, ZeroDivisionError)) as raised:
        work.run(readers=1, writers=2)
    assert {type(raised.value), type(raised.value.__context__)} == {BadOutput, ZeroDivisionError}


def test_a_bad_region_while_predicting_is_an_error(work):
    work.predict = fails_at(2, BadRegion("not while reading"), work.predict)
    with pytest.raises(BadRegion, match="not while reading"):
        work.run()
    assert 3 not in work.marks


def test_a_watcher_that_fails_is_not_ignored(work):
    notes = Notes()
    notes.block_done = fails_at(4, RuntimeError("no terminal"), notes.block_done)
    with pytest.raises(RuntimeError, match="no terminal"):
        work.run(watcher=notes)
    assert is_consistent(work)


def test_a_mark_that_can_not_be_written_stops_the_run(work, monkeypatch):
    monkeypatch.setattr(Journal, "mark_done", fails_at(5, BadOutput("can't keep count"), lambda *_: None))
    with pytest.raises(BadOutput, match="can't keep count"):
        work.run()


def test_an_error_while_waiting_for_others_ends_the_wait(work, children):
    holder = children.start(
        "from rigdyno.engines.blockwise.journal import Journal\n"
        "claims = Journal(Path(sys.argv[1]), 27).claims()\n"
        "tell(next(claims)), listen()\n",
        work.folder,
    )
    assert heard(holder) == "0"
    waiting, notes = threading.Event(), Notes()
    notes.waiting_for_others = lambda blocks: waiting.set()

    def predict(reading):
        waiting.wait()
        raise BadNetwork("it gave NaN")

    work.predict = predict
    with pytest.raises(BadNetwork):
        work.run(readers=3, ahead=30, watcher=notes)


# Ctrl-C.


def test_an_interrupt_lets_writers_finish(work):
    stopped, real_write, real_predict = threading.Event(), work.write, work.predict

    def write(box, values):
        stopped.wait()
        real_write(box, values)

    def predict(reading):
        if (reading.values == work.volume[work.grid[1].slices()]).all():
            raise KeyboardInterrupt
        return real_predict(reading)

    class Releases(ThreadGroup):
        def join(self):
            stopped.set()
            super().join()

    work.write, work.predict = write, predict
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rigdyno.engines.blockwise.pipeline.ThreadGroup", Releases)
        with pytest.raises(KeyboardInterrupt):
            work.run(readers=1, writers=1)
    assert work.marks == b"\1" + bytes(26)
    assert is_consistent(work)


def test_an_interrupt_does_not_hide_the_error_of_a_writer(work):
    failing = threading.Event()

    def write(box, values):
        failing.wait()
        raise BadOutput("the disk is full")

    def predict(reading):
        if not failing.is_set() and (reading.values == work.volume[work.grid[1].slices()]).all():
            failing.set()
            raise KeyboardInterrupt
        return reading.values

    work.write, work.predict = write, predict
    with pytest.raises(KeyboardInterrupt) as raised:
        work.run(readers=1, writers=1)
    assert isinstance(raised.value.__context__, BadOutput)


def test_a_second_interrupt_returns_at_once_and_keeps_claims_of_running_writes(work, monkeypatch, children):
    """A block that is still being written stays claimed as long as the journal is open."""
    finish, free, real = threading.Event(), [], work.write

    class Impatient(ThreadGroup):
        def join(self):
            raise KeyboardInterrupt

    class Asks(Notes):
        def over(self, summary):
            free.extend(ended_well(children.start(CLAIMS_WHAT_IS_FREE, work.folder, 27)).split())
            finish.set()
            until(lambda: threading.active_count() == before, "the writer had ended")

    def write(box, values):
        finish.wait()
        real(box, values)

    before = threading.active_count()
    monkeypatch.setattr("rigdyno.engines.blockwise.pipeline.ThreadGroup", Impatient)
    work.write, work.predict = write, fails_at(1, KeyboardInterrupt(), work.predict)
    with pytest.raises(KeyboardInterrupt):
        work.run(readers=1, writers=1, watcher=Asks())
    assert "0" not in free
    assert work.marks == b"\1" + bytes(26)


def test_a_real_interrupt_keeps_finished_blocks(folder, children):
    worker = children.start(IS_INTERRUPTED, folder, 0)
    assert heard(worker) == "predicting"
    worker.send_signal(signal.SIGINT)
    assert ended_well(worker).split() == ["interrupted", "1"]
    assert counts(folder) == BlockCounts(BLOCKS - 5, 5, 0, 0)
    written = [block for block, value in enumerate((folder / "data").read_bytes()) if value]
    assert written == marked(folder)


def test_a_second_real_interrupt_ends_a_process_whose_disk_hangs(folder, children):
    worker = children.start(HANGS, folder, 0)
    assert heard(worker) == "predicting"
    worker.send_signal(signal.SIGINT)
    assert heard(worker) == "stopping"
    worker.send_signal(signal.SIGINT)
    assert ended_well(worker).split() == ["interrupted"]
    assert counts(folder) == BlockCounts(BLOCKS, 0, 0, 0)


def test_an_interrupt_while_the_last_blocks_are_written_waits_for_them(work, monkeypatch):
    finish, real = threading.Event(), work.write
    joins = iter([KeyboardInterrupt(), None])

    class Interrupted(ThreadGroup):
        def join(self):
            if error := next(joins):
                raise error
            finish.set()
            super().join()

    def write(box, values):
        finish.wait()
        real(box, values)

    monkeypatch.setattr("rigdyno.engines.blockwise.pipeline.ThreadGroup", Interrupted)
    work.write = write
    with pytest.raises(KeyboardInterrupt):
        work.run(writers=27)
    assert work.is_complete()
    assert work.marks == b"\1" * 27


def test_an_interrupted_join_knows_that_its_threads_still_run():
    group, joining, go_on, main = ThreadGroup(lambda: None), threading.Event(), threading.Event(), threading.get_ident()

    def work():
        joining.wait()
        signal.pthread_kill(main, signal.SIGINT)
        go_on.wait()

    def join():
        joining.set()
        group.join()

    group.start(1, work)
    with pytest.raises(KeyboardInterrupt):
        join()
    assert group.is_running
    go_on.set()
    group.join()
    assert not group.is_running


# Kills.


def is_bit_identical(folder):
    return (folder / "data").read_bytes() == bytes(index % 251 + 1 for index in range(BLOCKS))


def begun(worker):
    assert heard(worker) == "ready"
    say(worker)
    return worker


def run_for(seconds, worker, folder):
    before = len(marked(folder))
    begun(worker)
    until(lambda: len(marked(folder)) > before or worker.poll() is not None, "it was under way")
    time.sleep(seconds)


def test_a_run_killed_at_random_moments_gives_the_same_bytes(folder, children):
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    for _ in range(10):
        worker = children.start(RUNS, folder, draw.random())
        run_for(draw.random() * 0.02, worker, folder)
        kill(worker)
    ended_well(begun(children.start(RUNS, folder, 0)))
    assert is_bit_identical(folder), f"seed {seed}"
    assert counts(folder) == BlockCounts(0, BLOCKS, 0, 0)


def test_workers_with_one_killed_give_the_same_bytes(folder, children):
    workers = [children.start(RUNS, folder, rank / 3) for rank in range(3)]
    one, other, another = [begun(worker) for worker in workers]
    until(lambda: len(marked(folder)) > 20, "they were under way")
    kill(other)
    assert int(ended_well(one)) + int(ended_well(another)) <= BLOCKS
    assert is_bit_identical(folder)
    assert counts(folder) == BlockCounts(0, BLOCKS, 0, 0)
