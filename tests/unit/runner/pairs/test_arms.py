"""Arms of a duel that are groups of ranks: the first tells the others, and all of them rest between turns."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from driving import until
from rigdyno.base.clock import SystemClock
from rigdyno.base.files import write_json
from rigdyno.runner.pairs.pair import ArmListener, GroupSeat
from rigdyno.runner.pairs.turns import SOCKET_KIND, ArmLost, ArmStuck, Seat, TurnMeter, socket_pair
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.samples import STEP_FIELDS, STEP_STRUCT, WARM_UP, Header, RowFile, read_rows
from rigdyno.schema.spec import Cell, RunSpec, assign_participants
from support import a_rank

RANKS = 3
CLOCK = SystemClock()


class Agreement:
    """Agrees like the ranks of a framework: all of them wait for each other, and get the maximum."""

    def __init__(self, ranks):
        self._meeting, self._numbers = threading.Barrier(ranks, timeout=60), {}

    def of(self, rank):
        def agree(number):
            self._numbers[rank] = number
            self._meeting.wait()
            largest = max(self._numbers.values())
            self._meeting.wait()
            return largest

        return agree


def a_rank_in_a_thread(path, turns, agree, steps):
    file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("turn",), participant=a_rank()))
    meter = TurnMeter(file, struct.Struct(STEP_STRUCT), CLOCK, turns, agree=agree)
    while meter.more():
        steps.append(1)
        meter.step(4.0)
    meter.close()


def test_all_ranks_step_as_often_as_the_first_is_told_to(tmp_path):
    ours, theirs = socket_pair()
    agreement, done = Agreement(RANKS), [[] for _ in range(RANKS)]
    paths = [tmp_path / f"{rank}.rows" for rank in range(RANKS)]
    threads = [
        threading.Thread(
            target=a_rank_in_a_thread,
            args=(paths[rank], theirs if rank == 0 else None, agreement.of(rank), done[rank]),
        )
        for rank in range(RANKS)
    ]
    with ours:
        for thread in threads:
            thread.start()
        seat = Seat(0, ours, CLOCK, CLOCK.now_ns() + 60 * 10**9)
        seat.wait_until_ready(lambda: None, 60.0)
        seat.turn(3, WARM_UP, 0)
        assert [len(each) for each in done] == [3] * RANKS  # a turn is over once all are
        seat.turn(4, 0, 7)
        seat.dismiss()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    for path in paths:
        _, rows = read_rows(path)
        assert rows["steps"].tolist() == [3, 4]
        assert rows["flags"].tolist() == [WARM_UP, 0]


def test_when_the_referee_is_gone_all_ranks_end(tmp_path):
    ours, theirs = socket_pair()
    agreement = Agreement(2)
    threads = [
        threading.Thread(
            target=a_rank_in_a_thread,
            args=(tmp_path / f"{rank}.rows", theirs if rank == 0 else None, agreement.of(rank), []),
        )
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    ours.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def cell_folder(tmp_path):
    """The folder of a cell with two ranks, which are real processes and do nothing."""
    cell = Cell(
        name="01", spec=RunSpec(workload="mnist_cnn", world_size=2), participants=assign_participants(2, 1, "cpu")
    )
    write_json(CellFolder(tmp_path).spec, cell)
    with ExitStack() as started:
        for rank in ("rank0", "rank1"):
            process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
            started.callback(process.wait)
            started.callback(process.kill)
            folder = CellFolder(tmp_path).participant(rank)
            folder.path.mkdir()
            folder.pid.write_text(str(process.pid))
        yield tmp_path


def statuses(folder):
    pids = [int(path.read_text()) for path in sorted(folder.glob("*/pid"))]
    return {psutil.Process(pid).status() for pid in pids}


def rests(folder):
    return statuses(folder) == {psutil.STATUS_STOPPED}


def test_a_group_is_stopped_except_in_its_turn(cell_folder):
    ours, theirs = socket_pair()
    seen = []

    def answer():
        theirs.recv(64)
        until(lambda: not rests(cell_folder), "it went on")
        seen.append(statuses(cell_folder))
        theirs.sendall(struct.pack("<qqd", 1, 2, 3.0))

    with ours, theirs:
        seat = GroupSeat(0, ours, CLOCK, CLOCK.now_ns() + 60 * 10**9, cell_folder)
        ours.settimeout(60)
        seat.rest()
        until(lambda: rests(cell_folder), "it rested")
        answering = threading.Thread(target=answer)
        answering.start()
        assert seat.turn(5, 0, 0).items == 3.0
        answering.join(60)
        assert psutil.STATUS_STOPPED not in seen[0]
        until(lambda: rests(cell_folder), "it rested again")
        seat.dismiss()
        until(lambda: psutil.STATUS_STOPPED not in statuses(cell_folder), "it went on to its end")


def test_a_rank_that_is_gone_is_no_error(cell_folder):
    pid = int(CellFolder(cell_folder).participant("rank1").pid.read_text())
    ours, theirs = socket_pair()
    with ours, theirs:
        seat = GroupSeat(0, ours, CLOCK, CLOCK.now_ns() + 10**9, cell_folder)
        seat.rest()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seat.dismiss()


class Launched:
    def __init__(self, *, over=False):
        self.over = over

    def wait(self, seconds):
        return self.over


def test_the_first_rank_finds_the_listener_through_the_cells_folder(tmp_path):
    listener = ArmListener(tmp_path)
    address_file = CellFolder(tmp_path).turns
    with socket.socket(socket.AF_UNIX, SOCKET_KIND) as rank:
        rank.connect(address_file.read_text())
        connection = listener.wait_for_connection(0, Launched(), CLOCK, CLOCK.now_ns() + 10**9, lambda: None, 0.5)
        rank.sendall(b"here")
        assert connection.recv(4) == b"here"
    place = Path(address_file.read_text()).parent
    assert place.stat().st_mode & 0o77 == 0  # no access for other users
    listener.close()
    listener.close()
    assert not address_file.exists()
    assert not place.exists()


def test_an_arm_that_ends_before_it_connects_is_lost_and_one_that_hangs_is_stuck(tmp_path):
    ticks = []
    listener = ArmListener(tmp_path)
    with pytest.raises(ArmLost):
        listener.wait_for_connection(
            0, Launched(over=True), CLOCK, CLOCK.now_ns() + 10**9, lambda: ticks.append(1), 0.01
        )
    with pytest.raises(ArmStuck):
        listener.wait_for_connection(1, Launched(), CLOCK, CLOCK.now_ns(), lambda: ticks.append(1), 0.01)
    listener.close()
    assert len(ticks) == 2
