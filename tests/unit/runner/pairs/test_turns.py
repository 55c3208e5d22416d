"""Two ends of a real socket: an arm's meter, which waits for its turns, and the referee's seat for it."""

import socket
import struct
import threading
from contextlib import ExitStack, contextmanager

import pytest

from rigdyno.base.clock import SystemClock
from rigdyno.runner.pairs import turns
from rigdyno.runner.pairs.turns import REPLY, REQUEST, ArmLost, ArmStuck, CorePinning, Seat, Turn, TurnMeter
from rigdyno.schema.samples import STEP_FIELDS, STEP_STRUCT, WARM_UP, Header, RowFile, read_rows
from support import ManualClock, a_rank

STEP_SECONDS = 0.002
SHORT = 0.02  # a time-out that a test can wait for
KINDS = [turns.SOCKET_KIND, socket.SOCK_STREAM]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "steps.0.rows"


@pytest.fixture(params=KINDS, ids=["messages", "stream"])
def ends(request):
    ours, theirs = socket.socketpair(socket.AF_UNIX, request.param)
    with ours, theirs:
        yield ours, theirs


def a_meter(path, end, clock, **changes):
    file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("turn",), participant=a_rank()))
    return TurnMeter(file, struct.Struct(STEP_STRUCT), clock, end, **changes)


def a_seat(end, clock=None, seconds=60.0):
    clock = clock or SystemClock()
    return Seat(0, end, clock, clock.now_ns() + round(seconds * 1e9))


@contextmanager
def an_arm(path, end, clock, items=4.0, kinds=1):
    """Steps in a thread of its own, as long as the meter asks for it."""

    def loop():
        meter = a_meter(path, end, clock, kinds=kinds)
        done = 0
        while meter.more():
            clock.advance(STEP_SECONDS)
            meter.step(items, done % kinds)
            done += 1
        meter.close()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(60)
        assert not thread.is_alive()


def ready(seat):
    seat.wait_until_ready(lambda: None, 60.0)
    return seat


def test_turns_are_answered_and_stored_as_they_were_asked_for(path, ends):
    ours, theirs = ends
    with an_arm(path, theirs, ManualClock()):
        seat = ready(a_seat(ours))
        answers = [seat.turn(3, WARM_UP, 0), seat.turn(5, 0, 1), seat.turn(1, 0, 65535)]
        seat.dismiss()
    header, rows = read_rows(path)
    assert header.kinds == ("turn",)
    assert rows["steps"].tolist() == [3, 5, 1]
    assert rows["flags"].tolist() == [WARM_UP, 0, 0]
    assert rows["items"].tolist() == [12.0, 20.0, 4.0]
    assert rows["kind"].tolist() == [0, 0, 0]
    assert (rows["end_ns"] - rows["start_ns"]).tolist() == [6_000_000, 10_000_000, 2_000_000]
    stored = [Turn(int(row["start_ns"]), int(row["end_ns"]), float(row["items"])) for row in rows]
    assert answers == stored
    assert [answer.duration_ns for answer in answers] == [6_000_000, 10_000_000, 2_000_000]


def test_a_step_of_a_turn_is_one_of_each_kind(path, ends):
    ours, theirs = ends
    with an_arm(path, theirs, ManualClock(), items=1.0, kinds=3):
        seat = ready(a_seat(ours))
        turn = seat.turn(2, 0, 0)
        seat.dismiss()
    _, rows = read_rows(path)
    assert turn.items == 6.0
    assert turn.duration_ns == 12_000_000
    assert rows["steps"].tolist() == [2]


def test_waiting_for_a_turn_is_not_billed_to_it(path, ends):
    ours, theirs = ends
    clock = ManualClock()
    with an_arm(path, theirs, clock):
        seat = ready(a_seat(ours))
        first = seat.turn(1, 0, 0)
        clock.advance(100.0)  # the other arm's turn
        second = seat.turn(1, 0, 0)
        seat.dismiss()
    assert first.duration_ns == second.duration_ns == 2_000_000
    assert second.start_ns - first.end_ns == 100_000_000_000


def test_a_device_is_waited_for_before_and_after_a_turn_but_not_at_the_end(path, ends):
    ours, theirs = ends
    clock, waits = ManualClock(), []

    def wait():
        waits.append(clock.now_ns())
        clock.advance(1.0)

    ours.sendall(REQUEST.pack(1, 0, 0))
    meter = a_meter(path, theirs, clock, synchronise=wait)
    assert meter.more()
    meter.step()
    ours.sendall(REQUEST.pack(0, 0, 0))
    assert not meter.more()
    meter.close()
    _, (row,) = read_rows(path)
    assert len(waits) == 2
    assert int(row["end_ns"] - row["start_ns"]) == 1_000_000_000  # what was queued before it isn't its own


def test_rows_reach_the_disk_while_the_duel_goes_on(path, ends):
    """A crash costs half a second of them at most."""
    ours, theirs = ends
    clock = ManualClock()
    with an_arm(path, theirs, clock):
        seat = ready(a_seat(ours))
        seat.turn(1, 0, 0)
        assert len(read_rows(path)[1]) == 0
        clock.advance(turns.FLUSH_NS / 1e9)
        seat.turn(1, 0, 0)
        assert len(read_rows(path)[1]) == 2
        seat.dismiss()


@pytest.mark.parametrize("after_turns", [0, 2])
def test_the_arm_ends_when_the_referee_is_gone(path, ends, after_turns):
    ours, theirs = ends
    with an_arm(path, theirs, ManualClock()):
        seat = ready(a_seat(ours))
        for _ in range(after_turns):
            seat.turn(1, 0, 0)
        ours.close()
    assert len(read_rows(path)[1]) == after_turns


def test_an_answer_to_nobody_is_no_crash_and_is_kept(path, ends):
    ours, theirs = ends
    meter = a_meter(path, theirs, clock := ManualClock())
    ours.sendall(REQUEST.pack(2, 0, 0))
    assert meter.more()
    ours.close()
    for _ in range(2):
        clock.advance(STEP_SECONDS)
        meter.step()
    assert not meter.more()
    meter.close()
    assert read_rows(path)[1]["steps"].tolist() == [2]


def test_an_arm_that_dies_while_it_is_built_is_lost(ends):
    ours, theirs = ends
    theirs.close()
    with pytest.raises(ArmLost):
        a_seat(ours).wait_until_ready(lambda: None, 10.0)


def test_an_arm_that_dies_in_its_turn_is_lost(ends):
    ours, theirs = ends
    theirs.sendall(REPLY.pack(0, 0, 0.0))
    seat = ready(a_seat(ours))
    with ExitStack() as stack:
        dying = threading.Thread(target=lambda: theirs.recv(REQUEST.size) and theirs.close())
        dying.start()
        stack.callback(dying.join)
        with pytest.raises(ArmLost):
            seat.turn(1, 0, 0)
    with pytest.raises(ArmLost):
        seat.turn(1, 0, 0)  # no process is left to answer
    seat.dismiss()


def test_progress_is_shown_until_an_arm_that_is_never_ready_is_stuck(ends):
    ours, _theirs = ends
    clock, ticks = ManualClock(), []
    seat = a_seat(ours, clock, seconds=5.0)
    with pytest.raises(ArmStuck) as stuck:
        seat.wait_until_ready(lambda: ticks.append(1) or clock.advance(1.0), SHORT)
    assert stuck.value.arm == 0
    assert len(ticks) == 5


def test_an_arm_that_never_answers_is_stuck(ends):
    ours, theirs = ends
    theirs.sendall(REPLY.pack(0, 0, 0.0))
    clock = ManualClock()
    seat = ready(Seat(1, ours, clock, clock.now_ns() + round(SHORT * 1e9)))
    with pytest.raises(ArmStuck, match="arm B is stuck"):
        seat.turn(1, 0, 0)


def test_messages_that_a_stream_tears_are_put_together(path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs, an_arm(path, theirs, ManualClock()):
        assert turns._receive(ours, REPLY.size) == REPLY.pack(0, 0, 0.0)
        for byte in REQUEST.pack(7, WARM_UP, 3):
            ours.sendall(bytes([byte]))
        reply = turns._receive(ours, REPLY.size)
        assert REPLY.unpack(reply)[2] == 7 * 4.0
        ours.sendall(REQUEST.pack(0, 0, 0))
    assert read_rows(path)[1]["steps"].tolist() == [7]


@pytest.mark.parametrize("whole", range(REPLY.size))
def test_the_beginning_of_a_message_is_no_message(whole):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        theirs.sendall(REPLY.pack(1, 2, 3.0)[:whole])
        theirs.close()
        with pytest.raises(ArmLost):
            ready(a_seat(ours))


def test_the_largest_request_survives(path, ends):
    ours, theirs = ends
    meter = a_meter(path, theirs, ManualClock())
    ours.sendall(REQUEST.pack(2**32 - 1, 2**16 - 1, 2**16 - 1))
    assert meter.more()
    assert (meter._left, meter._flags) == (2**32 - 1, 2**16 - 1)
    meter.close()


@pytest.mark.parametrize("pool_ran_ns", [0, 900_000_000])
def test_a_core_is_let_go_of_again_and_a_pool_of_threads_never_moved(monkeypatch, pool_ran_ns):
    """A step may use every core that it may use otherwise."""
    asked, ran_ns = [], {"thread": 0, "process": 0}
    monkeypatch.setattr(turns.os, "sched_getaffinity", lambda _pid: {5, 2, 9}, raising=False)
    monkeypatch.setattr(turns.os, "sched_setaffinity", lambda _pid, cores: asked.append(set(cores)), raising=False)
    monkeypatch.setattr(turns, "process_cpu_ns", lambda: ran_ns["process"])
    monkeypatch.setattr(turns, "thread_cpu_ns", lambda: ran_ns["thread"])
    cores = CorePinning()
    cores.begin_on(0)  # nothing has run yet, so the core is unknown
    ran_ns.update(thread=1_000_000_000, process=1_000_000_000 + pool_ran_ns)
    for number in (0, 1, 2, 3):
        cores.begin_on(number)
    moves = [{2}, {2, 5, 9}, {5}, {2, 5, 9}, {9}, {2, 5, 9}, {2}, {2, 5, 9}]
    assert asked == ([] if pool_ran_ns else moves)


def test_a_system_without_affinity_is_left_alone(monkeypatch):
    monkeypatch.delattr(turns.os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(turns.os, "sched_setaffinity", raising=False)
    CorePinning().begin_on(1)
