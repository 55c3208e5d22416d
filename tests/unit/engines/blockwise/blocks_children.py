"""Worker processes that tests control line by line through pipes; none outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType

PATIENCE_SECONDS = 60.0
PREAMBLE = """
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from rigdyno.base.processes import die_with_parent
die_with_parent(int(sys.argv.pop(1)))

# Replace the package by an empty one: these workers only need some of its modules, and must start quickly.
package = ModuleType("rigdyno.engines.blockwise")
package.__path__ = [str(Path(find_spec("rigdyno.engines").origin).with_name("blockwise"))]
sys.modules[package.__name__] = package

def tell(*words):
    print(*words, flush=True)

def listen():
    return sys.stdin.readline().strip()
"""


class Children:
    def __init__(self) -> None:
        self._all: list[subprocess.Popen[str]] = []

    def start(self, script: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PREAMBLE + script, str(os.getpid()), *map(str, arguments)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._all.append(child)
        return child

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._all:
            kill(child)
            child.stdout.close()
            child.stdin.close()


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()


def heard(child: subprocess.Popen[str]) -> str:
    return child.stdout.readline().strip()


def say(child: subprocess.Popen[str], word: str = "") -> None:
    child.stdin.write(word + "\n")
    child.stdin.flush()


def ended_well(child: subprocess.Popen[str]) -> str:
    out, _ = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0
    return out


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.001)
