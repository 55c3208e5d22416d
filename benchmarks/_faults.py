"""Inject real faults into a run that is under way, and define the step that they hit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rigdyno.base.clock import SystemClock

GROUP = "RIGDYNO_FAULT_GROUP"  # the worker joins this control group by itself, so that a fault hits only it
PAGES = "RIGDYNO_FAULT_PAGES"
PAGES_BYTES = 128 << 20
LEFT_BYTES = PAGES_BYTES // 2
PERIOD_US = 100_000
STOP_SECONDS = 1.0
CGROUPS = Path("/sys/fs/cgroup")

STEP = f"""
import mmap, os, random, time, torch

began = time.monotonic()
left, product = torch.rand(512, 512), torch.empty(512, 512)
if os.environ.get("{GROUP}"):
    with open(os.environ["{GROUP}"] + "/cgroup.procs", "w") as members:
        members.write(str(os.getpid()))
if os.environ.get("{PAGES}"):
    with open(os.environ["{PAGES}"], "rb") as file:
        pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    sum(pages[at] for at in range(0, len(pages), mmap.PAGESIZE))


def plain():
    torch.mm(left, left, out=product)


def reading():
    for _ in range(50):
        pages[random.randrange(0, len(pages), mmap.PAGESIZE)]
    plain()


def shift(clock, seconds):
    if not time.shift_ns[clock] and time.monotonic() - began > 2.5:
        time.shift_ns[clock] = round(seconds * 1e9)
    plain()


def forwards(): shift("steps", 0.7)
def backwards(): shift("steps", -0.7)
def wall_set(): shift("wall", -3600)
"""

# Only for the worker: the clocks of the sampler and of other processes stay correct.
SITE_CUSTOMIZE = """
import sys

if "rigdyno.runner.worker" in sys.orig_argv:
    import time

    shift_ns = time.shift_ns = {"steps": 0, "wall": 0}

    def shifted(clock, read=lambda: 0):
        return lambda: read() + shift_ns[clock]

    time.perf_counter_ns = shifted("steps", time.perf_counter_ns)
    time.time_ns = shifted("wall", time.time_ns)
"""

Inject = Callable[[Path], None]  # into the cell of this folder, which is under way


@dataclass(frozen=True)
class Fault:
    name: str
    code: str  # the reason that must be given
    function: str = "plain"
    seconds: float = 5.0
    setting: Callable[[], Iterator[Inject]] | None = None  # None: the step brings the fault with it


def write_step(folder: Path) -> Path:
    """Write the step's file, and in the same folder the module that shifts a worker's clocks, for PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
    step = folder / "step.py"
    step.write_text(STEP)
    return step


def _pid(cell: Path, name: str) -> int:
    return int((cell / name / "pid").read_text())


def neighbour() -> Iterator[Inject]:
    """Start one busy process per core, which leaves half a core to each thread of the steps."""
    with ExitStack() as running:

        def start(_cell: Path) -> None:
            for _ in range(os.cpu_count() or 1):
                process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                running.callback(process.wait)
                running.callback(process.kill)

        yield start


def throttle() -> Iterator[Inject]:
    """Limit the worker to a fifth of its cores from now on: the published rate fell from 300 to 55."""
    with _group("cpu") as group:
        quota_us = round(0.2 * PERIOD_US * (os.cpu_count() or 1))

        def limit(_cell: Path) -> None:
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))

        yield limit


def memory_pressure() -> Iterator[Inject]:
    """Limit the worker's memory from now on, so that half of the file that the steps read fits."""
    with _group("memory") as group, _pages() as path, _variable(PAGES, str(path)):

        def limit(_cell: Path) -> None:
            name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
            (group / name).write_text(str(LEFT_BYTES))

        yield limit


def stop() -> Iterator[Inject]:
    def stop_and_continue(cell: Path) -> None:
        worker = _pid(cell, "rank0")
        os.kill(worker, signal.SIGSTOP)
        SystemClock.sleep(STOP_SECONDS)
        os.kill(worker, signal.SIGCONT)

    yield stop_and_continue


def kill_sampler() -> Iterator[Inject]:
    yield lambda cell: os.kill(_pid(cell, "node0"), signal.SIGKILL)


@contextmanager
def _group(controller: str) -> Iterator[Path]:
    """Create a control group of version 1 or 2. Raises OSError if none can be created."""
    own = CGROUPS / controller
    group = (own if own.is_dir() else CGROUPS) / f"rigdyno-verdicts-{os.getpid()}"
    group.mkdir()
    try:
        if not own.is_dir() and controller not in (group / "cgroup.controllers").read_text().split():
            raise OSError(f"the controller '{controller}' is not handed down to control groups here")
        with _variable(GROUP, str(group)):
            yield group
    finally:
        group.rmdir()


@contextmanager
def _pages() -> Iterator[Path]:
    """Yield a file that isn't cached: its pages are charged to the worker, which reads it first."""
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        file.write(os.urandom(1 << 20) * (PAGES_BYTES >> 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield Path(file.name)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


FAULTS = (
    Fault("a neighbour takes half of the CPU", "other_tenants", setting=neighbour),
    Fault("throttled halfway", "throttled", seconds=9.5, setting=throttle),
    Fault("memory pressure", "memory_pressure", function="reading", setting=memory_pressure),
    Fault("stopped and continued", "stopped", setting=stop),
    Fault("sampler killed", "dead_sampler", setting=kill_sampler),
    Fault("clock jumps forwards", "clock_jumped", function="forwards"),
    Fault("clock jumps backwards", "clock_jumped", function="backwards"),
    Fault("wall clock set", "clock_jumped", function="wall_set"),
)
