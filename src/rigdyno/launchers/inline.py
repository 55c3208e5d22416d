"""Runs the cell in this process, for debugging: breakpoints work, and a crash ends rigdyno too."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Exit, Launcher, Left, Opening, Scope
from rigdyno.launchers.nodes.local import WORKER, NodeSampler, NodeShare, make_folders
from rigdyno.schema.spec import Cell


@dataclass(frozen=True, kw_only=True)
class Inline(Launcher):
    """This very process, for debugging"""

    scope: ClassVar[Scope] = "process"
    starts_processes: ClassVar[bool] = False

    def open(self, opening: Opening) -> InlineSession:
        return InlineSession()


class InlineSession:
    def start(self, cell: Cell, folder: Path) -> InlineLaunch:
        """Run the cell, and return once it is over."""
        part = NodeShare(cell, folder)
        make_folders(part)
        sampler = NodeSampler(part)
        (rank,) = part.ranks
        try:
            code = importlib.import_module(WORKER).work(folder, rank.id)
        except BaseException:
            sampler.stop()
            raise
        return InlineLaunch(Exit(code, rank.id), sampler)

    def close(self) -> None:
        """Do nothing: nothing stays open between cells."""


class InlineLaunch:
    def __init__(self, ended: Exit, sampler: NodeSampler) -> None:
        self._ended, self._sampler = ended, sampler

    def wait(self, seconds: float) -> bool:
        return True

    def stop(self) -> None:
        self._sampler.stop()

    def collect(self) -> Left:
        return Left(exits=[self._ended, *self._sampler.stop()])
