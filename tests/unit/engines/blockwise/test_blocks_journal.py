"""Claims and marks of one worker, while other workers change the same file."""

import errno
import os

import pytest
from blocks_children import ended_well, heard, say
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.engines.blockwise import journal as journal_module
from rigdyno.engines.blockwise.errors import BadOutput, BadSetting, WontResume
from rigdyno.engines.blockwise.journal import BlockCounts, Journal

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


def new_journal(folder, blocks, **options):
    Journal.create(folder, blocks)
    return Journal(folder, blocks, **options)


def no_wait(seconds):
    raise AssertionError("there was no other worker to wait for")


def test_blocks_are_claimed_once_and_in_order(folder):
    with new_journal(folder, 5) as journal:
        seen = []
        for block in journal.claims(wait=no_wait):
            seen.append(block)
            journal.mark_done(block)
        assert seen == [0, 1, 2, 3, 4]
        assert journal.count() == BlockCounts(0, 5, 0, 0)


@pytest.mark.parametrize(("start", "order"), [(1 / 4, [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]), (0.99, [9, *range(9)])])
def test_workers_start_at_different_places(folder, start, order):
    with new_journal(folder, 10, start=start) as journal:
        assert list(journal.claims(wait=no_wait)) == order


def test_own_blocks_that_are_not_finished_are_not_waited_for(folder):
    with new_journal(folder, 3) as journal:
        claims = journal.claims(wait=no_wait)
        assert list(claims) == [0, 1, 2]
        assert journal.count() == BlockCounts(3, 0, 0, 0)


def test_marks_survive_reopening(folder):
    with new_journal(folder, 4) as journal:
        claims = journal.claims(wait=no_wait)
        journal.mark_done(next(claims)), journal.mark_skipped(next(claims)), journal.mark_failed(next(claims))
        assert journal.count() == BlockCounts(to_do=1, done=1, skipped=1, failed=1)
    with Journal(folder, 4) as again:
        assert again.count() == BlockCounts(to_do=1, done=1, skipped=1, failed=1)


def test_failed_blocks_are_retried_by_the_next_run_only(folder):
    with new_journal(folder, 3) as journal:
        seen = []
        for block in journal.claims(wait=no_wait):
            seen.append(block)
            journal.mark_failed(block) if block == 1 else journal.mark_done(block)
        assert seen == [0, 1, 2]
        assert journal.count().failed == 1
    with Journal(folder, 3) as again:
        assert list(again.claims(wait=no_wait)) == [1]


def test_released_blocks_can_be_claimed_again(folder):
    with new_journal(folder, 3) as journal:
        assert next(journal.claims()) == 0
        journal.release()
        assert list(journal.claims(wait=no_wait)) == [0, 1, 2]


def test_only_claimed_blocks_can_be_marked(folder):
    with new_journal(folder, 3) as journal:
        with pytest.raises(BadSetting, match="isn't claimed"):
            journal.mark_done(1)
        journal.mark_done(next(journal.claims()))
        with pytest.raises(BadSetting, match="isn't claimed"):
            journal.mark_done(0)
        assert journal.count() == BlockCounts(2, 1, 0, 0)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=1, max_size=300).map(lambda marks: bytes(mark % 4 for mark in marks)), st.integers(1, 9))
def test_the_size_of_a_piece_changes_nothing(tmp_path_factory, marks, piece):
    folder = tmp_path_factory.mktemp("marks")
    (folder / "blocks").write_bytes(marks)
    with pytest.MonkeyPatch.context() as patched, Journal(folder, len(marks), start=0.4) as journal:
        patched.setattr(journal_module, "PIECE_BYTES", piece)
        assert journal.count() == BlockCounts(*(marks.count(state) for state in range(4)))
        claimed = list(journal.claims(wait=no_wait))
        assert sorted(claimed) == [block for block, mark in enumerate(marks) if mark in (0, 3)]


def test_millions_of_blocks_are_searched_quickly(folder):
    blocks = 20_000_000
    (folder / "blocks").write_bytes(b"\1" * (blocks - 1) + b"\0")
    with Journal(folder, blocks, start=0.5) as journal:
        assert list(journal.claims(wait=no_wait)) == [blocks - 1]


# Changes between the look and the lock.


def test_a_block_that_was_finished_meanwhile_is_not_done_again(folder, monkeypatch):
    real = journal_module._try_lock

    def finished_by_another(descriptor, block):
        if block == 1:
            os.pwrite(descriptor, b"\1", block)
        return real(descriptor, block)

    monkeypatch.setattr(journal_module, "_try_lock", finished_by_another)
    with new_journal(folder, 3) as journal:
        assert list(journal.claims(wait=no_wait)) == [0, 2]
        assert journal.count() == BlockCounts(2, 1, 0, 0)


def test_a_failed_block_that_was_finished_meanwhile_stays_done(folder, monkeypatch):
    (folder / "blocks").write_bytes(b"\1\3\1")
    real, marks = journal_module._try_lock, [b"\1"]

    def finished_by_another(descriptor, block):
        if marks:
            os.pwrite(descriptor, marks.pop(), block)
        return real(descriptor, block)

    monkeypatch.setattr(journal_module, "_try_lock", finished_by_another)
    with Journal(folder, 3) as journal:
        assert list(journal.claims(wait=no_wait)) == []
        assert journal.count() == BlockCounts(0, 3, 0, 0)


def test_a_claim_keeps_other_processes_out_until_it_is_finished(folder, children):
    with new_journal(folder, 4) as journal:
        claims = journal.claims()
        assert [next(claims), next(claims), next(claims)] == [0, 1, 2]
        journal.mark_skipped(1)
        assert ended_well(children.start(CLAIMS_WHAT_IS_FREE, folder, 4)).split() == ["3"]
        journal.release()
        assert ended_well(children.start(CLAIMS_WHAT_IS_FREE, folder, 4)).split() == ["0", "2", "3"]


def test_two_workers_never_claim_the_same_block(folder, children):
    with new_journal(folder, 6) as journal:
        worker = children.start(CLAIMS, folder, 6)
        claims, mine, theirs = journal.claims(wait=no_wait), [], []
        for _ in range(3):
            say(worker, "claim")
            theirs.append(int(heard(worker)))
            mine.append(next(claims))
        assert (theirs, mine) == ([0, 2, 4], [1, 3, 5])


# Only one descriptor per process.


def test_opening_twice_is_refused_and_loses_no_claim(folder, children):
    with new_journal(folder, 2) as journal:
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
    """A closed journal writes nothing: its descriptor's number may belong to another file by then."""
    journal = new_journal(folder, 2)
    block = next(journal.claims())
    journal.close()
    journal.close()
    with pytest.raises(BadSetting, match="is closed"):
        journal.mark_done(block)
    assert (folder / "blocks").read_bytes() == b"\0\0"


def test_a_fork_has_no_claims(folder):
    with new_journal(folder, 2) as journal:
        block = next(journal.claims())
        child = os.fork()
        if child == 0:
            try:
                journal.mark_done(block)
            except BadSetting:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        journal.mark_done(block)


# Damaged or missing files.


@pytest.mark.parametrize("size", [0, 4, 6])
def test_a_file_of_another_size_is_refused(folder, size):
    (folder / "blocks").write_bytes(bytes(size))
    with pytest.raises(WontResume, match=f"has {size} marks for 5 blocks, so it is damaged: take another output"):
        Journal(folder, 5)


def test_a_missing_file_is_refused(folder):
    with pytest.raises(BadOutput, match=r"can't open .*blocks: no such file"):
        Journal(folder, 5)


def test_unknown_marks_are_refused(folder):
    (folder / "blocks").write_bytes(b"\0\1\7x\3")
    with Journal(folder, 5) as journal, pytest.raises(WontResume, match="2 of its marks are unknown"):
        journal.count()


def test_a_file_truncated_while_in_use_is_refused(folder):
    with new_journal(folder, 5) as journal:
        os.truncate(folder / "blocks", 3)
        with pytest.raises(WontResume, match="cut short"):
            list(journal.claims(wait=no_wait))


@pytest.mark.parametrize("start", [-0.1, 1.0])
def test_a_start_outside_the_volume_is_refused(folder, start):
    with pytest.raises(BadSetting, match="rank/world"):
        Journal(folder, 5, start=start)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_mark_that_can_not_be_written_is_an_error(folder, monkeypatch, code):
    def fails(*_):
        raise OSError(code, os.strerror(code))

    with new_journal(folder, 2) as journal:
        block = next(journal.claims())
        with monkeypatch.context() as patched:
            patched.setattr(journal_module.os, "pwrite", fails)
            with pytest.raises(BadOutput, match="can't keep count of blocks in"):
                journal.mark_done(block)
        assert journal.count() == BlockCounts(2, 0, 0, 0)
