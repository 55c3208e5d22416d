"""Changes to the processes that a test starts, through a `sitecustomize.py` on their PYTHONPATH.

With held ranks and a time limit of its own, a test that acts while a cell is under way doesn't race against the cell.
"""

from __future__ import annotations

import os
from pathlib import Path

HOLD = """\
import sys

if "rigdyno.runner.worker" in sys.orig_argv:
    import time
    from pathlib import Path

    from rigdyno.runner import meter

    begin = meter.StepMeter.__init__

    def begin_when_released(self, *arguments, **named):
        while Path({hold!r}).exists():
            time.sleep(0.02)
        begin(self, *arguments, **named)

    meter.StepMeter.__init__ = begin_when_released
"""

EXPIRE = """\
import sys

if "rigdyno" in sys.orig_argv:
    from pathlib import Path

    from rigdyno.runner import orchestrate

    limit_seconds = orchestrate.time_limit_seconds
    orchestrate.time_limit_seconds = lambda expected: 0.0 if Path({expired!r}).exists() else limit_seconds(expected)
"""

# Planning asks two ranks of each framework and transport whether they can sum a number, which takes seconds.
TRUST_HOROVOD = """\
import sys

if "rigdyno" in sys.orig_argv:
    from rigdyno.launchers.horovod import presence

    presence.find_problem = lambda *_: None
"""


def _python_path(folder: Path, code: str) -> str:
    """Return a PYTHONPATH with which every interpreter runs this code first."""
    place = folder / "customised"
    place.mkdir(parents=True)
    (place / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])


class HeldRanks:
    """Ranks started with `python_path` open their file of steps, then wait until `release` is called."""

    def __init__(self, folder: Path) -> None:
        self._hold = folder / "hold"
        self._hold.touch()
        self.python_path = _python_path(folder, HOLD.format(hold=str(self._hold)))

    def release(self) -> None:
        self._hold.unlink()


class TimeLimit:
    """The time limit of a cell, in a `rigdyno` started with `python_path`, is over as soon as `expire` is called."""

    def __init__(self, folder: Path) -> None:
        self._expired = folder / "expired"
        self.python_path = _python_path(folder, EXPIRE.format(expired=str(self._expired)))

    def expire(self) -> None:
        self._expired.touch()


def trusting_horovod(folder: Path) -> str:
    """Return a PYTHONPATH with which `rigdyno` takes Horovod to work: `test_horovod.py` checks that once."""
    return _python_path(folder, TRUST_HOROVOD)
