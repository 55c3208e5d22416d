"""One worker's claims and marks, and what others do between two of its looks."""

import errno
import os

import pytest
from blocks_children import ended_well, heard, say
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.engines.blockwise import journal as journal_module
from rigdyno.engines.blockwise.errors import BadOutput, BadSetting, WontResume
from rigdyno.engines.blockwise.journal import Counts, Journal

CLAIMS = """
from rigdyno.engines.blockwise.journal import Journal
journal = Journal(Path(sys.argv[1]), int(sys.argv[2]))
claims = journal.claims(wait=lambda seconds: sys.exit())
while (word := listen()) == "claim":
    tell(next(claims))
"""
CLAIMS_WHAT_IS_FREE = """
from rigdyno.engines.blockwise.journal import Journal
def stop(seconds):
    sys.exit()
for block in Journal(Path(sys.argv[1]), int(sys.argv[2])).claims(wait=stop):
    tell(block)
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def laid_out(folder, blocks, **options):
    Journal.lay_out(folder, blocks)
    return Journal(folder, blocks, **options)


def no_wait(seconds):
    raise AssertionError("there was nobody to wait for")


def test_all_blocks_once_in_order(folder):
    with laid_out(folder, 5) as journal:
        seen = []
        for block in journal.claims(wait=no_wait):
            seen.append(block)
            journal.done(block)
        assert seen == [0, 1, 2, 3, 4]
        assert journal.counts() == Counts(0, 5, 0, 0)


@pytest.mark.parametrize(("start", "order"), [(1 / 4, [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]), (0.99, [9, *range(9)])])
def test_workers_start_at_different_places(folder, start, order):
    with laid_out(folder, 10, start=start) as journal:
        assert list(journal.claims(wait=no_wait)) == order


def test_own_blocks_that_are_not_finished_are_not_waited_for(folder):
    with laid_out(folder, 3) as journal:
        claims = journal.claims(wait=no_wait)
        assert list(claims) == [0, 1, 2]
        assert journal.counts() == Counts(3, 0, 0, 0)


def test_what_is_finished_stays_so(folder):
    with laid_out(folder, 4) as journal:
        claims = journal.claims(wait=no_wait)
        journal.done(next(claims)), journal.skipped(next(claims)), journal.failed(next(claims))
        assert journal.counts() == Counts(to_do=1, done=1, skipped=1, failed=1)
    with Journal(folder, 4) as again:
        assert again.counts() == Counts(to_do=1, done=1, skipped=1, failed=1)


def test_what_failed_is_tried_again_by_the_next_run_and_not_by_this(folder):
    with laid_out(folder, 3) as journal:
        seen = []
        for block in journal.claims(wait=no_wait):
            seen.append(block)
            journal.failed(block) if block == 1 else journal.done(block)
        assert seen == [0, 1, 2]
        assert journal.counts().failed == 1
    with Journal(folder, 3) as again:
        assert list(again.claims(wait=no_wait)) == [1]


def test_given_back_is_to_do_again(folder):
    with laid_out(folder, 3) as journal:
        assert next(journal.claims()) == 0
        journal.give_back()
        assert list(journal.claims(wait=no_wait)) == [0, 1, 2]


def test_only_what_is_claimed_is_marked(folder):
    with laid_out(folder, 3) as journal:
        with pytest.raises(BadSetting, match="isn't claimed"):
            journal.done(1)
        journal.done(next(journal.claims()))
        with pytest.raises(BadSetting, match="isn't claimed"):
            journal.done(0)
        assert journal.counts() == Counts(2, 1, 0, 0)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=1, max_size=300).map(lambda marks: bytes(mark % 4 for mark in marks)), st.integers(1, 9))
def test_whatever_the_size_of_a_piece(tmp_path_factory, marks, piece):
    folder = tmp_path_factory.mktemp("marks")
    (folder / "blocks").write_bytes(marks)
    with pytest.MonkeyPatch.context() as patched, Journal(folder, len(marks), start=0.4) as journal:
        patched.setattr(journal_module, "PIECE_BYTES", piece)
        assert journal.counts() == Counts(*(marks.count(state) for state in range(4)))
        claimed = list(journal.claims(wait=no_wait))
        assert sorted(claimed) == [block for block, mark in enumerate(marks) if mark in (0, 3)]


def test_millions_of_blocks_are_looked_through_in_no_time(folder):
    blocks = 20_000_000
    (folder / "blocks").write_bytes(b"\1" * (blocks - 1) + b"\0")
    with Journal(folder, blocks, start=0.5) as journal:
        assert list(journal.claims(wait=no_wait)) == [blocks - 1]


# Between looking and locking.


def test_a_block_that_was_finished_meanwhile_is_not_done_again(folder, monkeypatch):
    real = journal_module._lock

    def finished_by_another(descriptor, block):
        if block == 1:
            os.pwrite(descriptor, b"\1", block)
        return real(descriptor, block)

    monkeypatch.setattr(journal_module, "_lock", finished_by_another)
    with laid_out(folder, 3) as journal:
        assert list(journal.claims(wait=no_wait)) == [0, 2]
        assert journal.counts() == Counts(2, 1, 0, 0)


def test_a_failure_that_was_mended_meanwhile_stays_done(folder, monkeypatch):
    (folder / "blocks").write_bytes(b"\1\3\1")
    real, marks = journal_module._lock, [b"\1"]

    def finished_by_another(descriptor, block):
        if marks:
            os.pwrite(descriptor, marks.pop(), block)
        return real(descriptor, block)

    monkeypatch.setattr(journal_module, "_lock", finished_by_another)
    with Journal(folder, 3) as journal:
        assert list(journal.claims(wait=no_wait)) == []
        assert journal.counts() == Counts(0, 3, 0, 0)


def test_a_claim_keeps_other_processes_out_until_it_is_finished(folder, children):
    with laid_out(folder, 4) as journal:
        claims = journal.claims()
        assert [next(claims), next(claims), next(claims)] == [0, 1, 2]
        journal.skipped(1)
        assert ended_well(children.start(CLAIMS_WHAT_IS_FREE, folder, 4)).split() == ["3"]
        journal.give_back()
        assert ended_well(children.start(CLAIMS_WHAT_IS_FREE, folder, 4)).split() == ["0", "2", "3"]


def test_two_workers_take_turns_and_never_meet(folder, children):
    with laid_out(folder, 6) as journal:
        worker = children.start(CLAIMS, folder, 6)
        claims, mine, theirs = journal.claims(wait=no_wait), [], []
        for _ in range(3):
            say(worker, "claim")
            theirs.append(int(heard(worker)))
            mine.append(next(claims))
        assert (theirs, mine) == ([0, 2, 4], [1, 3, 5])


# One descriptor in a process.


def test_opened_twice_is_refused_and_loses_no_claim(folder, children):
    with laid_out(folder, 2) as journal:
        assert next(journal.claims()) == 0
        with pytest.raises(BadSetting, match="open in this process already"):
            Journal(folder, 2)
        (folder / "linked").mkdir()
        (folder / "linked" / "blocks").hardlink_to(folder / "blocks")
        with pytest.raises(BadSetting, match="open in this process already"):
            Journal(folder / "linked", 2)
        assert ended_well(children.start(CLAIMS_WHAT_IS_FREE, folder, 2)).split() == ["1"]
    Journal(folder, 2).close()


def test_after_closing_nothing_is_marked(folder):
    """Its descriptor's number may be another file's by then."""
    journal = laid_out(folder, 2)
    block = next(journal.claims())
    journal.close()
    journal.close()
    with pytest.raises(BadSetting, match="is closed"):
        journal.done(block)
    assert (folder / "blocks").read_bytes() == b"\0\0"


def test_a_fork_has_no_claims(folder):
    with laid_out(folder, 2) as journal:
        block = next(journal.claims())
        child = os.fork()
        if child == 0:
            try:
                journal.done(block)
            except BadSetting:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        journal.done(block)


# What lies there isn't what was expected.


@pytest.mark.parametrize("size", [0, 4, 6])
def test_a_file_of_another_size_is_refused(folder, size):
    (folder / "blocks").write_bytes(bytes(size))
    with pytest.raises(WontResume, match=f"has {size} marks for 5 blocks, so it is damaged: take another output"):
        Journal(folder, 5)


def test_a_file_that_is_not_there(folder):
    with pytest.raises(BadOutput, match=r"can't open .*blocks: no such file"):
        Journal(folder, 5)


def test_marks_that_mean_nothing(folder):
    (folder / "blocks").write_bytes(b"\0\1\7x\3")
    with Journal(folder, 5) as journal, pytest.raises(WontResume, match="2 of its marks mean nothing"):
        journal.counts()


def test_cut_short_while_it_is_in_use(folder):
    with laid_out(folder, 5) as journal:
        os.truncate(folder / "blocks", 3)
        with pytest.raises(WontResume, match="cut short"):
            list(journal.claims(wait=no_wait))


@pytest.mark.parametrize("start", [-0.1, 1.0])
def test_a_start_outside_of_the_volume(folder, start):
    with pytest.raises(BadSetting, match="rank/world"):
        Journal(folder, 5, start=start)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_mark_that_can_not_be_written_is_an_error(folder, monkeypatch, code):
    def fails(*_):
        raise OSError(code, os.strerror(code))

    with laid_out(folder, 2) as journal:
        block = next(journal.claims())
        with monkeypatch.context() as patched:
            patched.setattr(journal_module.os, "pwrite", fails)
            with pytest.raises(BadOutput, match="can't keep count of blocks in"):
                journal.done(block)
        assert journal.counts() == Counts(2, 0, 0, 0)
