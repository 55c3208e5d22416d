"""What this rig is. Reads files only (on macOS it also asks sysctl): quick enough to be asked before every run."""

from __future__ import annotations

import platform
from pathlib import Path

from rigdyno.rig._files import ROOT, read_text
from rigdyno.rig.cpu import cpuinfo, describe_cpu, flags
from rigdyno.rig.limits import describe_limits
from rigdyno.rig.virtual import UNNAMED, confidential, virtualisation
from rigdyno.schema.system import Accelerator, System


def describe_system(accelerators: tuple[Accelerator, ...] = (), root: Path = ROOT) -> System:
    if (root / "proc/cpuinfo").exists():
        return _linux(accelerators, root)
    return _portable(accelerators)


def _linux(accelerators: tuple[Accelerator, ...], root: Path) -> System:
    limits = describe_limits(root)
    architecture = platform.machine()
    known_flags = flags(cpuinfo(root))
    return System(
        cpu=describe_cpu(architecture, limits.cpu_quota, root),
        memory_bytes=_memory_bytes(root),
        accelerators=accelerators,
        operating_system=_distribution(root) or "Linux",
        kernel=read_text(root / "proc/sys/kernel/osrelease") or platform.release(),
        architecture=architecture,
        virtualisation=virtualisation(known_flags, root),
        confidential=confidential(known_flags, root),
        limits=limits,
    )


def _portable(accelerators: tuple[Accelerator, ...]) -> System:
    from rigdyno.rig.portable import portable_cpu, sysctl, total_memory_bytes

    keys = sysctl()
    version = platform.mac_ver()[0]
    return System(
        cpu=portable_cpu(keys),
        memory_bytes=total_memory_bytes(),
        accelerators=accelerators,
        operating_system=f"macOS {version}" if version else platform.system(),
        kernel=platform.release(),
        architecture=platform.machine(),
        virtualisation=UNNAMED if keys.get("kern.hv_vmm_present") == "1" else None,
    )


def _memory_bytes(root: Path) -> int:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    from rigdyno.rig.portable import total_memory_bytes

    return total_memory_bytes()


def _distribution(root: Path) -> str | None:
    for line in (read_text(root / "etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return None
