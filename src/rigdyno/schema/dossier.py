"""What stands behind a run's view: the rig, how it was measured, what its verdicts rest on, and every raw file."""

from __future__ import annotations

import msgspec

from rigdyno.schema.estimate import Verdict


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """One reason behind the verdict of one configuration, and the steady steps that it fell on."""

    what: str  # the configuration
    verdict: Verdict  # of that configuration
    code: str
    sentence: str
    hit: int | None  # steps; None: it is about all of them together, or they can't be told apart
    steps: int  # in the steady windows of all its processes


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: a process, or the ranks that stepped together."""

    cell: str
    what: str
    ended: str
    seconds: float
    memory_bytes: int | None = None
    steps: int | None = None  # of all ranks; None: they can't be read
    cut: int | None = None  # of them before the steady window
    tagged: str = ""  # what steps fell into, with counts


class RawFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # relative to the run folder
    size_bytes: int
    sha256: str


class RawFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a run folder. `digest` covers all of them, also those that aren't listed."""

    count: int
    size_bytes: int
    digest: str  # the sha256 of what `sha256sum` prints about all of them, in the order of their names
    listed: tuple[RawFile, ...] = ()


class Dossier(msgspec.Struct, frozen=True, kw_only=True):
    run: str  # the folder's name
    measured: tuple[Fact, ...] = ()  # what was asked, when, with what
    rig: tuple[Fact, ...] = ()
    grounds: tuple[Ground, ...] = ()
    more_grounds: int = 0  # that aren't listed
    processes: tuple[ProcessFacts, ...] = ()
    more_processes: int = 0
    files: RawFiles
