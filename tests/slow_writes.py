"""Slow down the writing of blocks, so that a test can stop `rigdyno infer` at a block of its choice."""

from __future__ import annotations

import os
import time


def slow_writes(log: str, pause: float, fast: int) -> None:
    """Log each write of a block with the process that makes it, then pause, then write.

    The first `fast` writes of this process don't pause. A pause of a second keeps a process busy for two minutes, which
    is more than a test needs to notice, however busy the machine is.
    """
    from rigdyno.engines.blockwise.volumes.ome_zarr_output import OmeZarrOutput

    file, write_now = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), OmeZarrOutput.write
    count = 0

    def write(self, box, values):
        nonlocal count
        os.write(file, f"{os.getpid()} {box}\n".encode())
        if count >= fast:
            time.sleep(pause)
        count += 1
        write_now(self, box, values)

    OmeZarrOutput.write = write
