"""One fresh process for the cell, on this machine."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Exit, Requirement
from rigdyno.processes import child_command
from rigdyno.schema.spec import RunSpec

GRACE_SECONDS = 3.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One fresh process on this machine"""

    requires: ClassVar[tuple[Requirement, ...]] = ()

    def start(
        self, spec: RunSpec, cell_folder: Path, worker: Callable[[Path], int], turns: int | None = None
    ) -> ProcessLaunch:
        more = () if turns is None else (str(turns),)
        with (cell_folder / "worker.0.log").open("wb") as log:
            process = subprocess.Popen(
                child_command(worker.__module__, cell_folder, *more, python=spec.python),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=worker_environment(spec),
                pass_fds=() if turns is None else (turns,),
                start_new_session=True,  # Ctrl-C reaches rigdyno alone, which then stops its workers in order
            )
        return ProcessLaunch(process)


def worker_environment(spec: RunSpec) -> Mapping[str, str]:
    """Thread counts must be set before a framework is loaded."""
    threads = {} if spec.threads is None else dict.fromkeys(_THREAD_VARIABLES, str(spec.threads))
    # What `-P` is to our own interpreter; one that is too old for it ignores the variable.
    safe_path = {} if spec.python is None else {"PYTHONSAFEPATH": "1"}
    return {**os.environ, **threads, **safe_path}


class ProcessLaunch:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self, seconds: float) -> bool:
        """Blocks in the kernel where it can: a parent that polls disturbs what is measured."""
        if hasattr(os, "pidfd_open") and self._process.returncode is None:
            _sleep_until_exit(self._process.pid, seconds)
            return self._process.poll() is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def exits(self) -> Sequence[Exit]:
        return [Exit(self._process.returncode)]

    def stop(self) -> None:
        """Asks the worker and its children, then makes them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
                return


def _sleep_until_exit(pid: int, seconds: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)
