"""Describes this machine: processor, memory, hypervisor, limits.

It reads only files (on macOS it also calls sysctl), which is fast enough to do before every run.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from rigdyno.base.linux import ROOT, read_field_bytes, read_text
from rigdyno.rig.cpu import cpu_flags, describe_cpu, describe_limits, read_cpuinfo
from rigdyno.schema.system import Accelerator, System

DMI = Path("sys/class/dmi/id")

# Hypervisors by a part of the firmware's vendor and product.
DMI_NAMES = (
    ("microsoft", "Hyper-V"),
    ("vmware", "VMware"),
    ("virtualbox", "VirtualBox"),
    ("parallels", "Parallels"),
    ("xen", "Xen"),
    ("apple virtualization", "Apple Virtualization"),
    ("qemu", "KVM"),
    ("kvm", "KVM"),
    ("amazon ec2", "KVM"),
    ("google", "KVM"),
    ("openstack", "KVM"),
    ("digitalocean", "KVM"),
)

UNNAMED = "unidentified"


def describe_system(accelerators: tuple[Accelerator, ...] = (), root: Path = ROOT) -> System:
    if (root / "proc/cpuinfo").exists():
        return _describe_linux(accelerators, root)
    return _describe_portable(accelerators)


def _describe_linux(accelerators: tuple[Accelerator, ...], root: Path) -> System:
    limits = describe_limits(root)
    architecture = platform.machine()
    known_flags = cpu_flags(read_cpuinfo(root))
    return System(
        cpu=describe_cpu(architecture, limits.cpu_quota, root),
        memory_bytes=_memory_bytes(root),
        accelerators=accelerators,
        operating_system=_distribution(root) or "Linux",
        kernel=read_text(root / "proc/sys/kernel/osrelease") or platform.release(),
        architecture=architecture,
        virtualisation=find_hypervisor(known_flags, root),
        confidential=find_confidential_mode(known_flags, root),
        limits=limits,
    )


def _describe_portable(accelerators: tuple[Accelerator, ...]) -> System:
    from rigdyno.rig.portable import describe_portable_cpu, read_sysctl, total_memory_bytes

    keys = read_sysctl()
    version = platform.mac_ver()[0]
    return System(
        cpu=describe_portable_cpu(keys),
        memory_bytes=total_memory_bytes(),
        accelerators=accelerators,
        operating_system=f"macOS {version}" if version else platform.system(),
        kernel=platform.release(),
        architecture=platform.machine(),
        virtualisation=UNNAMED if keys.get("kern.hv_vmm_present") == "1" else None,
    )


def _memory_bytes(root: Path) -> int:
    size = read_field_bytes(root / "proc/meminfo", "MemTotal:")
    if size is not None:
        return size
    from rigdyno.rig.portable import total_memory_bytes

    return total_memory_bytes()


def _distribution(root: Path) -> str | None:
    for line in read_text(root / "etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return None


def find_hypervisor(flags: set[str], root: Path = ROOT) -> str | None:
    """Return the hypervisor's name, or None on bare metal. x86 has a flag for it, ARM only the firmware's tables."""
    name = _hypervisor_in_sys(root) or _hypervisor_in_firmware(root)
    if "hypervisor" in flags:
        return name or _hypervisor_by_clock(root) or UNNAMED
    on_x86 = "sse2" in flags or "fpu" in flags
    return None if on_x86 else name


def find_confidential_mode(flags: set[str], root: Path = ROOT) -> str | None:
    """Return TDX, SEV-SNP, SEV-ES or SEV inside a confidential virtual machine, else None. The device files exist only
    inside such a guest, but the SEV flags also appear on a host that supports it."""
    if (root / "dev/tdx_guest").exists() or "tdx_guest" in flags:
        return "TDX"
    if (root / "dev/sev-guest").exists():
        return "SEV-SNP"
    if "hypervisor" not in flags:
        return None
    names = (("sev_snp", "SEV-SNP"), ("sev_es", "SEV-ES"), ("sev", "SEV"))
    return next((name for flag, name in names if flag in flags), None)


def _hypervisor_in_sys(root: Path) -> str | None:
    kind = read_text(root / "sys/hypervisor/type")
    return kind.capitalize() if kind else None


def _hypervisor_in_firmware(root: Path) -> str | None:
    device_tree = read_text(root / "proc/device-tree/hypervisor/compatible")
    if device_tree:
        return "KVM" if "kvm" in device_tree else device_tree
    product = read_text(root / DMI / "product_name") or ""
    words = f"{read_text(root / DMI / 'sys_vendor') or ''} {product}".lower()
    if ".metal" in product:
        return None
    return next((name for part, name in DMI_NAMES if part in words), None)


def _hypervisor_by_clock(root: Path) -> str | None:
    """Recognise a small hypervisor without firmware tables by its clock source."""
    clocks = read_text(root / "sys/devices/system/clocksource/clocksource0/available_clocksource") or ""
    names = (("kvm-clock", "KVM"), ("hyperv", "Hyper-V"), ("xen", "Xen"))
    return next((name for part, name in names if part in clocks), None)


def guess_device(root: Path = Path("/")) -> str:
    """Guess the best device from the driver's device files, without torch: a listing must answer at once."""
    if (root / "dev/nvidia0").exists() or (root / "dev/kfd").exists():
        return "cuda"
    return "mps" if sys.platform == "darwin" and platform.machine() == "arm64" else "cpu"
