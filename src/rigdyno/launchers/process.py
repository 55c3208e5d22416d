"""Runs the cell in one fresh process on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from rigdyno.base.processes import child_command
from rigdyno.contracts import Exit, Launcher, Opening, Scope
from rigdyno.launchers.nodes.children import Child, worker_environment
from rigdyno.launchers.nodes.local import WORKER, NodeLaunch, NodeShare
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import Cell


@dataclass(frozen=True, kw_only=True)
class ProcessLauncher(Launcher):
    """One fresh process on this machine"""

    scope: ClassVar[Scope] = "process"

    def open(self, opening: Opening) -> ProcessSession:
        return ProcessSession()

    def start_part(self, part: NodeShare) -> NodeLaunch:
        return NodeLaunch(part, _start_worker, _worker_exits)


class ProcessSession:
    def start(self, cell: Cell, folder: Path, *, turns: int | None = None, beside: tuple[Path, ...] = ()) -> NodeLaunch:
        """Start the cell. `turns`: descriptor of a socket over which one side of a duel gets its turns. `beside`:
        folders of cells that run at the same time."""
        return NodeLaunch(NodeShare(cell, folder, beside=beside), partial(_start_worker, turns=turns), _worker_exits)

    def close(self) -> None:
        """Do nothing: nothing stays open between cells."""


def _start_worker(part: NodeShare, turns: int | None = None) -> Child:
    (rank,) = part.ranks
    spec, descriptors = part.cell.spec, () if turns is None else (turns,)
    return Child(
        child_command(WORKER, part.folder, rank.id, *map(str, descriptors), python=spec.python),
        CellFolder(part.folder).participant(rank.id).log,
        worker_environment(spec),
        descriptors,
    )


def _worker_exits(part: NodeShare, code: int) -> Sequence[Exit]:
    return [Exit(code, part.ranks[0].id)]
