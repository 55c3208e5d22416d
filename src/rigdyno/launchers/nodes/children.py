"""Processes that a launcher starts: each in its own session, waited for without polling, and stopped gracefully."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rigdyno.schema.spec import RunSpec

GRACE_SECONDS = 3.0

SECRET_VARIABLE = "RIGDYNO_SECRET"

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Child:
    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], descriptors: Sequence[int] = ()
    ) -> None:
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=tuple(descriptors),
                start_new_session=True,  # Ctrl-C reaches only rigdyno, which then stops its workers gracefully
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Return the exit code; None while it runs, and negative for a signal."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, and return whether it came. It blocks in the kernel if possible: polling disturbs the
        measurement."""
        if self.code is not None:
            return True
        with self.ending() as descriptor:
            if descriptor is not None:
                select.select([descriptor], [], [], seconds)
                return self.code is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.code is not None

    @contextmanager
    def ending(self) -> Iterator[int | None]:
        """Give a descriptor that is readable once the process has ended, or None if the system doesn't support it."""
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def stop(self, *, for_good: bool = True) -> int:
        """Terminate the process and its children, then kill them. `for_good`: wait until the process is gone."""
        if (code := self.code) is not None:
            return code
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(GRACE_SECONDS)
        return self._process.wait() if for_good else -signal.SIGKILL


def worker_environment(spec: RunSpec) -> dict[str, str]:
    """Return the environment of a worker, with thread counts, which must be set before a framework is loaded, and
    without the run's secret, which no worker needs."""
    inherited = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    threads = {} if spec.threads is None else dict.fromkeys(_THREAD_VARIABLES, str(spec.threads))
    # The same as `-P` for our own interpreter; an interpreter that is too old for it ignores the variable.
    safe_path = {} if spec.python is None else {"PYTHONSAFEPATH": "1"}
    return {**inherited, **threads, **safe_path}
