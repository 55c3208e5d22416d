"""What `rigdyno selftest` found: one file that can be attached to a report of a fault."""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.schema.diagnosis import Diagnosis

SELF_TEST_VERSION = 1

Result = Literal["works", "fails", "can't run here", "not tried"]


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One path through Rigdyno, taken once."""

    name: str
    result: Result
    seconds: float = 0.0
    words: str = ""  # why, where it doesn't work
    log: tuple[str, ...] = ()  # the last lines of a process that failed


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    version: int = SELF_TEST_VERSION
    rigdyno_version: str
    diagnosis: Diagnosis
    tried: tuple[Tried, ...] = ()

    @property
    def fails(self) -> bool:
        return any(each.result == "fails" for each in self.tried)
