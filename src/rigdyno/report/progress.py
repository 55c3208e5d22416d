"""What a person sees while a plan runs: a bar with live figures on a terminal, a line a cell in a pipe.

Drawn twice a second and no more: drawing costs time on the machine that is being measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from rigdyno.contracts import Observer, Progress
from rigdyno.report.format_entry import scaled_text
from rigdyno.schema.record import Completed, Failed, RunRecord, Skipped
from rigdyno.schema.spec import Cell, Plan
from rigdyno.units import rate_unit, show_seconds


def observer_for(stream: TextIO | None = None, *, quiet: bool = False) -> Observer:
    stream = stream or sys.stderr
    if quiet:
        return Silent()
    return Bar(stream) if stream.isatty() else Lines(stream)


class Silent:
    def planned(self, plan: Plan, folder: Path) -> None: ...

    def started(self, cell: Cell, index: int) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def finished(self, record: RunRecord) -> None: ...

    def over(self) -> None: ...


class Lines(Silent):
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = self._done = 0

    def planned(self, plan: Plan, folder: Path) -> None:
        self._total = len(plan.cells)

    def started(self, cell: Cell, index: int) -> None:
        self._done = index + 1

    def finished(self, record: RunRecord) -> None:
        print(f"[{self._done}/{self._total}] {record.cell}: {ending(record)}", file=self._stream, flush=True)


class Bar(Silent):
    def __init__(self, stream: TextIO) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[figures]}"),
            console=Console(file=stream, highlight=False),
            auto_refresh=False,
            transient=True,
        )
        self._task: TaskID | None = None
        self._plan = Plan(name="")
        self._done_seconds = 0.0

    def planned(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._task = self._bar.add_task("", total=max(plan.seconds, 0.1), figures="")
        self._bar.start()

    def started(self, cell: Cell, index: int) -> None:
        self._update(f"{index + 1}/{len(self._plan.cells)} {_shortened(cell.name)}", "starting")

    def progress(self, progress: Progress) -> None:
        spent = self._done_seconds + progress.share * progress.cell.seconds
        left = show_seconds(max(0.0, self._plan.seconds - spent))
        rate = f"{live_rate(progress)}, " if progress.rate is not None else ""
        self._update(None, f"{rate}{left} left", spent)

    def finished(self, record: RunRecord) -> None:
        cell = next(cell for cell in self._plan.cells if cell.name == record.cell)
        self._done_seconds += cell.seconds if cell.refusal is None else 0.0
        if not isinstance(record.outcome, Completed):
            self._bar.console.print(f"{escape(record.cell)}: {escape(ending(record))}", style="yellow")

    def over(self) -> None:
        self._bar.stop()

    def _update(self, description: str | None, figures: str, completed: float | None = None) -> None:
        if self._task is not None:
            self._bar.update(self._task, description=description, figures=figures, completed=completed)
            self._bar.refresh()


def _shortened(name: str) -> str:
    plain = name.partition("-")[2] or name
    return plain if len(plain) <= 26 else plain[:25] + "…"


def live_rate(progress: Progress) -> str:
    return scaled_text(progress.rate or 0.0, rate_unit(progress.unit))


def ending(record: RunRecord) -> str:
    outcome = record.outcome
    if isinstance(outcome, Failed):
        return f"FAILED ({outcome.kind}, {outcome.phase}): {outcome.message}"
    if isinstance(outcome, Skipped):
        return f"SKIPPED: {outcome.reason}"
    return f"done in {show_seconds(record.seconds)}"
