"""What Rigdyno's child processes have in common."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def child_command(module: str, folder: Path, *more: str, python: str | None = None) -> list[str]:
    """Runs a module of Rigdyno on a cell's folder, as a child of this process; `python`: of another environment."""
    # The working folder's own `random.py` must not shadow the library's. Another interpreter may not know the option.
    safe_path = ["-P"] if sys.version_info >= (3, 11) and python is None else []
    return [python or sys.executable, *safe_path, "-m", module, str(folder.resolve()), str(os.getpid()), *more]


def die_with_parent(parent_pid: int) -> None:
    """So that `kill -9` of `rigdyno` leaves no worker behind that keeps the machine busy."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died while this process was starting
        sys.exit("rigdyno: whoever started this process is gone")


def offer_to_oom_killer() -> None:
    """If memory runs out, the kernel takes the worker, not the shell or the desktop."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return  # not Linux, or not allowed: the kernel then chooses by size, which is the worker as well


def peak_memory_bytes() -> int | None:
    """VmHWM of this process: ru_maxrss would include what its parent was before exec."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def process_age_seconds() -> float | None:
    """Since this process was started, the interpreter's own start included; None where the system doesn't tell."""
    try:
        began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def write_pid(path: Path) -> None:
    path.write_text(str(os.getpid()))


def signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory, cgroups included; 0 where it doesn't say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)
