"""Sessions, session and launch in one, for tests whose processes are scripted: what a worker would leave is written at
once."""

from __future__ import annotations

from rigdyno.contracts import Exit, Left


class Killed(BaseException):
    """Raised to simulate that the whole of Rigdyno was killed."""


class ScriptedSessions:
    """`start` is the test's own: it counts what it starts, and says whether it failed."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.failed = False

    def of(self, cell):
        return self

    def is_lost(self, cell):
        return False

    def wait(self, seconds):
        return True

    def collect(self):
        return Left(exits=[Exit(int(self.failed), "rank0")])
