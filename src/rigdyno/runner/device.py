"""Help the worker use its devices: cores, synchronisation, memory and framework versions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rigdyno.base.linux import read_text
from rigdyno.contracts import Framework
from rigdyno.schema.record import DeviceMemory, fullest
from rigdyno.schema.system import Environment


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def waiter_for(framework: Framework, devices: Sequence[str]) -> Callable[[], None] | None:
    """Return a function that waits for the queues of all devices; None if they work synchronously."""
    waiters = [waiter for device in devices if (waiter := framework.waiter(device)) is not None]
    if len(waiters) < 2:
        return waiters[0] if waiters else None

    def wait_for_all() -> None:
        for synchronise in waiters:
            synchronise()

    return wait_for_all


def memory_of(framework: Framework, devices: Sequence[str]) -> DeviceMemory | None:
    return fullest(framework.memory(device) for device in devices)


def with_frameworks(environment: Environment, frameworks: Sequence[Framework]) -> Environment:
    """Add the versions and threads of the frameworks; if they disagree, the first one counts."""
    if not frameworks:
        return environment
    driver = _read_nvidia_driver()
    known = {} if driver is None else {"driver": driver}
    for framework in reversed(frameworks):
        known.update(framework.versions())
    return msgspec.structs.replace(environment, threads=frameworks[0].threads(), framework=known)


def _read_nvidia_driver() -> str | None:
    """Read the version from `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun ...`."""
    text = read_text(Path("/proc/driver/nvidia/version"))
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return found[1] if found else None
