"""Real processes on one journal, killed at any moment: all blocks are done, and none again after its mark."""

import random
from collections import Counter

import pytest
from blocks_children import ended_well, heard, kill, say, until

from rigdyno.engines.blockwise.journal import BlockCounts, Journal

HOLDS_FIVE = """
from rigdyno.engines.blockwise.journal import Journal
journal = Journal(Path(sys.argv[1]), 20)
claims = journal.claims()
tell(*[next(claims) for _ in range(5)])
journal.mark_done(3)
tell("one is done"), listen()
"""
# Writes, logs and marks each block, like a real worker; a kill may come between any two of these.
WORKS = """
import os, time
from rigdyno.engines.blockwise.journal import Journal
folder, log, blocks, start = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
data = os.open(folder / "data", os.O_RDWR)
log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
journal = Journal(folder, blocks, start=start)
tell("ready"), listen()
for block in journal.claims(wait=lambda seconds: time.sleep(0.005)):
    os.pwrite(data, bytes([block % 251 + 1]), block)
    os.write(log, b"%d\\n" % block)
    journal.mark_done(block)
"""


@pytest.fixture
def start(children, tmp_path):
    """Return a function that starts workers at the same moment, and returns them with their logs."""

    def started(blocks, *places):
        logs = [tmp_path / f"log.{len(list(tmp_path.glob('log.*')))}.{rank}" for rank in range(len(places))]
        workers = [children.start(WORKS, tmp_path, log, blocks, place) for log, place in zip(logs, places, strict=True)]
        assert [heard(worker) for worker in workers] == ["ready"] * len(workers)
        for worker in workers:
            say(worker)
        return workers, logs

    return started


def begin(folder, blocks):
    Journal.create(folder, blocks)
    (folder / "data").write_bytes(bytes(blocks))


def logged(log):
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def wait_for_progress(blocks, worker, log):
    until(lambda: len(logged(log)) > blocks or worker.poll() is not None, "the worker was in the middle of it")


def marked(folder):
    return {block for block, mark in enumerate((folder / "blocks").read_bytes()) if mark == 1}


def is_complete(folder, blocks):
    data = bytes(block % 251 + 1 for block in range(blocks))
    return marked(folder) == set(range(blocks)) and (folder / "data").read_bytes() == data


def test_a_waiting_worker_takes_over_the_blocks_of_a_dead_one(tmp_path, children):
    Journal.create(tmp_path, 20)
    worker = children.start(HOLDS_FIVE, tmp_path)
    assert heard(worker) == "0 1 2 3 4"
    assert heard(worker) == "one is done"
    reports = []
    with Journal(tmp_path, 20) as journal:
        claims = journal.claims(
            waiting=reports.append, wait=lambda seconds: kill(worker) if len(reports) == 3 else None
        )
        assert [next(claims) for _ in range(15)] == list(range(5, 20))
        assert reports == []
        assert list(claims) == [0, 1, 2, 4]
        assert reports == [4, 4, 4]


@pytest.mark.parametrize("places", [(0, 0.25, 0.5, 0.75), (0, 0, 0)])
def test_workers_do_each_block_once(tmp_path, start, places):
    blocks = 3000
    begin(tmp_path, blocks)
    workers, logs = start(blocks, *places)
    for worker in workers:
        ended_well(worker)
    assert sorted(block for log in logs for block in logged(log)) == list(range(blocks))
    assert is_complete(tmp_path, blocks)


def test_other_workers_finish_the_blocks_of_killed_ones(tmp_path, start):
    blocks = 10_000
    begin(tmp_path, blocks)
    workers, logs = start(blocks, 0, 0.25, 0.5, 0.75)
    for rank in (1, 3):
        wait_for_progress(50, workers[rank], logs[rank])
        kill(workers[rank])
    for rank in (0, 2):
        ended_well(workers[rank])
    assert is_complete(tmp_path, blocks)
    times = Counter(block for log in logs for block in logged(log))
    assert set(times) == set(range(blocks))
    unfinished = {*logged(logs[1])[-1:], *logged(logs[3])[-1:]}  # written, and perhaps not marked
    assert {block for block, count in times.items() if count > 1} <= unfinished


def test_kills_at_random_moments_lose_no_block(tmp_path, start):
    blocks, seed = 4000, random.randrange(2**32)
    draw = random.Random(seed)
    begin(tmp_path, blocks)
    for _ in range(15):
        before = marked(tmp_path)
        (worker,), (log,) = start(blocks, draw.random())
        wait_for_progress(draw.randrange(200), worker, log)
        kill(worker)
        again = before & set(logged(log))
        assert not again, f"done again after their marks: {again} (seed {seed})"
        assert before <= marked(tmp_path)
        assert len(set(logged(log)) - marked(tmp_path)) <= 1
    before = marked(tmp_path)
    (worker,), (log,) = start(blocks, 0)
    ended_well(worker)
    assert is_complete(tmp_path, blocks)
    assert set(logged(log)) == set(range(blocks)) - before
    with Journal(tmp_path, blocks) as journal:
        assert journal.count() == BlockCounts(0, blocks, 0, 0)
