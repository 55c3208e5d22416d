"""The step meter: it times steps, and decides when the warm-up is over and when the measurement ends.

A step on the hot path costs one call and one list entry. The clock is read once per row, and a row lasts at least a
millisecond. Rows are packed and written between steps, outside of every timed interval.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from rigdyno.base.clock import Clock, ClockWatch
from rigdyno.base.errors import BadValue
from rigdyno.base.units import NS_PER_MS, NS_PER_S
from rigdyno.contracts import Step
from rigdyno.runner.fast_path import do_nothing, make_fast_path, return_same
from rigdyno.schema.samples import CLOCK_JUMPED, STEP_FIELDS, STEP_STRUCT, WARM_UP, RowFile, is_count
from rigdyno.schema.spec import WARM_UP_ROWS, Budget

MIN_WARM_UP_SHARE = 0.2  # of the budget: long steps must not spend all of it on the warm-up

LEAST_WARM_UP_ROWS = 2  # the first step may compile for longer than the whole budget; the second doesn't

MIN_MEASURED_SHARE = 0.2  # of the budget, even if the first step has spent all of it

MAX_WARM_UP_SHARE = 0.5  # of the budget: steps that don't become steady are measured too, and judged by their samples

BLOCK_NS = 1 * NS_PER_MS  # shorter rows would measure the clock

ASYNCHRONOUS_BLOCK_NS = 10 * NS_PER_MS  # synchronising stalls a device's queue, so do it rarely

FLUSH_NS = NS_PER_S // 2  # the most that a crash may lose

FIRST_LOOK_NS = 20 * NS_PER_MS  # first check after the warm-up, whether its steps were like those that follow

BUFFER_ROWS = 4096

LATELY_ROWS = 64  # newest rows, from which the current row length is estimated

BLOCK_ROWS = 3  # single steps after which the length of a block is chosen

STRETCH_NS = NS_PER_S // 10  # interval at which ranks agree whether the time is up: steps may become slow meanwhile

_ROW, _ROWS = struct.Struct(STEP_STRUCT), np.dtype(list(STEP_FIELDS))

_OVER = 2**62  # more steps than a block can have: signals that a rank's time is up

_FLAGS = slice(_ROW.size - 2, None, _ROW.size)  # the low byte of every row's last field


def _round_up(rows: float) -> float:
    return rows if math.isinf(rows) else math.ceil(round(rows, 6))


class StepMeter:
    """Times the steps of one rank. `budget=None`: the loop is the user's, and ends when the user ends it.

    Call `step(items=1.0, kind=0)` at the end of every step.

    The budget is kept however slow the steps become: a machine that becomes busy must not turn a run of ten seconds
    into one of five minutes. Later steps are cut off whether they are fast or slow, which introduces no bias.

    `agree` returns the maximum of the ranks' numbers to every rank, and waits for all of them; None: there is one rank.
    It is called at the same rows on every rank, never by the clock: ranks that called it at different steps would
    deadlock.
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
        warmed_up: Callable[[], None] = do_nothing,
        flushed: Callable[[], None] = do_nothing,
        ended: Callable[[], None] = do_nothing,
    ) -> None:
        self._file, self._budget, self._kinds = file, budget, kinds
        self._now_ns, self._watch = clock.now_ns, ClockWatch(clock)
        self._synchronise, self._settled = synchronise, settled
        self._warmed_up, self._flushed, self._ended = warmed_up, flushed, ended
        self._alone, self._largest = agree is None, agree or return_same
        self._block_ns = BLOCK_NS if synchronise is None else ASYNCHRONOUS_BLOCK_NS
        self._rows = bytearray()  # rows that are not on disk yet
        self._ends_ns: list[int] = []  # ends of steps on the fast path that are not rows yet
        self._fast_path = make_fast_path(self._now_ns, self._ends_ns, self._step_in_block, self._check)
        self.step = self._fast_path.step
        self._block, self._pending, self._items = 1, 0, 0.0
        self._warm_up: list[list[float]] = [[] for _ in range(kinds)]  # ns per step, by kind
        self._block_chosen = kinds > 1  # kinds alternate and a row holds one kind, so each step is a row
        self._warm_rows, self._next_look, self._steady = 0, WARM_UP_ROWS * kinds, False
        self._flags = WARM_UP
        self._usual_items, self._fast_steps, self._fast_step_ns = 1.0, 1, 0.0
        self._rows_due: float = math.inf  # rows until the next decision, counted from the last flush
        self._rows_wanted: float = math.inf  # rows after those that are due
        self._measured_rows = 0  # rows on disk
        self._row_ns = 0.0  # current length of a row; 0 if unknown
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
        """Return whether to run another step. A job counts its steps here, and ends with the last one at any time."""
        if self._job_steps_left is not None:
            self._job_steps_left -= 1
            if self._job_steps_left < 0 and self._running:
                self._end_job()
        return self._running

    def _end_job(self) -> None:
        """End a job. Steps of an unfinished block become a row like any other."""
        self._leave_fast_path()
        if self._pending:
            if self._synchronise is not None:
                self._synchronise()
            self._write_row(self._now_ns(), 0)
        self._running = False
        self._ended()

    def repeat(self, step: Step, items_per_step: float) -> None:
        """Run steps until the measurement ends."""
        while self._job_steps_left is not None and self.more():
            items = step()
            self.step(items_per_step if items is None else items)
        while self._running:
            if self._may_use_fast_path():
                self._repeat_fast(step, items_per_step)
            else:
                items = step()
                self.step(items_per_step if items is None else items)

    def _repeat_fast(self, step: Step, items_per_step: float) -> None:
        """Run steps until the next check. This does what the fast path's `step` does, without the call."""
        now_ns, record, look_ns, usual_items = self._now_ns, self._ends_ns.append, self._look_ns, self._usual_items
        for _ in range(self._fast_steps):
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
        self._check()

    def close(self) -> None:
        """Write the remaining rows, including a partial block of a user's own loop, and close the file."""
        self._leave_fast_path()
        self._end_block_early()
        self._flush()
        self._file.close()

    def restart(self) -> None:
        """Leave out the time since the last step: the next step begins now."""
        self._leave_fast_path()
        self._end_block_early()
        self._begin_step()

    def _end_block_early(self) -> None:
        """End a partial block at its last step, not now. With an asynchronous device the end of that step is unknown,
        and the block is left out."""
        if self._pending and self._budget is None and self._synchronise is None:
            self._write_row(self._last_ns, 0)
        self._pending, self._items = 0, 0.0

    def _write_row(self, end_ns: int, kind: int) -> None:
        self._rows += _ROW.pack(self._start_ns, end_ns, self._items, self._pending, kind, self._flags)
        self._start_ns, self._usual_items = end_ns, self._items
        self._pending, self._items = 0, 0.0

    def _step_in_block(self, items: float, kind: int) -> None:
        if self._ends_ns:
            self._leave_fast_path()
        if self._budget is None and not is_count(items):
            raise BadValue(f"meter.step got {items!r}; it takes the number of items of the step, never a loss")
        self._pending += 1
        self._items += items
        if self._pending >= self._block:
            self._end_row(kind)
        elif self._budget is None:
            self._last_ns = self._now_ns()  # the user's loop may stop at any time: see _end_block_early

    def _end_row(self, kind: int) -> None:
        if self._synchronise is not None:
            self._synchronise()
        start_ns, now_ns, steps = self._start_ns, self._now_ns(), self._pending
        self._write_row(now_ns, kind)
        if self._flags:
            self._add_warm_up_row((now_ns - start_ns) / steps, kind, now_ns)
            self._check()
        elif not start_ns <= now_ns < self._look_ns or self._rows_until_look() <= 0:
            self._check()  # also at once if the clock ran backwards
        elif self._may_use_fast_path():
            self._begin_step()  # opens the fast path for steps with this number of items

    def _check(self) -> None:
        """Do the work that isn't needed after every row: decide whether to go on, adapt the block length, write rows.

        It belongs to no step: the next one begins when it is over."""
        self._leave_fast_path()
        now_ns = self._start_ns
        if not self._flags:
            first, self._row_ns = self._row_ns == 0, self._find_recent_row_ns() or self._row_ns
            self._running = self._should_go_on(now_ns)
            if not self._running:
                self._ended()
            if self._alone and self._lengthen_block(self._find_longer_block()) and first:
                self._flag_rows(WARM_UP)  # rows with the previous block length
        if not now_ns - FLUSH_NS < self._flushed_ns <= now_ns or self._count_buffered() >= BUFFER_ROWS:
            self._flush()
            self._flushed_ns = now_ns
        self._look_ns = min(
            self._flushed_ns + (FLUSH_NS if self._row_ns or self._flags else FIRST_LOOK_NS), self._end_ns
        )
        self._begin_step()

    def _find_recent_row_ns(self) -> float:
        """Return the median length of the newest rows that are not on disk yet; 0 if there are none.

        The median ignores a clock that jumped. Only a few rows are used, because the loop waits for this."""
        rows = np.frombuffer(self._rows, _ROWS)[-LATELY_ROWS:]
        known = sorted(length for length in (rows["end_ns"] - rows["start_ns"]).tolist() if length > 0)
        return float(known[len(known) // 2]) if known else 0.0

    def _flag_rows(self, flag: int) -> None:
        self._rows[_FLAGS] = bytes(flags | flag for flags in self._rows[_FLAGS])

    def _should_go_on(self, now_ns: int) -> bool:
        """Return whether to go on.

        A single rank goes by the clock. Several ranks are granted rows for a short time, and then agree on more: the
        first rank whose time is up ends the measurement for all."""
        if self._count_rows_left() > 0:
            return not self._alone or not self._is_over(now_ns)
        if self._alone or self._rows_wanted <= 0:
            return False
        asked = self._largest(_OVER if self._is_over(now_ns) else self._find_longer_block())
        if asked == _OVER:
            return False
        self._lengthen_block(asked)
        self._grant_rows(now_ns)
        return True

    def _find_longer_block(self) -> int:
        """Return a longer block if the steps became faster than when its length was chosen (another process may have
        ended); else 0."""
        quicker = self._kinds == 1 and 0 < self._row_ns < self._block_ns
        return math.ceil(self._block * self._block_ns / self._row_ns) if quicker else 0

    def _lengthen_block(self, longer: int) -> bool:
        if longer <= self._block:
            return False
        ratio = self._block / longer
        # _round_up gives the same number on every rank.
        self._rows_due = _round_up(ratio * self._count_rows_left()) + self._count_buffered()
        self._rows_wanted = _round_up(ratio * self._rows_wanted)
        self._block, self._row_ns = longer, self._row_ns / ratio
        self._fast_path.open(math.nan, 0, 0.0)  # closes it: a step is no longer a row
        return True

    def _is_over(self, now_ns: int) -> bool:
        """Return whether the time is up. At least one row of each kind is measured; the rows that a verdict needs are
        waited for, up to the maximum time of the budget."""
        rows = self._measured_rows + self._count_buffered()
        if now_ns < self._end_ns or rows < self._kinds:
            return False
        return now_ns >= self._most_ns or self._budget is None or rows >= self._budget.rows * self._kinds

    def _begin_step(self) -> None:
        self._start_ns = self._now_ns()
        if self._may_use_fast_path():
            steps = min(self._steps_until_look(), self._rows_until_look())
            self._fast_steps = max(1, math.ceil(steps))
            self._fast_path.open(self._usual_items, self._fast_steps, self._look_ns)

    def _may_use_fast_path(self) -> bool:
        return self._block == 1 and self._kinds == 1 and self._synchronise is None and not self._flags

    def _leave_fast_path(self) -> None:
        """Turn the steps of the fast path into rows, all at once: the loop waits for this twice a second."""
        if not self._ends_ns:
            return
        rows = np.zeros(len(self._ends_ns), _ROWS)
        rows["end_ns"] = self._ends_ns
        rows["start_ns"][0], rows["start_ns"][1:] = self._start_ns, rows["end_ns"][:-1]
        rows["items"], rows["steps"] = self._usual_items, 1
        self._rows += rows.tobytes()
        self._fast_step_ns = (self._ends_ns[-1] - self._start_ns) / len(rows)
        self._start_ns = self._ends_ns[-1]
        self._ends_ns.clear()

    def _steps_until_look(self) -> float:
        """Estimate the steps until the next check from the length of the last ones: if the clock ran backwards, the
        time alone would not end them."""
        if self._fast_step_ns <= 0:
            return 1
        return (self._look_ns - self._start_ns) / self._fast_step_ns

    def _rows_until_look(self) -> float:
        return min(self._count_rows_left(), BUFFER_ROWS - self._count_buffered())

    def _count_rows_left(self) -> float:
        return self._rows_due - self._count_buffered()

    def _count_buffered(self) -> int:
        return len(self._rows) // _ROW.size

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._watch.has_jumped():
            self._flag_rows(CLOCK_JUMPED)
        self._file.append(bytes(self._rows))
        self._rows_due -= self._count_buffered()
        self._measured_rows += self._count_buffered()
        self._rows.clear()
        self._flushed()

    def _add_warm_up_row(self, duration_ns: float, kind: int, now_ns: int) -> None:
        self._warm_rows += 1
        if duration_ns > 0:  # otherwise the clock jumped back, and the duration is meaningless
            self._warm_up[kind].append(duration_ns)
        if self._warm_rows == BLOCK_ROWS and not self._block_chosen:
            self._choose_block()
        self._steady = self._steady or self._is_warm(self._spent_share(now_ns))
        if not self._largest(int(not self._steady)):  # the last rank to become steady decides
            self._end_warm_up(now_ns)

    def _is_warm(self, spent: float) -> bool:
        rows = self._warm_rows
        if spent >= MAX_WARM_UP_SHARE and rows >= LEAST_WARM_UP_ROWS * self._kinds:
            return True
        if rows < self._next_look and (rows >= WARM_UP_ROWS or spent < MIN_WARM_UP_SHARE):
            return False
        self._next_look = rows + self._kinds * (1 + rows // (5 * self._kinds))  # checking takes time: do it less often
        return all(self._settled(durations) for durations in self._warm_up)

    def _choose_block(self) -> bool:
        """Choose the length of a block. Return whether it is longer now.

        Then the warm-up starts again, because a row of one step isn't comparable with a row of many."""
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
        """Return whether the block is too short: it may have been chosen when cold caches or another process made the
        first steps slow."""
        return self._kinds == 1 and self._find_typical_row_ns() < self._block_ns

    def _spent_share(self, now_ns: int) -> float:
        """Return the share of the budget that is spent. A user's own loop has no budget, and warms up for at most
        2 s."""
        seconds = self._budget.seconds if self._budget is not None else 4.0
        return (now_ns - self._began_ns) / (seconds * NS_PER_S)

    def _end_warm_up(self, now_ns: int) -> None:
        """End the warm-up, unless the block length has to be chosen again because steps became faster."""
        typical_ns = self._find_typical_row_ns() / self._block
        if self._largest(int(not self._block_chosen or self._rows_are_too_short())) and self._choose_block():
            if self._largest(int(self._spent_share(now_ns) < MAX_WARM_UP_SHARE)):
                return
            self._warm_up[0].append(typical_ns)
        self._flush()
        self._flags, self._measured_rows, self._flushed_ns = 0, 0, now_ns
        self._fast_step_ns = self._find_typical_row_ns()
        self._warmed_up()
        if self._budget is None:
            return
        self._end_ns = max(self._end_ns, now_ns + MIN_MEASURED_SHARE * self._budget.seconds * NS_PER_S)
        if self._budget.max_steps is not None:
            self._rows_wanted = self._round_up_to_kinds(self._budget.max_steps / self._block)
        self._rows_due = self._rows_wanted if self._alone else 0
        if not self._alone:
            self._grant_rows(now_ns)

    def _grant_rows(self, now_ns: int) -> None:
        """Grant rows for a short time, the same number on every rank."""
        time_ns = min(STRETCH_NS, max(0, self._end_ns - now_ns))
        stretch = self._largest(self._round_up_to_kinds(time_ns / max(1.0, self._find_typical_row_ns())))
        rows = min(stretch, self._rows_wanted)
        self._rows_due += rows
        self._rows_wanted -= rows

    def _round_up_to_kinds(self, rows: float) -> int:
        """Round up to a multiple of the number of kinds, at least one row of each."""
        return max(1, math.ceil(round(rows, 6) / self._kinds)) * self._kinds

    def _find_typical_row_ns(self) -> float:
        """Return the length of a typical row.

        In the warm-up it is the mean over kinds of the median, without the first row, which may have compiled for
        minutes, and without kinds that have no row yet."""
        if self._row_ns:
            return self._row_ns
        latest = [(durations[1:] or durations)[-2 * WARM_UP_ROWS :] for durations in self._warm_up]
        typical = [median(durations) for durations in latest if durations]
        return self._block * sum(typical) / len(typical) if typical else float(self._block_ns)
