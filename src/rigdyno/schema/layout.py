"""Name the files and folders of a run. No other module knows their names.

runs/<name>.<timestamp>/
  head.json                              the plan, the system, the environment
  lock                                   locked while the run is under way
  damaged/                               old contents of cell folders that had a record and were run again
  cells/<cell>/spec.json                 the cell: its configuration and participants
  cells/<cell>/turns                     tells the first rank of a duel's arm when to step, while it runs
  cells/<cell>/<participant>/steps.rows      every step
  cells/<cell>/<participant>/phases.rows     time of each phase of the steps, if it was measured
  cells/<cell>/<participant>/telemetry.rows  readings of a node's sampler
  cells/<cell>/<participant>/report.json     outcome, as reported by the participant itself
  cells/<cell>/<participant>/log.txt         its output
  cells/<cell>/<participant>/pid
  cells/<cell>/<node's sampler>/launcher.*   log of the command that started the node's ranks, and which of them failed
  cells/<cell>/record.json               written last: a cell without it isn't finished

runs/all.<timestamp>/
  campaign.json                          written last: which of the runs in this folder belong together
  lock
  <suite>.<timestamp>/                   a run as above
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rigdyno.schema.spec import SAMPLER, Participant

HEAD, LOCK, CELLS, DAMAGED = "head.json", "lock", "cells", "damaged"

CAMPAIGN = "campaign.json"

SPEC, RECORD, TURNS = "spec.json", "record.json", "turns"

RowKind = Literal["steps", "phases", "telemetry"]

_RETURNED = ("steps.rows", "phases.rows", "telemetry.rows", "report.json", "log.txt")

_RETURNED_BY_SAMPLER = ("launcher.log", "launcher.json")

_RANK_LOG = re.compile(r"rank\d+/log\.txt")


@dataclass(frozen=True)
class ParticipantFolder:
    path: Path

    def rows(self, kind: RowKind) -> Path:
        return self.path / f"{kind}.rows"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def pid(self) -> Path:
        return self.path / "pid"

    @property
    def launcher_log(self) -> Path:
        return self.path / "launcher.log"

    @property
    def launcher_exits(self) -> Path:
        return self.path / "launcher.json"


@dataclass(frozen=True)
class CellFolder:
    path: Path

    @property
    def spec(self) -> Path:
        return self.path / SPEC

    @property
    def record(self) -> Path:
        return self.path / RECORD

    @property
    def turns(self) -> Path:
        return self.path / TURNS

    def participant(self, name: str) -> ParticipantFolder:
        return ParticipantFolder(self.path / name)

    def row_files(self, kind: RowKind) -> Iterator[Path]:
        """Yield the row files of all participants in arbitrary order; the header names the participant."""
        yield from self.path.glob(f"*/{kind}.rows")

    def files(self) -> tuple[str, ...]:
        """Return the paths of all files, relative to the cell's folder."""
        return tuple(sorted(path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file()))


def returned_names(participant: Participant) -> tuple[str, ...]:
    """Return the files that a participant on another node may send back: all but its process id."""
    return (*_RETURNED, *_RETURNED_BY_SAMPLER) if participant.role == SAMPLER else _RETURNED


def log_of(cell: str, files: Sequence[str]) -> str | None:
    """Return the path of the ranks' logs in the run folder, as shown to users; None if there are none."""
    logs = [name for name in files if _RANK_LOG.fullmatch(name)]
    if not logs:
        return None
    name = logs[0] if len(logs) == 1 else re.sub(r"\d+", "*", logs[0])
    return f"{CELLS}/{cell}/{name}"
