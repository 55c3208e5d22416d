"""Open the sessions of a run, one for each launcher that its cells need, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from rigdyno import catalogue
from rigdyno.base.processes import termination_as_interrupt
from rigdyno.contracts import Launcher, Opening, Session
from rigdyno.runner.schedule import still_to_run
from rigdyno.schema.record import RunHead
from rigdyno.schema.spec import Cell
from rigdyno.store.folder import RunFolder


class Sessions:
    """The open sessions of a run. Nodes that don't join, or run another version, are detected before anything is
    written."""

    def __init__(self, opened: dict[str, Session], closing: ExitStack) -> None:
        self._opened, self._closing = opened, closing
        self._lost: set[str] = set()

    def of(self, cell: Cell) -> Session:
        return self._opened[cell.spec.launcher]

    def is_lost(self, cell: Cell) -> bool:
        """Return whether the cell's launcher can't start anything any more: a node is gone, or its job has ended."""
        return cell.spec.launcher in self._lost

    def lose(self, cell: Cell) -> None:
        self._lost.add(cell.spec.launcher)

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._closing.close()


def open_sessions(
    head: RunHead,
    cells: Sequence[Cell],
    secret: bytes | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> Sessions:
    """Open a session for each launcher of the cells that are still to run."""
    by_launcher: dict[str, list[Cell]] = {}
    for cell in cells:
        by_launcher.setdefault(cell.spec.launcher, []).append(cell)
    opened: dict[str, Session] = {}
    with ExitStack() as closing, termination_as_interrupt():
        for name, own in by_launcher.items():
            launcher: Launcher = catalogue.load("launcher", name)()
            opening = Opening(cells=own, system=head.system, reach=head.plan.reach, secret=secret, say=say)
            opened[name] = launcher.open(opening)
            closing.callback(opened[name].close)
        return Sessions(opened, closing.pop_all())


def open_run_sessions(
    head: RunHead,
    folder: RunFolder | None = None,
    secret: bytes | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> Sessions:
    """Open the sessions of a run and connect to its nodes. `folder`: that of a run to resume."""
    left = still_to_run(head.plan, lambda cell: folder is not None and folder.is_finished(cell))
    return open_sessions(head, left, secret, say)
