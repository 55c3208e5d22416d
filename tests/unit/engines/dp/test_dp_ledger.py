"""The ledger never counts too little, despite kills at any moment, failing disks, old checkpoints and forks."""

import errno
import gc
import io
import json
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.engines.dp import ledger as ledger_module
from rigdyno.engines.dp.accounting import Epsilon, Spent
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.ledger import Ledger

RATE = 0.01
OPENS_AND_FORKS = """
import os, sys
from rigdyno.engines.dp.ledger import Ledger
ledger = Ledger.open(sys.argv[1])
if os.fork() == 0:
    print("forked", flush=True)
sys.stdin.read()
os._exit(0)
"""
RUNS_OUT_OF_DISK = """
import resource, sys
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.ledger import Ledger
ledger = Ledger.open(sys.argv[1], reserve=8)
for _ in range(5):
    ledger.spend(1.0, 0.01)
resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
try:
    for released in range(100):
        ledger.spend(1.0, 0.01)
except BadSetting as error:
    print(5 + released, error)
"""


def spend(ledger, steps, sigma=1.0):
    for _ in range(steps):
        ledger.spend(sigma, RATE)


def steps_in(ledger):
    return sum(run.steps for run in ledger.spent)


def steps_on_disk(path):
    histories = json.loads(path.read_text())["histories"]
    return sum(run["steps"] for history in histories.values() for run in history)


def kill(ledger):
    """Leave a ledger as a kill would: the lock is free, and nothing more was written."""
    ledger._file.unlock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "privacy.json"


def python(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# Counting.


def test_equal_neighbouring_steps_are_merged():
    ledger = Ledger()
    spend(ledger, 2), spend(ledger, 1, sigma=2.0), spend(ledger, 3)
    assert ledger.spent == [Spent(1.0, RATE, 2), Spent(2.0, RATE, 1), Spent(1.0, RATE, 3)]


def test_a_changed_rate_begins_a_new_entry():
    ledger = Ledger()
    ledger.spend(1.0, 0.01)
    ledger.spend(1.0, 0.02)
    assert ledger.spent == [Spent(1.0, 0.01, 1), Spent(1.0, 0.02, 1)]


def test_epsilon_covers_everything_spent(monkeypatch):
    asked = []
    monkeypatch.setattr(ledger_module, "epsilon_of", lambda spent, delta, accountant: asked.append((spent, delta)))
    ledger = Ledger()
    spend(ledger, 3)
    ledger.epsilon(1e-5)
    assert asked == [([Spent(1.0, RATE, 3)], 1e-5)]


def test_an_empty_ledger_costs_nothing(path):
    with Ledger.open(path) as ledger:
        assert ledger.spent == []
        assert ledger.epsilon(1e-5) == Epsilon(0.0, 0.0, 1e-5)


@pytest.mark.parametrize(("sigma", "rate"), [(-1.0, 0.1), (float("nan"), 0.1), (1.0, 0.0), (1.0, 2.0)])
def test_invalid_steps_are_not_counted(path, sigma, rate):
    with Ledger.open(path) as ledger:
        with pytest.raises(BadSetting):
            ledger.spend(sigma, rate)
        assert ledger.spent == []


def test_a_step_without_noise_is_counted():
    ledger = Ledger()
    ledger.spend(0.0, RATE)
    assert ledger.epsilon(1e-5).epsilon == float("inf")


# On disk.


def test_closing_writes_the_exact_count(path):
    with Ledger.open(path) as ledger:
        spend(ledger, 70)
        assert steps_on_disk(path) >= 70
    assert steps_on_disk(path) == 70
    with Ledger.open(path) as again:
        assert again.spent == [Spent(1.0, RATE, 70)]


def test_a_deleted_ledger_is_closed(path):
    ledger = Ledger.open(path)
    spend(ledger, 5)
    del ledger
    gc.collect()
    with Ledger.open(path) as again:
        assert steps_in(again) == 5


@pytest.mark.parametrize("reserve", [1, 2, 64])
def test_after_a_kill_the_reserve_counts_as_spent(path, reserve):
    ledger = Ledger.open(path, reserve)
    spend(ledger, 3)
    kill(ledger)
    with Ledger.open(path) as again:
        assert steps_in(again) == {1: 3, 2: 4, 64: 64}[reserve]


def test_steps_wait_for_the_disk_only_once_in_a_reserve(path, monkeypatch):
    with Ledger.open(path, reserve=50) as ledger:
        renamed = counted_calls(monkeypatch, "replace")
        spend(ledger, 100)
        assert len(renamed) == 2


def counted_calls(monkeypatch, name):
    real, calls = getattr(os, name), []
    monkeypatch.setattr(os, name, lambda *arguments, **more: (calls.append(arguments), real(*arguments, **more))[1])
    return calls


def test_a_changed_sigma_is_on_disk_at_once(path):
    ledger = Ledger.open(path)
    spend(ledger, 3), spend(ledger, 1, sigma=2.0), spend(ledger, 1)
    kill(ledger)
    with Ledger.open(path) as again:
        assert again.spent == [Spent(1.0, RATE, 3), Spent(2.0, RATE, 1), Spent(1.0, RATE, 64)]


def test_the_file_is_json_with_format_and_version(path):
    with Ledger.open(path) as ledger:
        spend(ledger, 2)
    document = json.loads(path.read_text())
    assert (document["format"], document["version"]) == ("rigdyno privacy ledger", 1)
    assert list(document["histories"].values()) == [[{"noise_multiplier": 1.0, "sample_rate": RATE, "steps": 2}]]


def test_opening_without_spending_writes_no_history(path):
    for _ in range(3):
        Ledger.open(path).close()
    assert json.loads(path.read_text())["histories"] == {}


def test_a_symbolic_link_opens_the_same_ledger(path, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(path)
    with Ledger.open(link) as ledger:
        spend(ledger, 2)
        with pytest.raises(BadSetting, match="in use"):
            Ledger.open(path)
    assert link.is_symlink()
    assert steps_on_disk(path) == 2


def test_a_closed_ledger_refuses_to_count(path):
    ledger = Ledger.open(path)
    spend(ledger, 2)
    ledger.close()
    ledger.close()
    with pytest.raises(BadSetting, match=r"privacy\.json is closed"):
        spend(ledger, 1)
    assert steps_in(ledger) == steps_on_disk(path) == 2


# Real kills.


def test_kills_at_random_moments_lose_no_count(path, tmp_path):
    released, kills, reserve = tmp_path / "released", 25, 3
    moments = random.Random(5)
    for _ in range(kills):
        enough = size_of(released) + moments.randrange(0, 40)
        child = os.fork()
        if child == 0:
            spend_for_ever(path, released, reserve)
        while size_of(released) < enough:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert size_of(released) <= (steps_on_disk(path) if path.exists() else 0)
    with Ledger.open(path) as ledger:
        assert size_of(released) <= steps_in(ledger) <= size_of(released) + kills * reserve


def spend_for_ever(path, released, reserve):
    """Spend until killed. A byte is written for every gradient released; once written, it outlives the process."""
    try:
        ledger = Ledger.open(path, reserve)
        file = os.open(released, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while True:
            ledger.spend(1.0, RATE)
            os.write(file, b".")
    finally:
        os._exit(1)  # never back into pytest


def size_of(file):
    return file.stat().st_size if file.exists() else 0


def test_a_killed_process_s_children_don_t_hold_the_lock(path):
    process = python(OPENS_AND_FORKS, path)
    assert process.stdout.readline() == "forked\n"
    with pytest.raises(BadSetting, match=r"privacy\.json is in use by another process"):
        Ledger.open(path)
    process.kill()
    process.wait()
    Ledger.open(path).close()
    process.stdin.close()  # ends the child
    process.stdout.close()


def test_a_child_neither_spends_from_its_parent_s_file_nor_writes_it(path):
    ledger = Ledger.open(path)
    spend(ledger, 2)
    child = os.fork()
    if child == 0:
        os._exit(spends_nothing_and_closes(ledger))
    assert os.waitpid(child, 0)[1] == 0
    spend(ledger, 62)
    kill(ledger)
    assert steps_on_disk(path) == 64


def spends_nothing_and_closes(ledger):
    try:
        spend(ledger, 1)
    except BadSetting as error:
        ledger.close()
        return 0 if "opened by a parent process" in str(error) else 1
    return 2


def test_a_child_s_steps_in_memory_are_its_own():
    ledger = Ledger()
    spend(ledger, 2)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        spend(ledger, 3)
        os.write(writing, json.dumps(ledger.state_dict()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    spend(ledger, 1)
    ledger.load_state_dict(json.loads(os.read(reading, 10_000)))
    assert steps_in(ledger) == 6


# Disks that fail.


def test_a_full_disk_stops_the_step_before_it_is_released(path):
    process = python(RUNS_OUT_OF_DISK, path)
    said = process.communicate()[0]
    assert process.returncode == 0
    released, message = said.split(" ", 1)
    assert f"can't write the privacy ledger {path}, so nothing may be released: file too large" in message
    assert int(released) == steps_on_disk(path) == 8


FAILURES = ["open", "write", "rename", "folder"]


def break_disk(patches, where):
    """Make the next writes fail at this one place."""

    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    real_fsync = os.fsync
    if where == "open":
        patches.setattr(Path, "open", full)
    if where == "write":
        patches.setattr(os, "fsync", full)
    if where == "rename":
        patches.setattr(os, "replace", full)
    if where == "folder":
        patches.setattr(os, "fsync", lambda fd: full() if stat.S_ISDIR(os.fstat(fd).st_mode) else real_fsync(fd))


@pytest.mark.parametrize("where", FAILURES)
def test_an_error_at_any_place_of_a_write_is_one_line_and_counts_nothing(path, where, monkeypatch):
    ledger = Ledger.open(path, reserve=2)
    spend(ledger, 2)
    with monkeypatch.context() as patches:
        break_disk(patches, where)
        for _ in range(2):
            with pytest.raises(BadSetting, match=f"can't write the privacy ledger {path}.*: no space left on device"):
                spend(ledger, 1)
    assert steps_in(ledger) == 2
    assert steps_on_disk(path) >= 2
    assert sorted(file.name for file in path.parent.iterdir()) == [".privacy.json.lock", "privacy.json"]
    spend(ledger, 1, sigma=2.0)
    ledger.close()
    assert steps_on_disk(path) == 3


@pytest.mark.parametrize("where", FAILURES)
def test_closing_on_a_full_disk_raises_and_unlocks(path, where, monkeypatch):
    ledger = Ledger.open(path)
    spend(ledger, 2)
    with monkeypatch.context() as patches:
        break_disk(patches, where)
        with pytest.raises(BadSetting, match="can't write"):
            ledger.close()
    with Ledger.open(path) as again:
        assert steps_in(again) >= 2


def test_a_write_that_failed_after_the_rename_isn_t_trusted(path, monkeypatch):
    """Disk and memory differ then: the reserve that the memory assumes is no longer on the disk."""
    ledger = Ledger.open(path)
    spend(ledger, 1)
    with monkeypatch.context() as patches:
        break_disk(patches, "folder")
        with pytest.raises(BadSetting):
            spend(ledger, 1, sigma=2.0)
    spend(ledger, 1)
    kill(ledger)
    with Ledger.open(path) as again:
        assert again.spent == [Spent(1.0, RATE, 65)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_reported(path):
    path.parent.chmod(0o500)
    with pytest.raises(BadSetting, match=r"can't lock the privacy ledger .*: permission denied"):
        Ledger.open(path)


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(BadSetting, match=r"can't lock the privacy ledger .*: no such file or directory"):
        Ledger.open(tmp_path / "missing" / "privacy.json")


@pytest.mark.parametrize("reserve", [0, -1, 1.5, None])
def test_an_invalid_reserve_is_refused(path, reserve):
    with pytest.raises(BadSetting, match="reserve must be a positive whole number"):
        Ledger.open(path, reserve)


def document(**run):
    entry = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 3, **run}
    return {"format": "rigdyno privacy ledger", "version": 1, "histories": {"a": [entry]}}


BAD_DOCUMENTS = [
    [],
    {"format": "something else"},
    {"format": "rigdyno privacy ledger", "version": 2, "histories": {}},
    {"format": "rigdyno privacy ledger", "version": 1},
    {"format": "rigdyno privacy ledger", "version": 1, "histories": []},
    {"format": "rigdyno privacy ledger", "version": 1, "histories": {"a": [1]}},
    {"format": "rigdyno privacy ledger", "version": 1, "histories": {"a": []}},
    document(steps=-3),
    document(steps=0),
    document(steps=2.5),
    document(steps=True),
    document(steps="3"),
    document(steps=10**30),
    document(noise_multiplier=-1.0),
    document(noise_multiplier=None),
    document(noise_multiplier="x" * 10_000),
    document(sample_rate=1.5),
    document(more=1),
]
BAD_FILES = [
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    json.dumps(document()).encode()[:-9],
    json.dumps(document(noise_multiplier=float("nan"))).encode(),
    json.dumps(document(noise_multiplier=float("inf"))).encode(),
    json.dumps(document()).replace("0.1", "1e999").encode(),
    json.dumps(document()).replace(" 3}", " " + "9" * 5000 + "}").encode(),
    *(json.dumps(bad).encode() for bad in BAD_DOCUMENTS),
]


@pytest.mark.parametrize("content", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_is_no_ledger_is_reported_and_not_changed(path, content):
    path.write_bytes(content)
    with pytest.raises(BadSetting, match=r"privacy\.json is no privacy ledger, or a damaged one \(") as caught:
        Ledger.open(path)
    assert len(str(caught.value)) < 600
    assert path.read_bytes() == content
    path.unlink()
    Ledger.open(path).close()  # the lock was released


def test_a_folder_or_a_pipe_is_refused(path):
    path.mkdir()
    with pytest.raises(BadSetting, match="is no file"):
        Ledger.open(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(BadSetting, match="is no file"):
        Ledger.open(path)


def test_a_file_that_is_too_large_is_refused(path, monkeypatch):
    monkeypatch.setattr("rigdyno.engines.dp.ledger_file.MOST_BYTES", 100)
    path.write_bytes(json.dumps(document()).encode())
    with pytest.raises(BadSetting, match="it is too large"):
        Ledger.open(path)


# Checkpoints.


def test_a_state_can_be_part_of_a_checkpoint():
    ledger = Ledger()
    ledger.spend(np.float64(1.5), RATE)
    file = io.BytesIO()
    torch.save({"ledger": ledger.state_dict()}, file)
    file.seek(0)
    again = Ledger()
    again.load_state_dict(torch.load(file, weights_only=True)["ledger"])
    assert again.spent == ledger.spent == [Spent(1.5, RATE, 1)]


def test_an_old_state_doesn_t_lower_the_count(path):
    ledger = Ledger.open(path)
    spend(ledger, 10)
    checkpoint = ledger.state_dict()
    spend(ledger, 7), spend(ledger, 2, sigma=2.0)
    ledger.load_state_dict(checkpoint)
    assert ledger.spent == [Spent(1.0, RATE, 17), Spent(2.0, RATE, 2)]
    kill(ledger)
    with Ledger.open(path, reserve=1) as again:
        again.load_state_dict(checkpoint)
        assert again.spent == [Spent(1.0, RATE, 17), Spent(2.0, RATE, 64)]
        spend(again, 1)
        again.load_state_dict(checkpoint)
        assert steps_in(again) == 17 + 64 + 1


def test_a_longer_state_raises_the_count_on_disk_at_once(path, tmp_path):
    with Ledger.open(tmp_path / "lost.json") as lost:
        spend(lost, 10)
        older = lost.state_dict()
        spend(lost, 10)
    ledger = Ledger.open(path)
    ledger.load_state_dict(older)
    assert steps_on_disk(path) == 10
    ledger.load_state_dict(lost.state_dict())
    ledger.load_state_dict(lost.state_dict())
    assert ledger.spent == [Spent(1.0, RATE, 20)]
    kill(ledger)
    assert steps_on_disk(path) == 20


def test_histories_of_different_processes_add_up():
    """They add up even if they are equal: both were released."""
    one, two = Ledger(), Ledger()
    spend(one, 10), spend(two, 3)
    two.load_state_dict(one.state_dict())
    assert two.spent == [Spent(1.0, RATE, 13)]


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        ([(1.0, 5)], [(1.0, 9)], [(1.0, 9)]),
        ([(1.0, 9)], [(1.0, 5)], [(1.0, 9)]),
        ([(1.0, 5)], [(1.0, 5), (2.0, 1)], [(1.0, 5), (2.0, 1)]),
        ([(1.0, 8)], [(1.0, 5), (2.0, 1)], [(1.0, 8), (2.0, 1)]),
        ([(1.0, 5), (3.0, 2)], [(1.0, 7), (2.0, 1)], [(1.0, 5), (3.0, 2), (1.0, 2), (2.0, 1)]),
        ([(1.0, 5)], [(2.0, 5)], [(1.0, 5), (2.0, 5)]),
    ],
)
def test_diverged_copies_count_both_ends(ours, theirs, both):
    ledger = Ledger()
    ledger.load_state_dict(state_of(ours))
    ledger.load_state_dict(state_of(theirs))
    assert ledger.spent == [Spent(sigma, RATE, steps) for sigma, steps in both]


def state_of(runs):
    entries = [{"noise_multiplier": sigma, "sample_rate": RATE, "steps": steps} for sigma, steps in runs]
    return {"format": "rigdyno privacy ledger", "version": 1, "histories": {"copied": entries}}


@pytest.mark.parametrize("state", [None, {}, *BAD_DOCUMENTS], ids=range(len(BAD_DOCUMENTS) + 2))
def test_an_invalid_state_is_refused(state):
    ledger = Ledger()
    spend(ledger, 1)
    with pytest.raises(BadSetting, match="this state is no privacy ledger: "):
        ledger.load_state_dict(state)
    assert steps_in(ledger) == 1


# Any sequence of actions.

ACTIONS = st.one_of(
    st.tuples(st.just("spend"), st.sampled_from([1.0, 2.0]), st.integers(1, 9)),
    st.tuples(st.sampled_from(["kill", "close", "save", "load"])),
    st.tuples(st.just("break"), st.sampled_from(FAILURES), st.sampled_from([1.0, 2.0])),
)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(1, 5), st.lists(ACTIONS, max_size=25))
def test_the_ledger_never_counts_less_than_was_spent(reserve, actions):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patches:
        story = Story(Path(folder) / "privacy.json", reserve, patches)
        for name, *arguments in actions:
            getattr(story, name)(*arguments)
            story.check()
        story.close()
        story.check()


class Story:
    """Records the true count, to compare the ledger with."""

    def __init__(self, path, reserve, patches):
        self.path, self.reserve, self.patches = path, reserve, patches
        self.released, self.lost_at_most = Counter(), 0
        self.ledger = Ledger.open(path, reserve)
        self.state = self.ledger.state_dict()

    def spend(self, sigma, steps):
        for _ in range(steps):
            self.ledger.spend(sigma, RATE)
            self.released[sigma] += 1

    def kill(self):
        kill(self.ledger)
        self.lost_at_most += self.reserve
        self.ledger = Ledger.open(self.path, self.reserve)

    def close(self):
        self.ledger.close()
        self.ledger = Ledger.open(self.path, self.reserve)

    def save(self):
        self.state = json.loads(json.dumps(self.ledger.state_dict()))

    def load(self):
        self.ledger.load_state_dict(self.state)

    def break_(self, where, sigma):
        with self.patches.context() as patches:
            break_disk(patches, where)
            try:
                self.spend(sigma, 2 * self.reserve + 1)
            except BadSetting:
                return
            raise AssertionError("a disk that fails went unnoticed")

    def check(self):
        counted = Counter()
        for run in self.ledger.spent:
            counted[run.noise_multiplier] += run.steps
        assert all(counted[sigma] >= steps for sigma, steps in self.released.items())
        assert counted.total() <= self.released.total() + self.lost_at_most
        assert steps_on_disk(self.path) >= counted.total()


setattr(Story, "break", Story.break_)
