"""A scripted machine for the golden tests: fixed hardware, a manual clock, and processes that only pretend to measure.

This is the only file of the golden tests that touches modules below `rigdyno.cli`. When a module moves, adapt the
imports here.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import psutil

from rigdyno import catalogue, cli
from rigdyno.clock import SystemClock, utc_now
from rigdyno.contracts import Unavailable
from rigdyno.probes._meters import reads_power
from rigdyno.rig.devices import accelerators_here
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.system import describe_system
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.system import Cache, Cpu, Environment, GitState, System
from rigdyno.workloads._mnist import missing_file
from support import NOW, ManualClock

GB = 10**9
SYSTEM = System(
    cpu=Cpu(
        model="Scripted CPU 9000",
        physical_cores=2,
        logical_cores=4,
        usable_cores=2,
        numa_nodes=1,
        caches=(
            Cache(level=1, kind="data", size_bytes=32 * 2**10, shared_by=2),
            Cache(level=2, kind="unified", size_bytes=2**20, shared_by=2),
            Cache(level=3, kind="unified", size_bytes=16 * 2**20, shared_by=4),
        ),
        simd=("avx2", "fma"),
        max_mhz=3600.0,
    ),
    memory_bytes=16 * GB,
    operating_system="Scripted Linux 12",
    kernel="6.1.0",
    architecture="x86_64",
)
ENVIRONMENT = Environment(
    python="3.11.7",
    packages={"rigdyno": "0.1.0", "torch": "2.13.0", "numpy": "2.3.0", "tensorflow-cpu": "2.20.0", "opacus": "1.5.4"},
    variables={"OMP_NUM_THREADS": "1"},
    governor="performance",
    huge_pages="madvise",
    load_average=0.1,
    rigdyno_git=GitState(commit="0123456789abcdef0123456789abcdef01234567", dirty=False),
)
MISSING_MODULE = "horovod"  # every other optional package counts as installed

DiskUsage = namedtuple("DiskUsage", ("total", "used", "free"))


def list_verbs() -> list[str]:
    """Return every verb as a user types it."""
    return [name.replace("_", "-") for name in catalogue.names("command")]


def list_suites() -> list[str]:
    """Return every suite of the catalogue."""
    return list(catalogue.names("suite"))


def compute_key(document: dict) -> str:
    """Return the key of the run specification that a JSON document describes."""
    return msgspec.convert(document, RunSpec).key()


def run_cli(*arguments: str, folder: Path, code: int = 0, errors: bool = False) -> str:
    """Run `rigdyno` in that folder on the scripted machine, and return what it prints on standard output.

    With `errors`, return what it prints on standard error.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with scripted_machine(), _working_in(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = cli.main(arguments)
    said = err.buffer.getvalue().decode()
    assert found == code, f"exit code {found}: {said}"
    return said if errors else out.buffer.getvalue().decode()


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Work there, at 80 columns, with none of the user's settings."""
    before = Path.cwd()
    kept = ("PATH", "HOME", "TMPDIR", "PYTHONPATH")
    settings = {name: os.environ[name] for name in kept if name in os.environ}
    settings |= {"COLUMNS": "80", "XDG_CONFIG_HOME": str(folder / "no-config"), "TERM": "dumb", "TZ": "UTC"}
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, settings, clear=True):
            yield
    finally:
        os.chdir(before)


@contextmanager
def scripted_machine() -> Iterator[None]:
    """Replace everything that looks at the real machine, its clock or its packages."""
    clock = ManualClock()
    disk = DiskUsage(total=500 * GB, used=400 * GB, free=100 * GB)
    memory = SimpleNamespace(total=16 * GB, available=14 * GB, used=2 * GB, free=14 * GB, percent=12.5)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(shutil, "disk_usage", return_value=disk))
        stack.enter_context(mock.patch.object(psutil, "virtual_memory", return_value=memory))
        for name in ("now_ns", "wall_ns", "sleep"):
            stack.enter_context(mock.patch.object(SystemClock, name, staticmethod(getattr(clock, name))))
        for original, replacement in _replacements().items():
            stack.enter_context(_replaced_everywhere(original, replacement))
        yield


def _replacements() -> dict:
    return {
        accelerators_here: lambda: (),
        catalogue.missing: _find_missing,
        describe_environment: lambda *_: ENVIRONMENT,
        describe_system: lambda accelerators=(), *_: msgspec.structs.replace(SYSTEM, accelerators=accelerators),
        missing_file: lambda _: None,  # Fashion-MNIST counts as installed
        reads_power: lambda _: True,
        utc_now: lambda: NOW,
    }


def _find_missing(requirements):
    needed = any(requirement.module == MISSING_MODULE for requirement in requirements)
    return Unavailable(f"{MISSING_MODULE} is not installed", "make horovod") if needed else None


@contextmanager
def _replaced_everywhere(original, replacement) -> Iterator[None]:
    """Replace a function in every module that has imported it by name, and put it back in the end."""
    _swap(original, replacement)
    try:
        yield
    finally:
        _swap(replacement, original)


def _swap(old, new) -> None:
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "rigdyno"]
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)
