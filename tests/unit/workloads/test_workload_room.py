"""Tests of reading cache sizes and free memory from the kernel's files."""

import pytest

from rigdyno.schema.system import Cache, Cpu, System
from rigdyno.workloads.memory_bandwidth import available_bytes, host_cache_bytes, system_cache_bytes


def add_cache(cpus, cpu, index, level, size, shared):
    folder = cpus / f"cpu{cpu}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(f"{value}\n")


def test_every_last_level_cache_counts_once(tmp_path):
    for cpu in range(4):
        add_cache(tmp_path, cpu, 0, 1, "32K", str(cpu))
        add_cache(tmp_path, cpu, 3, 3, "32768K", "0-1" if cpu < 2 else "2-3")
    assert host_cache_bytes(tmp_path) == 2 * 32 * 2**20


@pytest.mark.parametrize("size", ["", "large", "32Q"])
def test_a_cache_that_cannot_be_read_is_unknown(tmp_path, size):
    add_cache(tmp_path, 0, 0, 2, size, "0")
    assert host_cache_bytes(tmp_path) is None
    assert host_cache_bytes(tmp_path / "none") is None


def system_with(*caches):
    cpu = Cpu(model="x", logical_cores=6, usable_cores=6, caches=caches)
    return System(cpu=cpu, memory_bytes=1, operating_system="x", kernel="x", architecture="x")


def test_planning_counts_the_same_caches():
    data = Cache(level=1, kind="data", size_bytes=2**15)
    last = Cache(level=3, kind="unified", size_bytes=2**25, shared_by=4)
    assert system_cache_bytes(system_with(data, last)) == 2 * 2**25
    assert system_cache_bytes(system_with()) is None


def test_free_memory_is_positive():
    assert available_bytes("cpu") > 0
