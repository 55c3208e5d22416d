"""A suite chooses cells and presents their figures; an observer displays the progress of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import RunRecord
from rigdyno.schema.spec import Cell, RunPlan, RunSpec
from rigdyno.schema.system import System
from rigdyno.schema.view import Presentation

if TYPE_CHECKING:
    from rigdyno.plan.request import Request


@dataclass(frozen=True)
class Wanted:
    """A cell that a suite asks for: the specification, and the number of processes."""

    spec: RunSpec
    repeat: int = 1
    most: int = 1  # number of processes if time is left and the interval is wide


@dataclass(frozen=True)
class Machine:
    """The machine that a suite chooses its cells for."""

    system: System
    device: str  # the device to use
    most_ranks: int = 1  # number of ranks that fit


class Suite(ABC):
    """A set of cells, and their presentation. Implementations are frozen dataclasses: their fields are the options of
    the suite, set by `--set NAME=VALUE`."""

    excerpt: ClassVar[bool] = False  # a short form of other suites: `run all` leaves it out
    shows_idle: ClassVar[bool] = False  # its tables show the idle machine
    searches_memory: ClassVar[bool] = False  # it searches for the largest batch, so --memory applies to it

    @property
    def earlier_run(self) -> str | None:
        """Return the name of an earlier run whose figures it shows next to its own."""
        return None

    @abstractmethod
    def cells(self, request: Request, machine: Machine) -> Sequence[Wanted]: ...

    @abstractmethod
    def present(self, measurements: Sequence[Measurement]) -> Presentation: ...


@dataclass(frozen=True)
class Progress:
    cell: Cell
    seconds: float  # since the cell began
    share: float  # share of the expected time, 0 to 1
    rate: float | None = None  # recent rate in items/s
    unit: str = ""
    figure: str | None = None  # text to show instead of the rate
    left_seconds: float | None = None  # remaining time of the cell, if it is known better than by the plan


class Observer(Protocol):
    """Is notified while a plan runs, and may display it."""

    def planned(self, plan: RunPlan, folder: Path) -> None: ...

    def started(self, cell: Cell) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def noticed(self, words: str) -> None:
        """Show a message that the user may want to act on before the end."""
        ...

    def finished(self, record: RunRecord) -> None: ...

    def over(self) -> None: ...
