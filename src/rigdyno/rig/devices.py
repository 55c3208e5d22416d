"""The accelerators that torch can use, asked in a child process: a broken driver may crash or hang whoever asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import msgspec

from rigdyno.rig.child import run_python
from rigdyno.schema.system import Accelerator

ASK_SECONDS = 60.0
BY_PREFERENCE = (("cuda", "cuda"), ("rocm", "cuda"), ("xpu", "xpu"), ("mps", "mps"))  # kind, torch's name for it


@dataclass(frozen=True)
class Found:
    accelerators: tuple[Accelerator, ...] = ()
    torch_version: str | None = None
    reason: str | None = None  # why nothing could be looked for
    threads: int | None = None  # torch's default on this rig
    framework: dict[str, str] = field(default_factory=dict)  # how torch was built


def find_accelerators(seconds: float = ASK_SECONDS) -> Found:
    end = run_python(["-m", "rigdyno.rig.devices"], seconds)
    if not end.good:
        return Found(reason=f"asking torch for its devices {end.how()}")
    try:
        return msgspec.json.decode(end.output.strip().rpartition("\n")[2], type=Found)
    except msgspec.DecodeError as error:
        return Found(reason=f"asking torch for its devices gave no answer ({error})")


def accelerators_here() -> tuple[Accelerator, ...]:
    """Without asking, where torch was built for CPUs alone: loading it takes seconds."""
    return () if _is_for_cpus_alone() else find_accelerators().accelerators


def _is_for_cpus_alone() -> bool:
    try:
        return sys.platform == "linux" and metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


def best_device(accelerators: Sequence[Accelerator]) -> str:
    kinds = {accelerator.kind for accelerator in accelerators}
    return next((device for kind, device in BY_PREFERENCE if kind in kinds), "cpu")


def look_here() -> Found:
    """In this very process, which must have a torch that it trusts."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries doesn't load
        return Found(reason=f"torch can't be imported: {error}")
    return Found(
        accelerators=(*_cuda(torch), *_xpu(torch), *_mps(torch)),
        torch_version=str(torch.__version__),
        threads=torch.get_num_threads(),
        framework=_build(torch),
    )


def _cuda(torch: Any) -> Iterator[Accelerator]:
    if not torch.cuda.is_available():
        return
    kind = "rocm" if torch.version.hip else "cuda"
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        capability = card.gcnArchName if kind == "rocm" else f"{card.major}.{card.minor}"
        yield Accelerator(kind=kind, name=card.name, memory_bytes=card.total_memory, capability=capability)


def _xpu(torch: Any) -> Iterator[Accelerator]:
    if not hasattr(torch, "xpu") or not torch.xpu.is_available():
        return
    for index in range(torch.xpu.device_count()):
        card = torch.xpu.get_device_properties(index)
        yield Accelerator(kind="xpu", name=card.name, memory_bytes=card.total_memory)


def _mps(torch: Any) -> Iterator[Accelerator]:
    if torch.backends.mps.is_available():
        # Memory is shared with the CPU; this is what Metal advises to stay below.
        yield Accelerator(kind="mps", name="Apple GPU", memory_bytes=torch.mps.recommended_max_memory())


def _build(torch: Any) -> dict[str, str]:
    parts = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    return {name: str(value) for name, value in parts.items() if value}


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(look_here()).decode() + "\n")
