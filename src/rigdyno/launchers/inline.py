"""The cell in this very process, for debugging: a breakpoint works, a crash takes rigdyno with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Exit, Requirement
from rigdyno.errors import UsageError
from rigdyno.schema.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Inline:
    """This very process, for debugging"""

    requires: ClassVar[tuple[Requirement, ...]] = ()

    def start(
        self, spec: RunSpec, cell_folder: Path, worker: Callable[[Path], int], turns: int | None = None
    ) -> InlineLaunch:
        if turns is not None:
            raise UsageError("a duel needs two processes; leave out --launcher inline")
        return InlineLaunch(worker(cell_folder))


class InlineLaunch:
    def __init__(self, code: int) -> None:
        self._code = code

    def wait(self, seconds: float) -> bool:
        return True

    def exits(self) -> Sequence[Exit]:
        return [Exit(self._code)]

    def stop(self) -> None:
        pass
