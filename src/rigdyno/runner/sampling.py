"""Starts the sampler's process for a while."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rigdyno.processes import child_command
from rigdyno.store.files import disk_errors

GRACE_SECONDS = 3.0


@dataclass
class Sampling:
    exit_code: int | None = None  # set when it is over; not 0: it didn't live to the end


@contextmanager
def sampled(folder: Path, *more_workers: Path) -> Iterator[Sampling]:
    """Telemetry of everything inside the block goes to the cell's folder; workers of the other folders count too."""
    sampling = Sampling()
    with disk_errors(folder), (folder / "sampler.log").open("wb") as log:
        process = subprocess.Popen(
            child_command("rigdyno.runner.sampler", folder, *(str(other.resolve()) for other in more_workers)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield sampling
    finally:
        sampling.exit_code = _stopped(process)


def _stopped(process: subprocess.Popen[bytes]) -> int:
    early = process.poll()
    if early is not None:
        return early
    process.terminate()
    try:
        code = process.wait(GRACE_SECONDS)
        return 0 if code == -signal.SIGTERM else code  # it was still starting: nothing of it died but by us
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
