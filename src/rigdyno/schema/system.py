"""Describe the hardware of a machine, and everything else in its environment that could explain a number.

Nothing here names a person or a host.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from rigdyno.base.units import show_bytes

ByteCount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]  # a file with a larger count is damaged


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    level: int
    kind: str  # "data", "instruction", "unified"
    size_bytes: ByteCount
    shared_by: int = 1  # number of logical cores that share one cache


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    physical_cores: int | None = None
    logical_cores: int
    usable_cores: int  # after affinity and container limits
    numa_nodes: int | None = None
    caches: tuple[Cache, ...] = ()
    simd: tuple[str, ...] = ()
    max_mhz: float | None = None

    @property
    def last_level_cache_bytes(self) -> int | None:
        sizes = [cache.size_bytes for cache in self.caches if cache.kind != "instruction"]
        return max(sizes) if sizes else None


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # "cuda", "rocm", "xpu", "mps"
    name: str
    memory_bytes: ByteCount | None = None
    capability: str | None = None

    @property
    def device_kind(self) -> str:
        """Return its name for `--device`: an AMD GPU is 'cuda' too, as in PyTorch."""
        return "cuda" if self.kind == "rocm" else self.kind


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a container or cgroup sets."""

    cpu_quota: float | None = None  # in cores
    memory_bytes: ByteCount | None = None


class System(msgspec.Struct, frozen=True, kw_only=True):
    cpu: Cpu
    memory_bytes: ByteCount
    accelerators: tuple[Accelerator, ...] = ()
    operating_system: str
    kernel: str
    architecture: str
    virtualisation: str | None = None
    confidential: str | None = None  # "SEV-SNP", "TDX", ...
    limits: Limits = Limits()

    def accelerators_for(self, device: str) -> list[Accelerator]:
        """Return all accelerators of the kind that `--device` names."""
        kind = device.partition(":")[0]
        return [each for each in self.accelerators if each.device_kind == kind]

    def line(self) -> str:
        """Describe this machine in one line."""
        cores = f"{self.cpu.usable_cores} core" + ("s" if self.cpu.usable_cores != 1 else "")
        parts = [self.cpu.model, cores, f"{show_bytes(self.memory_bytes)} memory"]
        parts += [self._accelerator_text()]
        parts += [f"{self.virtualisation} virtual machine"] if self.virtualisation else []
        return ", ".join(parts)

    def _accelerator_text(self) -> str:
        if not self.accelerators:
            return "no accelerator"
        first = self.accelerators[0].name
        count = len(self.accelerators)
        return first if count == 1 else f"{count} x {first}"


class GitState(msgspec.Struct, frozen=True, kw_only=True):
    commit: str
    dirty: bool


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    python: str
    packages: dict[str, str] = {}  # versions of torch, numpy, ...; tables can show them as columns
    variables: dict[str, str] = {}  # environment variables that change how fast a framework runs
    threads: int | None = None  # of the framework, inside the worker
    framework: dict[str, str] = {}  # as reported by the worker's framework: build, CUDA, driver
    governor: str | None = None
    huge_pages: str | None = None
    load_average: float | None = None
    rigdyno_git: GitState | None = None
