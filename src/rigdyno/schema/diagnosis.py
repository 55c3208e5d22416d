"""What `rigdyno doctor` found: printed as it is by `--json`, drawn by report/doctor.py."""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.estimate import Number
from rigdyno.schema.system import Environment, System

DIAGNOSIS_VERSION = 1


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried. A trap is what would spoil a figure or kill a worker."""

    name: str
    status: Literal["fine", "trap", "unknown"]
    sentence: str
    fix: str | None = None  # a command, or what to change
    figure: Number | None = None  # what was read; None: nothing was, or it isn't a number


class MeterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe can read here. Without `readable` it can read nothing, and `reason` says why."""

    name: str
    summary: str = ""
    readable: tuple[str, ...] = ()  # channels
    unreadable: dict[str, str | None] = {}  # channel: the fix, where one is known
    reason: str | None = None
    fix: str | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    version: int = DIAGNOSIS_VERSION
    system: System
    environment: Environment
    accelerators_reason: str | None = None  # why none could be looked for
    meters: tuple[MeterState, ...] = ()
    noise: tuple[Finding, ...] = ()
    traps: tuple[Finding, ...] | None = None  # None: not tried
