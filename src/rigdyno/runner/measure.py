"""The meter: when a step began and ended, when the warm-up is over, when it is enough.

On the hot path a step costs a call and an entry in a list; a clock is read once a row, and a row holds at least a
millisecond. Rows are packed and written between steps, outside of every timed interval.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from rigdyno.clock import Clock, ClockWatch
from rigdyno.contracts import Step
from rigdyno.errors import BadValue
from rigdyno.schema.samples import CLOCK_JUMPED, STEP_FIELDS, STEP_STRUCT, WARM_UP, RowFile, is_count
from rigdyno.schema.spec import WARM_UP_ROWS, Budget
from rigdyno.units import NS_PER_MS, NS_PER_S

MIN_WARM_UP_SHARE = 0.2  # of the budget: long steps must not spend all of it on warming up
LEAST_WARM_UP_ROWS = 2  # the first step may compile for longer than the whole budget, and the second doesn't
MIN_MEASURED_SHARE = 0.2  # of the budget, even where a first step has spent it all
MAX_WARM_UP_SHARE = 0.5  # a stream that won't settle is measured all the same, and judged by its samples
BLOCK_NS = 1 * NS_PER_MS  # shorter rows would measure the clock
ASYNCHRONOUS_BLOCK_NS = 10 * NS_PER_MS  # synchronising stalls a device's queue: do it rarely
FLUSH_NS = NS_PER_S // 2  # what a crash may cost
FIRST_LOOK_NS = 20 * NS_PER_MS  # behind the warm-up: whether its steps were like those that follow
BUFFER_ROWS = 4096
LATELY_ROWS = 64  # that tell how long a row is now
BLOCK_ROWS = 3  # single steps, after which the length of a block is chosen
STRETCH_NS = NS_PER_S // 10  # how often ranks ask each other whether the time is up: steps may become slow in between

_ROW, _ROWS = struct.Struct(STEP_STRUCT), np.dtype(list(STEP_FIELDS))
_OVER = 2**62  # more steps than a block can have: a rank's time is up
_FLAGS = slice(_ROW.size - 2, None, _ROW.size)  # the low byte of every row's last field


def _nothing() -> None:
    pass


def _whole(rows: float) -> float:
    return rows if math.isinf(rows) else math.ceil(round(rows, 6))


def _own(number: int) -> int:
    return number


class _Lane(NamedTuple):
    """For steps that are a row each, as long as all that is to be written down is when they ended."""

    step: Callable[..., None]
    open: Callable[[float, int, float], None]  # for steps of so many items, for so many of them, until this time


def _lane(
    now_ns: Callable[[], int], ends_ns: list[int], otherwise: Callable[[float, int], None], look: Callable[[], None]
) -> _Lane:
    """`step` hands on to `otherwise` until the lane is opened, and a step of another number of items at any time.

    Closures, because every step of the measurement pays for this one: a step leaves cold caches behind, where each
    attribute of an object is one more line of memory to fetch, and so is each variable of a closure: what never changes
    is a default instead.
    """
    usual_items, steps_left, look_ns = math.nan, 0, 0.0
    append = ends_ns.append

    def step(
        items: float = 1.0,
        kind: int = 0,
        _now_ns: Callable[[], int] = now_ns,
        _record: Callable[[int], None] = append,
    ) -> None:
        nonlocal steps_left
        if items != usual_items:
            otherwise(items, kind)
            return
        end_ns = _now_ns()
        _record(end_ns)
        steps_left -= 1
        if end_ns >= look_ns or not steps_left:
            look()

    def open_lane(items: float, steps: int, until_ns: float) -> None:
        nonlocal usual_items, steps_left, look_ns
        usual_items, steps_left, look_ns = items, steps, until_ns

    return _Lane(step, open_lane)


class StepMeter:
    """One rank's meter. `budget=None`: the loop belongs to the user, and ends when they end it.

    `step(items=1.0, kind=0)` is to be called at the end of every step.

    The time of the budget is kept, however slow the steps become: a machine that got busy must not make a run of ten
    seconds one of five minutes. What comes later is cut, quick or slow, so no stream is favoured.

    `agree` gives every rank the largest of their numbers, and waits for all of them; None: there is one rank. It is
    called at the same rows on every rank, never by the clock: ranks that called it a step apart would wait for ever.
    """

    def __init__(
        self,
        file: RowFile,
        clock: Clock,
        budget: Budget | None,
        *,
        kinds: int = 1,
        synchronise: Callable[[], None] | None = None,
        agree: Callable[[int], int] | None = None,
        settled: Callable[[Sequence[float]], bool],
        warmed_up: Callable[[], None] = _nothing,
        flushed: Callable[[], None] = _nothing,
        ended: Callable[[], None] = _nothing,
    ) -> None:
        self._file, self._budget, self._kinds = file, budget, kinds
        self._now_ns, self._watch = clock.now_ns, ClockWatch(clock)
        self._synchronise, self._settled = synchronise, settled
        self._warmed_up, self._flushed, self._ended = warmed_up, flushed, ended
        self._alone, self._largest = agree is None, agree or _own
        self._block_ns = BLOCK_NS if synchronise is None else ASYNCHRONOUS_BLOCK_NS
        self._rows = bytearray()  # those that aren't on disk yet
        self._ends_ns: list[int] = []  # of steps in the lane that aren't rows yet
        self._lane = _lane(self._now_ns, self._ends_ns, self._step_of_block, self._look)
        self.step = self._lane.step
        self._block, self._pending, self._items = 1, 0, 0.0
        self._warm_up: list[list[float]] = [[] for _ in range(kinds)]  # ns per step, by kind
        self._block_chosen = kinds > 1  # kinds take turns, and a row holds one kind: then a step is a row
        self._warm_rows, self._next_look, self._steady = 0, WARM_UP_ROWS * kinds, False
        self._flags = WARM_UP
        self._usual_items, self._lane_steps, self._lane_step_ns = 1.0, 1, 0.0
        self._rows_due: float = math.inf  # until the next decision, counted from the last flush
        self._rows_wanted: float = math.inf  # beyond those that are due
        self._measured_rows = 0  # that are on disk
        self._row_ns = 0.0  # lately; 0: not known yet
        self._running = True
        if synchronise is not None:
            synchronise()
        self._began_ns = self._start_ns = self._flushed_ns = self._last_ns = self._now_ns()
        self._look_ns: float = self._began_ns + FLUSH_NS
        self._end_ns = self._most_ns = math.inf
        self._job_steps_left = None if budget is None else budget.job_steps
        if budget is not None and budget.job_steps is None:
            self._end_ns = self._began_ns + budget.seconds * NS_PER_S
            self._most_ns = self._began_ns + max(budget.seconds, budget.most_seconds) * NS_PER_S

    def more(self) -> bool:
        """A job counts its steps here: it ends with the last of them, whatever their time."""
        if self._job_steps_left is not None:
            self._job_steps_left -= 1
            if self._job_steps_left < 0 and self._running:
                self._end_job()
        return self._running

    def _end_job(self) -> None:
        """A block that the last step left unfinished is a row like any other."""
        self._leave_lane()
        if self._pending:
            if self._synchronise is not None:
                self._synchronise()
            self._write_row(self._now_ns(), 0)
        self._running = False
        self._ended()

    def repeat(self, step: Step, items_per_step: float) -> None:
        if self._job_steps_left is not None:
            self._repeat_job(step, items_per_step)
        while self._running:
            if self._may_use_lane():
                self._repeat_in_lane(step, items_per_step)
            else:
                items = step()
                self.step(items_per_step if items is None else items)

    def _repeat_job(self, step: Step, items_per_step: float) -> None:
        """It ends with its steps, which are counted one by one."""
        while self.more():
            items = step()
            self.step(items_per_step if items is None else items)

    def _repeat_in_lane(self, step: Step, items_per_step: float) -> None:
        """Until it is time to look. What the lane's own `step` does, without the call."""
        now_ns, record, look_ns, usual_items = self._now_ns, self._ends_ns.append, self._look_ns, self._usual_items
        for _ in range(self._lane_steps):
            items = step()
            if items is None:
                items = items_per_step
            if items != usual_items:
                self.step(items)
                return
            end_ns = now_ns()
            record(end_ns)
            if end_ns >= look_ns:
                break
        self._look()

    def close(self) -> None:
        """Writes what is left, a half-filled block of a user's own loop included."""
        self._leave_lane()
        self._end_block_early()
        self._flush()
        self._file.close()

    def restart(self) -> None:
        """Leaves out what happened since the last step: the next one begins now."""
        self._leave_lane()
        self._end_block_early()
        self._begin_step()

    def _end_block_early(self) -> None:
        """At its last step, not now; when an asynchronous device was done with that, nobody knows: it is left out."""
        if self._pending and self._budget is None and self._synchronise is None:
            self._write_row(self._last_ns, 0)
        self._pending, self._items = 0, 0.0

    def _write_row(self, end_ns: int, kind: int) -> None:
        self._rows += _ROW.pack(self._start_ns, end_ns, self._items, self._pending, kind, self._flags)
        self._start_ns, self._usual_items = end_ns, self._items
        self._pending, self._items = 0, 0.0

    def _step_of_block(self, items: float, kind: int) -> None:
        if self._ends_ns:
            self._leave_lane()
        if self._budget is None and not is_count(items):
            raise BadValue(f"meter.step got {items!r}; it takes the number of items of the step, never a loss")
        self._pending += 1
        self._items += items
        if self._pending >= self._block:
            self._end_row(kind)
        elif self._budget is None:
            self._last_ns = self._now_ns()  # a user may do something else at any time: see _end_block_early

    def _end_row(self, kind: int) -> None:
        if self._synchronise is not None:
            self._synchronise()
        start_ns, now_ns, steps = self._start_ns, self._now_ns(), self._pending
        self._write_row(now_ns, kind)
        if self._flags:
            self._warm((now_ns - start_ns) / steps, kind, now_ns)
            self._look()
        elif not start_ns <= now_ns < self._look_ns or self._rows_until_look() <= 0:
            self._look()  # a clock that ran backwards is seen at once, too
        elif self._may_use_lane():
            self._begin_step()  # opens it for steps of so many items

    def _look(self) -> None:
        """What needn't be done after every row, and belongs to no step: the next one begins when it is over."""
        self._leave_lane()
        now_ns = self._start_ns
        if not self._flags:
            first, self._row_ns = self._row_ns == 0, self._lately_ns() or self._row_ns
            self._running = self._goes_on(now_ns)
            if not self._running:
                self._ended()
            if self._alone and self._lengthen_block(self._quick_block()) and first:
                self._flag_rows(WARM_UP)  # those of a length that isn't used
        if not now_ns - FLUSH_NS < self._flushed_ns <= now_ns or self._buffered() >= BUFFER_ROWS:
            self._flush()
            self._flushed_ns = now_ns
        self._look_ns = min(
            self._flushed_ns + (FLUSH_NS if self._row_ns or self._flags else FIRST_LOOK_NS), self._end_ns
        )
        self._begin_step()

    def _lately_ns(self) -> float:
        """The median of the newest rows that are not on disk yet, so that a clock that jumped does not count; 0: there
        is none. Few of them: the loop waits for this."""
        rows = np.frombuffer(self._rows, _ROWS)[-LATELY_ROWS:]
        known = sorted(length for length in (rows["end_ns"] - rows["start_ns"]).tolist() if length > 0)
        return float(known[len(known) // 2]) if known else 0.0

    def _flag_rows(self, flag: int) -> None:
        self._rows[_FLAGS] = bytes(flags | flag for flags in self._rows[_FLAGS])

    def _goes_on(self, now_ns: int) -> bool:
        """One rank goes by the clock. Several get their rows for a stretch of time, and may then get another: the first
        whose time is up ends it for all."""
        if self._rows_left() > 0:
            return not self._alone or not self._is_over(now_ns)
        if self._alone or self._rows_wanted <= 0:
            return False
        asked = self._largest(_OVER if self._is_over(now_ns) else self._quick_block())
        if asked == _OVER:
            return False
        self._lengthen_block(asked)
        self._give_rows(now_ns)
        return True

    def _quick_block(self) -> int:
        """As long as it has to be where the steps became quicker than those that it was chosen by: a neighbour has
        gone. 0: they didn't."""
        quicker = self._kinds == 1 and 0 < self._row_ns < self._block_ns
        return math.ceil(self._block * self._block_ns / self._row_ns) if quicker else 0

    def _lengthen_block(self, longer: int) -> bool:
        if longer <= self._block:
            return False
        for_same = self._block / longer
        self._rows_due = _whole(for_same * self._rows_left()) + self._buffered()  # ranks must not part by a rounding
        self._rows_wanted = _whole(for_same * self._rows_wanted)
        self._block, self._row_ns = longer, self._row_ns / for_same
        self._lane.open(math.nan, 0, 0.0)  # for nothing: a step is no row any more
        return True

    def _is_over(self, now_ns: int) -> bool:
        """A row of each kind is the least that there can be; those for a verdict are waited for, if there is time."""
        rows = self._measured_rows + self._buffered()
        if now_ns < self._end_ns or rows < self._kinds:
            return False
        return now_ns >= self._most_ns or self._budget is None or rows >= self._budget.rows * self._kinds

    def _begin_step(self) -> None:
        self._start_ns = self._now_ns()
        if self._may_use_lane():
            steps = min(self._steps_until_look(), self._rows_until_look())
            self._lane_steps = max(1, math.ceil(steps))
            self._lane.open(self._usual_items, self._lane_steps, self._look_ns)

    def _may_use_lane(self) -> bool:
        return self._block == 1 and self._kinds == 1 and self._synchronise is None and not self._flags

    def _leave_lane(self) -> None:
        """Makes rows of the steps in it, all at once: the loop waits for this twice a second."""
        if not self._ends_ns:
            return  # it is closed
        rows = np.zeros(len(self._ends_ns), _ROWS)
        rows["end_ns"] = self._ends_ns
        rows["start_ns"][0], rows["start_ns"][1:] = self._start_ns, rows["end_ns"][:-1]
        rows["items"], rows["steps"] = self._usual_items, 1
        self._rows += rows.tobytes()
        self._lane_step_ns = (self._ends_ns[-1] - self._start_ns) / len(rows)
        self._start_ns = self._ends_ns[-1]
        self._ends_ns.clear()

    def _steps_until_look(self) -> float:
        """By the length of the last ones: a clock that ran backwards doesn't say when it is time."""
        if self._lane_step_ns <= 0:
            return 1
        return (self._look_ns - self._start_ns) / self._lane_step_ns

    def _rows_until_look(self) -> float:
        return min(self._rows_left(), BUFFER_ROWS - self._buffered())

    def _rows_left(self) -> float:
        return self._rows_due - self._buffered()

    def _buffered(self) -> int:
        return len(self._rows) // _ROW.size

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._watch.jumped():
            self._flag_rows(CLOCK_JUMPED)
        self._file.append(bytes(self._rows))
        self._rows_due -= self._buffered()
        self._measured_rows += self._buffered()
        self._rows.clear()
        self._flushed()

    def _warm(self, duration_ns: float, kind: int, now_ns: int) -> None:
        self._warm_rows += 1
        if duration_ns > 0:  # else the clock jumped back: that says nothing about the step
            self._warm_up[kind].append(duration_ns)
        if self._warm_rows == BLOCK_ROWS and not self._block_chosen:
            self._choose_block()
        self._steady = self._steady or self._is_warm(self._spent(now_ns))
        if not self._largest(int(not self._steady)):  # the last rank to settle decides
            self._end_warm_up(now_ns)

    def _is_warm(self, spent: float) -> bool:
        rows = self._warm_rows
        if spent >= MAX_WARM_UP_SHARE and rows >= LEAST_WARM_UP_ROWS * self._kinds:
            return True
        if rows < self._next_look and (rows >= WARM_UP_ROWS or spent < MIN_WARM_UP_SHARE):
            return False
        self._next_look = rows + self._kinds * (1 + rows // (5 * self._kinds))  # looking costs: ever more rarely
        return all(self._settled(durations) for durations in self._warm_up)

    def _choose_block(self) -> bool:
        """Whether it is longer now. Blocks then warm up anew, because a row of one step isn't like a row of many."""
        self._block_chosen = True
        latest = self._warm_up[0][-2 * WARM_UP_ROWS :]
        longer = self._largest(math.ceil(self._block_ns / max(1.0, min(latest, default=self._block_ns))))
        if longer <= self._block:
            return False
        self._block, self._warm_rows, self._steady = longer, 0, False
        self._next_look = WARM_UP_ROWS
        self._warm_up[0].clear()
        return True

    def _rows_are_too_short(self) -> bool:
        """The first steps may have been slow, by cold caches or a neighbour, and the block chosen by them."""
        return self._kinds == 1 and self._typical_row_ns() < self._block_ns

    def _spent(self, now_ns: int) -> float:
        """The share of the budget; a user's own loop has none, and warms up for at most 2 s."""
        seconds = self._budget.seconds if self._budget is not None else 4.0
        return (now_ns - self._began_ns) / (seconds * NS_PER_S)

    def _end_warm_up(self, now_ns: int) -> None:
        """Unless the block has to be chosen again, by steps that are quicker than the first ones."""
        typical_ns = self._typical_row_ns() / self._block
        if self._largest(int(not self._block_chosen or self._rows_are_too_short())) and self._choose_block():
            if self._largest(int(self._spent(now_ns) < MAX_WARM_UP_SHARE)):
                return
            self._warm_up[0].append(typical_ns)
        self._flush()
        self._flags, self._measured_rows, self._flushed_ns = 0, 0, now_ns
        self._lane_step_ns = self._typical_row_ns()
        self._warmed_up()
        if self._budget is None:
            return
        self._end_ns = max(self._end_ns, now_ns + MIN_MEASURED_SHARE * self._budget.seconds * NS_PER_S)
        if self._budget.max_steps is not None:
            self._rows_wanted = self._in_whole_turns(self._budget.max_steps / self._block)
        self._rows_due = self._rows_wanted if self._alone else 0
        if not self._alone:
            self._give_rows(now_ns)

    def _give_rows(self, now_ns: int) -> None:
        """For a stretch of time, the same number on every rank."""
        time_ns = min(STRETCH_NS, max(0, self._end_ns - now_ns))
        stretch = self._largest(self._in_whole_turns(time_ns / max(1.0, self._typical_row_ns())))
        rows = min(stretch, self._rows_wanted)
        self._rows_due += rows
        self._rows_wanted -= rows

    def _in_whole_turns(self, rows: float) -> int:
        """Of all kinds."""
        return max(1, math.ceil(round(rows, 6) / self._kinds)) * self._kinds

    def _typical_row_ns(self) -> float:
        """Of the latest; in the warm-up, of each kind, without the first one, which may have compiled for minutes; a
        kind that hasn't come to a row yet can't be asked."""
        if self._row_ns:
            return self._row_ns
        latest = [(durations[1:] or durations)[-2 * WARM_UP_ROWS :] for durations in self._warm_up]
        typical = [median(durations) for durations in latest if durations]
        return self._block * sum(typical) / len(typical) if typical else float(self._block_ns)
