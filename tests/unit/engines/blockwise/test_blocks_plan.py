"""The plan of a run is made once, survives killed processes, and is never used for another run."""

import errno
import fcntl
import json
import os
import threading

import pytest
from blocks_children import ended_well, heard, kill, say

from rigdyno.engines.blockwise.errors import BadOutput, BadSetting, WontResume
from rigdyno.engines.blockwise.plan_file import abandon, require_same, settle

PLAN = {"fingerprint": {"model": "a1", "grid": "b2"}, "block": [64, 64, 64], "threshold": 0.5}
RACES = """
import json, os, time
from rigdyno.engines.blockwise.plan_file import settle
folder, others = Path(sys.argv[1]), int(sys.argv[2])

def make():
    with (folder.parent / "made").open("a") as made:
        made.write("once\\n")
    until = time.monotonic() + 60
    while len(list(folder.parent.glob("waiting-*"))) < others and time.monotonic() < until:
        time.sleep(0.001)
    return {"fingerprint": {}, "by": os.getpid()}

def waiting():
    (folder.parent / f"waiting-{os.getpid()}").touch()

tell("ready"), listen()
tell(settle(folder, make, waiting=waiting, wait=lambda seconds: time.sleep(0.001)).plan["by"])
"""
MAKES_FOR_LONG = """
from rigdyno.engines.blockwise.plan_file import settle

def make():
    tell("making"), listen()
    return {"fingerprint": {}, "by": "the child"}

settle(Path(sys.argv[1]), make)
tell("settled")
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out.zarr" / ".rigdyno"


def never():
    raise AssertionError("the plan exists already")


def settled(folder, **fingerprint):
    return settle(folder, lambda: {"fingerprint": fingerprint})


def test_the_first_process_makes_the_plan_and_the_next_reads_it(folder):
    first = settle(folder, lambda: PLAN)
    assert (first.plan, first.made_here) == (PLAN, True)
    second = settle(folder, never)
    assert (second.plan, second.made_here) == (PLAN, False)
    assert second.fingerprint == {"model": "a1", "grid": "b2"}


def test_maker_and_readers_see_the_same_plan(folder):
    first = settle(folder, lambda: {**PLAN, "block": (64, 64, 64)})
    assert first.plan == settle(folder, never).plan


def test_no_temporary_file_is_left(folder):
    settle(folder, lambda: PLAN)
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "plan.json"]


def test_an_error_while_making_leaves_no_plan(folder):
    def make():
        raise MemoryError

    with pytest.raises(MemoryError):
        settle(folder, make)
    assert not folder.exists()
    assert settle(folder, lambda: PLAN).made_here


@pytest.mark.parametrize(
    "plan", [{}, {"fingerprint": {"model": 3}}, {**PLAN, "x": float("nan")}, {**PLAN, "x": object()}]
)
def test_a_plan_that_could_not_be_read_again_is_not_written(folder, plan):
    with pytest.raises(BadSetting, match="can't be stored"):
        settle(folder, lambda: plan)
    assert not (folder / "plan.json").exists()


# Several processes.


def test_racing_processes_make_the_plan_once(folder, children):
    """The first process makes the plan; it finishes only when all others wait for it."""
    racers = [children.start(RACES, folder, 4) for _ in range(5)]
    assert [heard(racer) for racer in racers] == ["ready"] * 5
    for racer in racers:
        say(racer)
    assert len({ended_well(racer) for racer in racers}) == 1
    assert (folder.parent / "made").read_text() == "once\n"


def test_waiting_processes_report_that_they_wait(folder, children):
    maker = children.start(MAKES_FOR_LONG, folder)
    assert heard(maker) == "making"
    reports = []

    def wait(seconds):
        if len(reports) == 2:
            say(maker)
            assert heard(maker) == "settled"

    found = settle(folder, never, waiting=lambda: reports.append("waiting"), wait=wait)
    assert found.plan["by"] == "the child"
    assert len(reports) == 2


def test_a_killed_maker_is_replaced(folder, children):
    maker = children.start(MAKES_FOR_LONG, folder)
    assert heard(maker) == "making"
    assert settle(folder, lambda: PLAN, wait=lambda seconds: kill(maker)).made_here


def test_a_waiting_process_replaces_a_maker_that_fails(folder, children):
    maker = children.start(MAKES_FOR_LONG.replace("return", "raise SystemExit('not today')  #"), folder)
    assert heard(maker) == "making"
    reports = []

    def wait(seconds):
        reports.append("waiting")
        if len(reports) == 1:
            say(maker)
            maker.wait()

    assert settle(folder, lambda: PLAN, wait=wait).made_here
    assert settle(folder, never).plan == PLAN


def test_two_threads_make_the_plan_once(folder):
    made, found = [], []
    work = threading.Thread(target=lambda: found.append(settle(folder, lambda: made.append(1) or PLAN)))
    found.append(settle(folder, lambda: made.append(2) or work.start() or PLAN))
    work.join()
    assert made == [2]
    assert [one.made_here for one in found] == [True, False]


def test_a_lock_on_a_removed_file_is_taken_again(folder, monkeypatch):
    real, locked = fcntl.lockf, []

    def removes_it_first(descriptor, operation):
        if not locked:
            (folder / "lock").unlink()
        locked.append(descriptor)
        return real(descriptor, operation)

    monkeypatch.setattr(fcntl, "lockf", removes_it_first)
    waits = []
    assert settle(folder, lambda: PLAN, wait=waits.append).made_here
    assert len(waits) == 1


# Damaged or changed plans.


def test_a_truncated_plan_is_refused(folder):
    settle(folder, lambda: PLAN)
    path = folder / "plan.json"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(WontResume, match="damaged or truncated") as refused:
            settle(folder, never)
        assert "\n" not in str(refused.value)
        assert str(path) in str(refused.value)
        assert "--overwrite" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[1, 2]", "isn't the plan"),
        (b"\xff\xfe\x00", "damaged or truncated"),
        (b"[" * 200_000, "damaged or truncated"),
        (b'{"format": "rigdyno blockwise plan", "version": 7}', "wrote it in format 7, and this one reads 1"),
        (b'{"format": "rigdyno blockwise plan", "version": 1, "plan": []}', "its fingerprint is missing"),
        (b" " * (16 * 2**20 + 1), "more than 16777216 bytes"),
    ],
    ids=["a list", "no text", "deep", "later", "no plan", "large"],
)
def test_other_content_is_refused(folder, content, reason):
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(content)
    with pytest.raises(WontResume, match=reason):
        settle(folder, never)
    assert (folder / "plan.json").read_bytes() == content


def test_the_same_fingerprint_is_accepted(folder):
    require_same(settled(folder, model="a", grid="b"), {"grid": "b", "model": "a"})


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"model": "x", "mask_box": "b"}, "the model has changed;"),
        ({"model": "a", "mask_box": "x"}, "the mask box has changed;"),
        ({"model": "x", "mask_box": "x"}, "the model has changed and the mask box has changed;"),
        ({"model": "a"}, "the mask box has changed;"),
        ({"model": "a", "mask_box": "b", "input": "c"}, "the input has changed;"),
    ],
)
def test_changed_fingerprints_are_named(folder, wanted, words):
    with pytest.raises(WontResume) as refused:
        require_same(settled(folder, model="a", mask_box="b"), wanted)
    assert f"begun in {folder.parent}: {words} take another output, or begin anew with --overwrite" in str(
        refused.value
    )


# Errors of the disk.


def test_a_file_in_place_of_the_folder_is_refused(folder):
    folder.parent.write_text("something of the user's")
    with pytest.raises(BadOutput, match="can't lock"):
        settle(folder, lambda: PLAN)


def test_a_file_system_without_locks_is_named(folder, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pytest.raises(BadOutput, match="has no locks, so take an output on another one"):
        settle(folder, lambda: PLAN)


def test_a_full_disk_leaves_no_plan(folder, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(BadOutput, match="no space left"):
            settle(folder, lambda: PLAN)
    assert not folder.exists()
    assert json.dumps(settle(folder, lambda: PLAN).plan) == json.dumps(PLAN)


class TestAbandon:
    def test_an_interrupt_before_the_lock_was_held_leaves_nothing(self, tmp_path):
        folder = tmp_path / "plan"
        folder.mkdir()
        (folder / "lock").touch()
        abandon(folder)
        assert not folder.exists()

    def test_a_finished_plan_stays(self, tmp_path):
        settled = settle(tmp_path / "plan", lambda: {"fingerprint": {}})
        abandon(settled.folder)
        assert (settled.folder / "plan.json").exists()

    def test_a_plan_that_another_process_makes_stays(self, folder, children):
        maker = children.start(MAKES_FOR_LONG, folder)
        assert heard(maker) == "making"
        abandon(folder)
        assert (folder / "lock").exists()
        say(maker)
        assert heard(maker) == "settled"

    def test_a_missing_folder_is_ignored(self, tmp_path):
        abandon(tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()
