"""Tests of describing a machine, with small trees in the form of /proc and /sys."""

import subprocess
import sys
from pathlib import Path

import pytest

from rigdyno.rig.cpu import count_usable_cores, describe_cpu, describe_limits
from rigdyno.rig.portable import describe_portable_cpu, parse_sysctl
from rigdyno.rig.system import describe_system, find_confidential_mode, find_hypervisor, guess_device
from rigdyno.schema.system import Cache

TREES = Path(__file__).parent / "trees"


def test_a_virtual_machine_with_cgroup_v1_is_described():
    system = describe_system(root=TREES / "vm_cgroup1")
    assert system.cpu.model == "AMD EPYC"
    assert (system.cpu.physical_cores, system.cpu.logical_cores, system.cpu.usable_cores) == (2, 2, 2)
    assert system.cpu.numa_nodes == 1
    assert system.cpu.simd == ("sse4_2", "avx", "f16c", "fma", "avx2")
    assert system.cpu.caches[-1] == Cache(level=3, kind="unified", size_bytes=32 * 2**20, shared_by=2)
    assert system.cpu.last_level_cache_bytes == 32 * 2**20
    assert system.cpu.max_mhz is None
    assert system.memory_bytes == 24682416 * 1024
    assert (system.limits.cpu_quota, system.limits.memory_bytes) == (None, None)
    assert (system.virtualisation, system.confidential) == ("KVM", None)
    assert (system.kernel, system.operating_system) == ("6.18.44-small", "Debian GNU/Linux 12 (bookworm)")


def test_a_quota_of_one_and_a_half_cores_leaves_one_usable_core():
    system = describe_system(root=TREES / "container_cgroup2")
    assert system.cpu.model == "Intel Xeon Platinum 8481C CPU @ 2.70GHz"
    assert (system.cpu.physical_cores, system.cpu.logical_cores) == (4, 8)
    assert (system.limits.cpu_quota, system.limits.memory_bytes) == (1.5, 4 * 2**30)
    assert system.cpu.usable_cores == 1
    assert {"avx512_bf16", "amx_tile", "amx_bf16"} <= set(system.cpu.simd)
    assert system.cpu.max_mhz == 3700
    assert (system.virtualisation, system.confidential) == ("KVM", "TDX")


def test_an_arm_board_is_named_by_its_part_number_and_board():
    system = describe_system(root=TREES / "arm_board")
    assert system.cpu.model == "ARM Cortex-A57 (NVIDIA Jetson Nano Developer Kit)"
    assert (system.cpu.physical_cores, system.cpu.logical_cores, system.cpu.usable_cores) == (None, 4, 2)
    assert system.cpu.simd == ("asimd",)
    assert (system.limits.cpu_quota, system.limits.memory_bytes) == (2.0, 2 * 2**30)
    assert (system.virtualisation, system.confidential) == (None, None)


def test_usable_cores_follow_affinity_without_a_quota():
    assert count_usable_cores(8, None, TREES / "container_cgroup2") == 5


def test_an_empty_tree_gives_no_limits(tmp_path):
    assert describe_limits(tmp_path).cpu_quota is None
    assert describe_cpu("riscv64", None, tmp_path).model == "riscv64 processor"


def test_a_cgroup_outside_the_containers_view_falls_back_to_its_mount(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/../../host\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1000\n")
    assert describe_limits(tmp_path).memory_bytes == 1000


@pytest.mark.parametrize(
    ("flags", "vendor", "product", "name"),
    [
        ({"fpu", "hypervisor"}, "QEMU", "Standard PC", "KVM"),
        ({"fpu", "hypervisor"}, "Microsoft Corporation", "Virtual Machine", "Hyper-V"),
        ({"fpu", "hypervisor"}, "", "", "unidentified"),
        ({"fpu"}, "Google", "Google Compute Engine", None),
        ({"asimd"}, "Amazon EC2", "c7g.large", "KVM"),
        ({"asimd"}, "Amazon EC2", "c7g.metal", None),
    ],
)
def test_the_hypervisor_is_found_by_flag_and_firmware(tmp_path, flags, vendor, product, name):
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_text(vendor)
    (tmp_path / "sys/class/dmi/id/product_name").write_text(product)
    assert find_hypervisor(flags, tmp_path) == name


def test_sev_flags_count_only_inside_a_guest(tmp_path):
    assert find_confidential_mode({"sev", "sev_es"}, tmp_path) is None
    assert find_confidential_mode({"sev", "sev_es", "hypervisor"}, tmp_path) == "SEV-ES"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/sev-guest").touch()
    assert find_confidential_mode({"hypervisor"}, tmp_path) == "SEV-SNP"


def test_a_mac_is_described_through_sysctl():
    keys = parse_sysctl("machdep.cpu.brand_string: Apple M2\nhw.l2cachesize: 4194304\nhw.optional.arm.FEAT_BF16: 1\n")
    cpu = describe_portable_cpu(keys)
    assert cpu.model == "Apple M2"
    assert cpu.caches == (Cache(level=2, kind="unified", size_bytes=4194304),)
    assert cpu.simd == ("bf16",)


def test_this_machine_is_described_without_torch():
    system = describe_system()
    assert 1 <= system.cpu.usable_cores <= system.cpu.logical_cores
    assert system.memory_bytes > 0
    code = "import sys, rigdyno.rig.system as s; s.describe_system(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("file", "device"), [("nvidia0", "cuda"), ("kfd", "cuda"), ("null", "cpu")])
def test_the_device_is_guessed_by_the_drivers_files(tmp_path, monkeypatch, file, device):
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / file).touch()
    assert guess_device(tmp_path) == device
