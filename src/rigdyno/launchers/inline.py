"""The cell in this very process, for debugging: a breakpoint works, a crash takes rigdyno with it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Exit, Left, Opening, Requirement, Scope
from rigdyno.launchers._node import WORKER, NodeSampler, Part, make_folders
from rigdyno.schema.spec import Cell


@dataclass(frozen=True, kw_only=True)
class Inline:
    """This very process, for debugging"""

    requires: ClassVar[tuple[Requirement, ...]] = ()
    scope: ClassVar[Scope] = "process"

    def open(self, opening: Opening) -> InlineSession:
        return InlineSession()


class InlineSession:
    def start(self, cell: Cell, folder: Path) -> InlineLaunch:
        """Returns when it is over."""
        part = Part(cell, folder)
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
        """Nothing stays open between two cells."""


class InlineLaunch:
    def __init__(self, ended: Exit, sampler: NodeSampler) -> None:
        self._ended, self._sampler = ended, sampler

    def wait(self, seconds: float) -> bool:
        return True

    def stop(self) -> None:
        self._sampler.stop()

    def collect(self) -> Left:
        return Left(exits=[self._ended, *self._sampler.stop()])
