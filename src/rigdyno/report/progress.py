"""Show the progress of a plan: a bar with live figures on a terminal; in a pipe a line per cell and per minute.

The bar is drawn at most twice a second, because drawing costs time on the machine that is being measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

from rigdyno.base.units import rate_unit, show_seconds
from rigdyno.contracts import Observer, Progress
from rigdyno.report.text import format_scaled
from rigdyno.schema.record import Completed, Failed, RunRecord, Skipped
from rigdyno.schema.spec import Cell, RunPlan

NAME_WIDTH = 26  # characters of a cell's name next to the bar, so that all fits into 80 columns

LINE_SECONDS = 60.0  # time between two lines about a long cell, in a pipe


class Stage(NamedTuple):
    """The part of one run in a display that several runs share."""

    name: str = ""
    before: float = 0.0  # planned seconds of the runs before it
    behind: float = 0.0  # planned seconds of the runs after it


SINGLE_RUN = Stage()


def make_observer(stream: TextIO | None = None, *, quiet: bool = False, stage: Stage = SINGLE_RUN) -> Observer:
    stream = stream or sys.stderr
    if quiet:
        return SilentObserver()
    return ProgressBar(stream, stage) if stream.isatty() else ProgressLines(stream, stage)


class SilentObserver:
    def planned(self, plan: RunPlan, folder: Path) -> None: ...

    def started(self, cell: Cell) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def noticed(self, words: str) -> None: ...

    def finished(self, record: RunRecord) -> None: ...

    def over(self) -> None: ...


class _Counting(SilentObserver):
    """Tracks which cell is running. Refused cells are ignored: the plan has already named them."""

    def __init__(self, stage: Stage = SINGLE_RUN) -> None:
        self._stage = stage
        self._plan, self._spare_seconds, self._spares = RunPlan(name=""), 0.0, 0
        self._cell: Cell | None = None  # None for a cell that the plan refused

    def planned(self, plan: RunPlan, folder: Path) -> None:
        self._plan, self._spare_seconds, self._spares = plan, 0.0, 0

    def started(self, cell: Cell) -> None:
        if self._cell is not None and self._cell.spare:
            self._spare_seconds += self._cell.seconds
        self._spares += cell.spare
        self._cell = cell if cell.refusal is None else None

    def _position(self) -> str:
        if self._cell is None:
            return ""
        return f"{self._stage.name} {self._position_in_run(self._cell)}".strip()

    def _position_in_run(self, current: Cell) -> str:
        if current.pair is not None:
            return f"pair {current.pair}"
        if current.spare:
            return f"more, {self._spares}"
        names = [cell.name for cell in self._plan.runnable if cell.is_planned]
        return f"{names.index(_planned_name(current)) + 1}/{len(names)}"

    def _seconds_before(self) -> float:
        """Return the planned seconds before the current cell. Spare cells run after the others and before the pairs."""
        before = 0.0
        for cell in self._plan.runnable:
            if self._cell is None or cell.name == _planned_name(self._cell):
                break
            before += 0.0 if cell.spare else cell.seconds
        if self._cell is not None and self._cell.pair is not None:
            return before + self._plan.spare_seconds
        return before + min(self._spare_seconds, self._plan.spare_seconds)

    def _spent(self, progress: Progress) -> float:
        """Return the planned seconds that have passed."""
        both = 1 if progress.cell.pair is None else 2  # the time of a pair is divided between its two cells
        return self._seconds_before() + progress.share * both * progress.cell.seconds

    def _figures(self, progress: Progress) -> str:
        left_seconds = max(0.0, self._plan.seconds - self._spent(progress))
        if progress.left_seconds is not None:
            behind = self._plan.seconds - self._seconds_before() - progress.cell.seconds
            left_seconds = max(0.0, behind) + progress.left_seconds
        left = f"{show_seconds(left_seconds + self._stage.behind)} left"
        figure = progress.figure or (format_rate(progress) if progress.rate is not None else None)
        return f"{figure}, {left}" if figure else left


def _planned_name(cell: Cell) -> str:
    """Return the name of a cell in the plan. Attempts of a search aren't in it: they count for the cell they serve."""
    return cell.attempt_of or cell.name


class ProgressLines(_Counting):
    def __init__(self, stream: TextIO, stage: Stage = SINGLE_RUN) -> None:
        super().__init__(stage)
        self._stream = stream
        self._failed_pair: int | None = None
        self._next_seconds = LINE_SECONDS

    def started(self, cell: Cell) -> None:
        super().started(cell)
        self._next_seconds = LINE_SECONDS

    def progress(self, progress: Progress) -> None:
        if progress.seconds >= self._next_seconds:
            self._next_seconds = progress.seconds + LINE_SECONDS
            self._say(f"[{self._position()}] {progress.share:.0%}, {self._figures(progress)}")

    def noticed(self, words: str) -> None:
        self._say(words)

    def finished(self, record: RunRecord) -> None:
        words = self._words(record)
        if self._cell is not None and words:
            self._say(f"[{self._position()}] {words}")

    def _say(self, words: str) -> None:
        print(words, file=self._stream, flush=True)

    def _words(self, record: RunRecord) -> str | None:
        """Describe the end of a cell. The two of a pair end together: one line for both, or one per failure."""
        if record.arm is None:
            return f"{record.cell}: {format_outcome(record)}"
        if not isinstance(record.outcome, Completed):
            self._failed_pair = record.pair
            return f"{record.arm.upper()}: {format_outcome(record)}"
        both = record.arm == "b" and self._failed_pair != record.pair
        return format_outcome(record) if both else None


class ProgressBar(_Counting):
    def __init__(self, stream: TextIO, stage: Stage = SINGLE_RUN) -> None:
        super().__init__(stage)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[figures]}"),
            console=Console(file=stream, highlight=False),
            auto_refresh=False,  # drawn only by refresh()
            transient=True,
        )
        self._task = self._bar.add_task("", total=1.0, figures="")

    def planned(self, plan: RunPlan, folder: Path) -> None:
        super().planned(plan, folder)
        self._bar.update(self._task, total=max(self._stage.before + plan.seconds + self._stage.behind, 0.1))
        self._bar.start()

    def started(self, cell: Cell) -> None:
        super().started(cell)
        if self._cell is not None:
            room = NAME_WIDTH - (len(self._stage.name) + 1 if self._stage.name else 0)
            name = "" if cell.pair is not None else f" {_shortened(cell.name, max(8, room))}"
            self._draw("starting", self._seconds_before(), f"{self._position()}{name}")

    def progress(self, progress: Progress) -> None:
        self._draw(self._figures(progress), self._spent(progress))

    def noticed(self, words: str) -> None:
        self._bar.console.print(escape(words), style="yellow")

    def finished(self, record: RunRecord) -> None:
        if self._cell is not None and not isinstance(record.outcome, Completed):
            self._bar.console.print(f"{escape(record.cell)}: {escape(format_outcome(record))}", style="yellow")

    def over(self) -> None:
        self._bar.stop()

    def _draw(self, figures: str, completed: float, description: str | None = None) -> None:
        done = self._stage.before + completed
        self._bar.update(self._task, description=description, figures=figures, completed=done)
        self._bar.refresh()


def _shortened(name: str, room: int) -> str:
    plain = name.partition("-")[2] or name
    return plain if len(plain) <= room else plain[: room - 1] + "…"


def format_rate(progress: Progress) -> str:
    return format_scaled(progress.rate or 0.0, rate_unit(progress.unit))


def format_outcome(record: RunRecord) -> str:
    outcome = record.outcome
    if isinstance(outcome, Failed):
        return f"FAILED ({outcome.kind}, {outcome.phase}): {outcome.message}"
    if isinstance(outcome, Skipped):
        return f"SKIPPED: {outcome.reason}"
    return f"done in {show_seconds(record.seconds)}"
