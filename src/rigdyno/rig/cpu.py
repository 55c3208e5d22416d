"""Describes the processor from Linux's /proc/cpuinfo and /sys, and the limits of the container's cgroup (v1 and v2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rigdyno.base.linux import ROOT, group_folders, parse_core_list, read_field, read_int, read_text
from rigdyno.schema.system import Cache, Cpu, Limits

# cgroup v1 writes 'no limit' as the largest page-aligned 64-bit number; anything above this is no limit.
UNLIMITED_BYTES = 2**60

CORES = Path("sys/devices/system/cpu")

# Instruction sets by which oneDNN, MKL and OpenBLAS choose their kernels.
SIMD = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16"),
    *("sve", "sve2", "sme", "rvv"),
)

# Names for the numbers in ARM's cpuinfo.
ARM_PARTS = {
    ("0x41", "0xd03"): "ARM Cortex-A53",
    ("0x41", "0xd04"): "ARM Cortex-A35",
    ("0x41", "0xd05"): "ARM Cortex-A55",
    ("0x41", "0xd07"): "ARM Cortex-A57",
    ("0x41", "0xd08"): "ARM Cortex-A72",
    ("0x41", "0xd0b"): "ARM Cortex-A76",
    ("0x41", "0xd0c"): "ARM Neoverse-N1",
    ("0x41", "0xd40"): "ARM Neoverse-V1",
    ("0x41", "0xd42"): "ARM Cortex-A78AE",
    ("0x41", "0xd49"): "ARM Neoverse-N2",
    ("0x41", "0xd4f"): "ARM Neoverse-V2",
    ("0x4e", "0x004"): "NVIDIA Carmel",
}


def describe_limits(root: Path = ROOT) -> Limits:
    """Return the tightest limits of this process's group and all groups above it, because all of them apply."""
    quotas = [*_quotas_v2(root), *_quotas_v1(root)]
    sizes = [*_memory_v2(root), *_memory_v1(root)]
    return Limits(cpu_quota=min(quotas, default=None), memory_bytes=min(sizes, default=None))


def count_usable_cores(logical_cores: int, quota: float | None, root: Path = ROOT) -> int:
    """Return the number of cores to use. A quota is rounded down: a thread beyond it would make all threads wait for
    the next period."""
    allowed = _allowed_cores(root) or logical_cores
    return min(allowed, max(1, int(quota))) if quota is not None else allowed


def _allowed_cores(root: Path) -> int | None:
    return len(parse_core_list(read_field(root / "proc/self/status", "Cpus_allowed_list:"))) or None


def _quotas_v2(root: Path) -> Iterator[float]:
    for folder in group_folders("", root):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)


def _memory_v2(root: Path) -> Iterator[int]:
    for folder in group_folders("", root):
        size = read_int(folder / "memory.max")
        if size is not None:
            yield size


def _quotas_v1(root: Path) -> Iterator[float]:
    for folder in group_folders("cpu", root):
        quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            yield quota / period


def _memory_v1(root: Path) -> Iterator[int]:
    for folder in group_folders("memory", root):
        size = read_int(folder / "memory.limit_in_bytes")
        if size is not None and size < UNLIMITED_BYTES:
            yield size


def describe_cpu(architecture: str, quota: float | None, root: Path = ROOT) -> Cpu:
    blocks = read_cpuinfo(root)
    logical = sum("processor" in block for block in blocks) or 1
    return Cpu(
        model=_model(blocks, architecture, root),
        physical_cores=_physical_cores(blocks, root),
        logical_cores=logical,
        usable_cores=count_usable_cores(logical, quota, root),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        caches=tuple(_caches(root)),
        simd=tuple(name for name in SIMD if name in cpu_flags(blocks)),
        max_mhz=_max_mhz(root),
    )


def read_cpuinfo(root: Path = ROOT) -> list[dict[str, str]]:
    """Read /proc/cpuinfo as one dictionary per block; a block without 'processor' is about the whole machine."""
    text = read_text(root / "proc/cpuinfo") or ""
    return [dict(_pairs(block)) for block in text.split("\n\n")]


def _pairs(block: str) -> Iterator[tuple[str, str]]:
    for line in block.splitlines():
        key, _, value = line.partition(":")
        yield key.strip(), value.strip()


def cpu_flags(blocks: list[dict[str, str]]) -> set[str]:
    """Return the CPU's flags (x86) or Features (ARM)."""
    return {flag for block in blocks[:1] for key in ("flags", "Features") for flag in block.get(key, "").split()}


def _model(blocks: list[dict[str, str]], architecture: str, root: Path) -> str:
    name = _first(blocks, "model name") or _first(blocks, "cpu model") or _arm_part(blocks)
    board = read_text(root / "proc/device-tree/model") or _first(blocks, "Hardware")
    if name is None:
        return f"{architecture} ({board})" if board else f"{architecture} processor"
    plain = re.sub(r"\s+", " ", re.sub(r"\((R|TM|tm)\)", "", name)).strip()
    return f"{plain} ({board})" if board else plain


def _first(blocks: list[dict[str, str]], key: str) -> str | None:
    return next((block[key] for block in blocks if block.get(key)), None)


def _arm_part(blocks: list[dict[str, str]]) -> str | None:
    """Return the names of all kinds of core on the chip, big and little."""
    parts = [(block.get("CPU implementer", ""), block.get("CPU part", "")) for block in blocks]
    names = dict.fromkeys(ARM_PARTS.get(part, f"ARM part {part[1]}") for part in parts if part[1])
    return " + ".join(names) or None


def _physical_cores(blocks: list[dict[str, str]], root: Path) -> int | None:
    siblings = {read_text(file) for file in (root / CORES).glob("cpu[0-9]*/topology/thread_siblings_list")}
    if siblings:
        return len(siblings)
    pairs = {(block.get("physical id"), block["core id"]) for block in blocks if "core id" in block}
    return len(pairs) or None


def _caches(root: Path) -> Iterator[Cache]:
    for index in sorted((root / CORES / "cpu0/cache").glob("index[0-9]*")):
        level, size = read_int(index / "level"), _kibibytes(read_text(index / "size"))
        if level is None or size is None:
            continue
        kind = (read_text(index / "type") or "unified").lower()
        shared_by = len(parse_core_list(read_text(index / "shared_cpu_list") or "0"))
        yield Cache(level=level, kind=kind, size_bytes=size, shared_by=shared_by)


def _kibibytes(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)([KM]?)", text)
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20}[match[2]] if match else None


def _max_mhz(root: Path) -> float | None:
    speeds = [read_int(file) for file in (root / CORES).glob("cpu[0-9]*/cpufreq/cpuinfo_max_freq")]
    return max((khz / 1000 for khz in speeds if khz), default=None)
