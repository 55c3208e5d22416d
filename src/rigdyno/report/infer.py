"""What a person sees of a run over a volume: the plan, a bar with megavoxels a second, what came of it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, TextIO

from rich.markup import escape
from rich.progress import BarColumn

from rigdyno.clock import Clock
from rigdyno.report.page import Page
from rigdyno.report.progress import bar_on
from rigdyno.units import seconds_of_ns, show_bytes, show_number, show_scaled, show_seconds

if TYPE_CHECKING:
    from rigdyno.engines.blockwise import Done, Plan
    from rigdyno.engines.blockwise.boxes import Box, Zyx
    from rigdyno.engines.blockwise.journal import Counts
    from rigdyno.engines.blockwise.watching import Summary

LINE_SHARE = 0.05  # of the volume, between two lines in a pipe
MOST_FAILURES = 5  # are named; the file of marks knows them all


def tell(stream: TextIO, text: str) -> None:
    """Whoever read it may have gone away (`| head`): a run of hours goes on without."""
    with suppress(OSError):
        print(text, file=stream, flush=True)


def plan_lines(plan: Plan, name: str, output: str, page: Page, *, resumed: bool) -> list[str]:
    rows = [
        (
            "volume",
            f"{_times(plan.shape)} voxels ({show_scaled(prod(plan.shape), 'voxel')}), normalised: {_figures(plan)}",
        ),
        ("network", f"{name}, {plan.channels} channel{'s' if plan.channels > 1 else ''}, backend {plan.backend}"),
        ("blocks", f"{plan.blocks} of {_times(plan.block)}"),
        ("halo", _halo(plan)),
        ("computed", f"{show_number(plan.recomputation)} times what the whole volume at once would need"),
        ("memory", f"up to {show_bytes(plan.memory_bytes)}"),
        ("disk", f"up to {show_bytes(plan.output_bytes)} in {output}"),
        ("time", f"about {show_seconds(plan.seconds)}, {_rate(plan.voxels_per_second)}"),
    ]
    lines = ["Going on with what was begun there:" if resumed else "Plan:"]
    for title, text in rows:
        lines += textwrap.wrap(f"  {title:<9} {text}", page.width, subsequent_indent=" " * 12)
    for remark in plan.remarks:
        lines += textwrap.wrap(f"  note: {remark}", page.width, subsequent_indent="    ")
    return lines


def done_lines(done: Done, output: str, page: Page) -> list[str]:
    return [line for text in _done(done, output) for line in textwrap.wrap(text, page.width, subsequent_indent="  ")]


def _done(done: Done, output: str) -> Iterator[str]:
    summary, counts = done.summary, done.counts
    if summary.voxels:
        others = 1 - summary.predict_seconds / summary.wall_seconds
        rate = _rate(summary.voxels / summary.wall_seconds)
        blocks = _count(summary.done, "block")
        yield f"{blocks} in {show_seconds(summary.wall_seconds)}: {rate}; {others:.1%} of it wasn't predicting."
    if counts.skipped:
        yield f"{_count(counts.skipped, 'block')} skipped: the mask is empty there."
    if summary.missing:
        yield f"{_count(summary.missing, 'block')} with chunks that were never stored, read as the fill value."
    if done.clipped:
        yield f"{done.clipped:,} values lay outside of the output's range and were clipped; see --range."
    if done.not_numbers:
        yield f"{done.not_numbers:,} answers of the network weren't numbers; look at its weights and at the input."
    if counts.failed:
        yield f"{_count(counts.failed, 'block')} couldn't be read; mend the input and run the same command again:"
        named = summary.failures[:MOST_FAILURES]
        for failure in named:
            yield f"  {failure.box}: {failure.reason}"
        if counts.failed > len(named):
            yield f"  and {counts.failed - len(named):,} more"
    elif not summary.done and not summary.skipped:
        yield "Nothing was left to do."
    yield f"{'Saved' if not counts.failed else 'What is there was saved'} in {output}"


class _Counting:
    """Of the whole volume: what others do is seen when this worker starts, and in the end."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan, self._clock = plan, clock
        self._voxels = self._done_before = 0
        self._failed = 0
        self._began = clock.now_ns()

    def started(self, counts: Counts) -> None:
        finished = counts.done + counts.skipped
        self._done_before = prod(self._plan.shape) * finished // max(1, self._plan.blocks)
        self._began = self._clock.now_ns()

    def block_done(self, box: Box, seconds_reading: float, seconds_predicting: float, seconds_writing: float) -> None:
        self._voxels += box.voxels

    def block_skipped(self, box: Box) -> None:
        self._done_before += box.voxels  # nothing was computed: the rate must not rise by it

    def block_failed(self, box: Box, error: Exception) -> None:
        self._failed += 1

    def waiting_for_others(self, blocks: int) -> None: ...

    def over(self, summary: Summary) -> None: ...

    @property
    def share(self) -> float:
        return min(1.0, (self._done_before + self._voxels) / prod(self._plan.shape))

    def figures(self) -> str:
        seconds = max(seconds_of_ns(self._clock.now_ns() - self._began), 1e-9)
        rate = self._voxels / seconds if self._voxels else self._plan.voxels_per_second
        left = (1 - self.share) * prod(self._plan.shape) / rate
        return f"{_rate(rate)}, {show_seconds(left)} left"


class Lines(_Counting):
    def __init__(self, plan: Plan, clock: Clock, stream: TextIO) -> None:
        super().__init__(plan, clock)
        self._stream, self._next = stream, LINE_SHARE

    def block_done(self, box: Box, seconds_reading: float, seconds_predicting: float, seconds_writing: float) -> None:
        super().block_done(box, seconds_reading, seconds_predicting, seconds_writing)
        if self.share >= self._next:
            tell(self._stream, f"{self.share:4.0%}  {self.figures()}")
            self._next = self.share + LINE_SHARE

    def block_failed(self, box: Box, error: Exception) -> None:
        super().block_failed(box, error)
        tell(self._stream, f"can't read {box}: {' '.join(str(error).split())}")


class Bar(_Counting):
    def __init__(self, plan: Plan, clock: Clock, stream: TextIO) -> None:
        super().__init__(plan, clock)
        self._bar = bar_on(stream, BarColumn(bar_width=24))
        self._task = self._bar.add_task("", total=1.0, figures="")

    def started(self, counts: Counts) -> None:
        super().started(counts)
        with suppress(OSError):
            self._bar.start()
        self._draw(self.figures())

    def block_done(self, box: Box, seconds_reading: float, seconds_predicting: float, seconds_writing: float) -> None:
        super().block_done(box, seconds_reading, seconds_predicting, seconds_writing)
        self._draw(self.figures())

    def block_failed(self, box: Box, error: Exception) -> None:
        super().block_failed(box, error)
        with suppress(OSError):
            self._bar.console.print(escape(f"can't read {box}: {' '.join(str(error).split())}"), style="yellow")

    def waiting_for_others(self, blocks: int) -> None:
        self._draw(f"waiting for {_count(blocks, 'block')} of other workers")

    def over(self, summary: Summary) -> None:
        with suppress(OSError):
            self._bar.stop()

    def _draw(self, figures: str) -> None:
        with suppress(OSError):  # a terminal that was closed
            self._bar.update(self._task, completed=self.share, figures=figures)
            self._bar.refresh()


class Quiet(_Counting):
    pass


def watcher_for(plan: Plan, clock: Clock, *, quiet: bool, stream: TextIO | None = None) -> _Counting:
    stream = stream or sys.stderr
    if quiet:
        return Quiet(plan, clock)
    return Bar(plan, clock, stream) if stream.isatty() else Lines(plan, clock, stream)


def _halo(plan: Plan) -> str:
    exact = f"exact is {_times(plan.exact_halo)}" if plan.exact_halo else "no halo is exact for this network"
    if plan.halo == plan.exact_halo:
        return f"{_times(plan.halo)}, which is exact"
    if plan.halo_error is None:
        return f"{_times(plan.halo)} as asked for ({exact})"
    error = f"{plan.halo_error:.2%} of the output's range at most, {plan.halo_mean_error:.2g} in the mean"
    return f"{_times(plan.halo)} ({exact}): off by {error}, seen at {plan.halo_places} places"


def _figures(plan: Plan) -> str:
    figures = plan.normalisation
    if set(figures.subtract) == {0.0} and set(figures.divide) == {1.0}:
        return "no"
    pairs = ", ".join(
        f"(value - {show_number(subtract)}) / {show_number(divide)}"
        for subtract, divide in zip(figures.subtract, figures.divide, strict=True)
    )
    return f"{pairs}, from {figures.source}"


def _rate(voxels_per_second: float) -> str:
    return f"{show_number(voxels_per_second / 1e6)} megavoxel/s"


def _times(shape: Zyx) -> str:
    return " x ".join(map(str, shape))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
