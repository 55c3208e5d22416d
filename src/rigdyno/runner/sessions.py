"""The sessions of a run: one for each launcher that its cells need, opened before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from rigdyno import catalogue
from rigdyno.contracts import Launcher, Opening, Session
from rigdyno.runner.signals import termination_as_interrupt
from rigdyno.schema.record import RunHead
from rigdyno.schema.spec import Cell


class Sessions:
    """Nodes that don't join, or run other versions, are found out here: nothing has been written by then."""

    def __init__(self, opened: dict[str, Session], closing: ExitStack) -> None:
        self._opened, self._closing = opened, closing
        self._lost: set[str] = set()

    def of(self, cell: Cell) -> Session:
        return self._opened[cell.spec.launcher]

    def is_lost(self, cell: Cell) -> bool:
        """Whether nothing more can be started by this cell's launcher: a node is gone, or its job has ended."""
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
    """`cells`: those that are still to run."""
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
