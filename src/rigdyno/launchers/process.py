"""One fresh process for the cell, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Exit, Opening, Requirement, Scope
from rigdyno.launchers._children import Child, worker_environment
from rigdyno.launchers._node import WORKER, NodeLaunch, Part
from rigdyno.processes import child_command
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import Cell


@dataclass(frozen=True, kw_only=True)
class Process:
    """One fresh process on this machine"""

    requires: ClassVar[tuple[Requirement, ...]] = ()
    scope: ClassVar[Scope] = "process"

    def open(self, opening: Opening) -> ProcessSession:
        return ProcessSession()

    def start_part(self, part: Part) -> NodeLaunch:
        return NodeLaunch(part, _worker, _exit)


class ProcessSession:
    def start(self, cell: Cell, folder: Path, *, turns: int | None = None, beside: tuple[Path, ...] = ()) -> NodeLaunch:
        """`turns`: the descriptor of a socket over which a duel's arm is told when it may step."""
        return NodeLaunch(Part(cell, folder, beside=beside), partial(_worker, turns=turns), _exit)

    def close(self) -> None:
        """Nothing stays open between two cells."""


def _worker(part: Part, turns: int | None = None) -> Child:
    (rank,) = part.ranks
    spec, told = part.cell.spec, () if turns is None else (turns,)
    return Child(
        child_command(WORKER, part.folder, rank.id, *map(str, told), python=spec.python),
        CellFolder(part.folder).participant(rank.id).log,
        worker_environment(spec),
        told,
    )


def _exit(part: Part, code: int) -> Sequence[Exit]:
    return [Exit(code, part.ranks[0].id)]
