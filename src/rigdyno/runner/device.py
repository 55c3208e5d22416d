"""What the worker must know about its device and its framework."""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from rigdyno.schema.system import Environment


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare_torch(threads: int | None, seed: int) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    random.seed(seed)


def synchroniser(device: str) -> Callable[[], None] | None:
    """What waits for the device's queue; None where work is done when a call returns."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return None
    import torch

    wait: Callable[[], None] = {"cuda": torch.cuda, "xpu": torch.xpu, "mps": torch.mps}[kind].synchronize
    return wait


def _nvidia_driver() -> str | None:
    """`NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun ...`"""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return found[1] if found else None


def with_framework(environment: Environment) -> Environment:
    """Adds what the loaded framework says of itself."""
    torch = sys.modules.get("torch")
    if torch is None:
        return environment
    facts = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "rocm": torch.version.hip}
    if torch.cuda.is_available():
        facts["cudnn"] = str(torch.backends.cudnn.version())
    facts["driver"] = _nvidia_driver()
    known = {name: str(value) for name, value in facts.items() if value is not None}
    return msgspec.structs.replace(environment, threads=torch.get_num_threads(), framework=known)
