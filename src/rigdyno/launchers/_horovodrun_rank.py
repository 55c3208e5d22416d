"""What mpirun starts once a rank: the worker as a child, so that how it ended is known exactly, and a file about it.

`python -m rigdyno.launchers._horovodrun_rank`, with the cell's folder and the place for that file in the environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec

from rigdyno.launchers._node import Part
from rigdyno.launchers._ranks import GRACE_SECONDS, started
from rigdyno.processes import die_with_parent
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import Cell


class _ToldToStop(BaseException):
    pass


def main() -> int:
    die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, _told_to_stop)
    folder, rank = Path(os.environ["RIGDYNO_CELL"]), int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.chdir(os.environ["RIGDYNO_FOLDER"])
    cell = msgspec.json.decode(CellFolder(folder).spec.read_bytes(), type=Cell)
    worker = started(Part(cell, folder), f"rank{rank}", {"RANK": str(rank)})
    try:
        code = worker.wait()
    except _ToldToStop:  # because another one failed, or all of it was stopped
        code = -signal.SIGTERM
        _ended(worker)
    _told(rank, code)
    return code if code >= 0 else 128 - code


def _told_to_stop(number: int, frame: FrameType | None) -> None:
    raise _ToldToStop


def _ended(worker: subprocess.Popen[bytes]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker.terminate()
    try:
        worker.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def _told(rank: int, code: int) -> None:
    place = Path(os.environ["RIGDYNO_EXITS"])
    whole = place / f"rank{rank}.part"
    whole.write_text(json.dumps([time.monotonic_ns(), rank, code]))
    whole.replace(place / f"rank{rank}.json")


if __name__ == "__main__":
    sys.exit(main())
