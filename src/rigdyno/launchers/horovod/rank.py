"""Runs one rank under mpirun: starts the worker as a child, and writes its exact exit code to a file.

`python -m rigdyno.launchers.horovod.rank`, with the cell's folder and the folder for that file in the environment.
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

from rigdyno.base.files import atomic_write
from rigdyno.base.processes import die_with_parent
from rigdyno.launchers.nodes.local import NodeShare
from rigdyno.launchers.nodes.ranks import GRACE_SECONDS, start_rank
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import Cell


class _Terminated(BaseException):
    """SIGTERM arrived."""


def main() -> int:
    die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, _raise_terminated)
    folder, rank = Path(os.environ["RIGDYNO_CELL"]), int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.chdir(os.environ["RIGDYNO_FOLDER"])
    cell = msgspec.json.decode(CellFolder(folder).spec.read_bytes(), type=Cell)
    worker = start_rank(NodeShare(cell, folder), f"rank{rank}", {"RANK": str(rank)})
    try:
        code = worker.wait()
    except _Terminated:  # another rank failed, or the cell was stopped
        code = -signal.SIGTERM
        _stop(worker)
    _write_exit(rank, code)
    return code if code >= 0 else 128 - code


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _stop(worker: subprocess.Popen[bytes]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker.terminate()
    try:
        worker.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def _write_exit(rank: int, code: int) -> None:
    with atomic_write(Path(os.environ["RIGDYNO_EXITS"], f"rank{rank}.json")) as file:
        file.write(json.dumps([time.monotonic_ns(), rank, code]).encode())


if __name__ == "__main__":
    sys.exit(main())
