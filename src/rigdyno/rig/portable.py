"""Describes the processor on systems without /proc: macOS through sysctl, others through psutil."""

from __future__ import annotations

import platform
import subprocess

import psutil

from rigdyno.schema.system import Cache, Cpu

SYSCTL_SECONDS = 5

SYSCTL_KEYS = (
    "machdep.cpu.brand_string",
    "hw.physicalcpu",
    "hw.logicalcpu",
    "hw.cpufrequency_max",
    "hw.l1icachesize",
    "hw.l1dcachesize",
    "hw.l2cachesize",
    "hw.l3cachesize",
    "hw.optional.avx2_0",
    "hw.optional.avx512f",
    "hw.optional.neon",
    "hw.optional.arm.FEAT_BF16",
    "hw.optional.arm.FEAT_I8MM",
    "hw.optional.arm.FEAT_SME",
    "kern.hv_vmm_present",
)

CACHES = (
    ("hw.l1dcachesize", 1, "data"),
    ("hw.l1icachesize", 1, "instruction"),
    ("hw.l2cachesize", 2, "unified"),
    ("hw.l3cachesize", 3, "unified"),
)


def read_sysctl() -> dict[str, str]:
    """Return the values that sysctl knows on a Mac. Empty on other systems."""
    if platform.system() != "Darwin":
        return {}
    try:
        answer = subprocess.run(["sysctl", *SYSCTL_KEYS], capture_output=True, text=True, timeout=SYSCTL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_sysctl(answer.stdout)


def parse_sysctl(text: str) -> dict[str, str]:
    pairs = (line.partition(": ") for line in text.splitlines())
    return {key: value.strip() for key, separator, value in pairs if separator}


def describe_portable_cpu(keys: dict[str, str]) -> Cpu:
    logical = psutil.cpu_count() or 1
    hertz = int(keys.get("hw.cpufrequency_max", 0))
    return Cpu(
        model=keys.get("machdep.cpu.brand_string") or platform.processor() or f"{platform.machine()} processor",
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=logical,
        usable_cores=logical,
        caches=tuple(
            Cache(level=level, kind=kind, size_bytes=int(keys[key])) for key, level, kind in CACHES if key in keys
        ),
        simd=tuple(_simd_name(key) for key in SYSCTL_KEYS if "optional" in key and keys.get(key) == "1"),
        max_mhz=hertz / 1e6 if hertz else None,
    )


def _simd_name(key: str) -> str:
    return key.rpartition(".")[2].removeprefix("FEAT_").removesuffix("_0").lower()


def total_memory_bytes() -> int:
    return psutil.virtual_memory().total
