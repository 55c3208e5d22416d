"""Whether this is a virtual machine, whose, and whether it claims to hide its memory from its host."""

from __future__ import annotations

from pathlib import Path

from rigdyno.rig._files import ROOT, read_text

DMI = Path("sys/class/dmi/id")
# What firmware tables say: (a part of vendor and product, the hypervisor).
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


def virtualisation(flags: set[str], root: Path = ROOT) -> str | None:
    """The hypervisor's name; None on bare metal. x86 has a flag for it, ARM only the firmware's word."""
    named = _from_sys(root) or _from_firmware(root)
    if "hypervisor" in flags:
        return named or _from_clock(root) or UNNAMED
    on_x86 = "sse2" in flags or "fpu" in flags
    return None if on_x86 else named


def confidential(flags: set[str], root: Path = ROOT) -> str | None:
    """The devices exist only inside such a guest. The SEV flags also stand on a host that could start one."""
    if (root / "dev/tdx_guest").exists() or "tdx_guest" in flags:
        return "TDX"
    if (root / "dev/sev-guest").exists():
        return "SEV-SNP"
    if "hypervisor" not in flags:
        return None
    names = (("sev_snp", "SEV-SNP"), ("sev_es", "SEV-ES"), ("sev", "SEV"))
    return next((name for flag, name in names if flag in flags), None)


def _from_sys(root: Path) -> str | None:
    kind = read_text(root / "sys/hypervisor/type")
    return kind.capitalize() if kind else None


def _from_firmware(root: Path) -> str | None:
    device_tree = read_text(root / "proc/device-tree/hypervisor/compatible")
    if device_tree:
        return "KVM" if "kvm" in device_tree else device_tree
    product = read_text(root / DMI / "product_name") or ""
    words = f"{read_text(root / DMI / 'sys_vendor') or ''} {product}".lower()
    if ".metal" in product:
        return None
    return next((name for part, name in DMI_NAMES if part in words), None)


def _from_clock(root: Path) -> str | None:
    """A small hypervisor has no firmware tables, but offers its clock."""
    clocks = read_text(root / "sys/devices/system/clocksource/clocksource0/available_clocksource") or ""
    names = (("kvm-clock", "KVM"), ("hyperv", "Hyper-V"), ("xen", "Xen"))
    return next((name for part, name in names if part in clocks), None)
