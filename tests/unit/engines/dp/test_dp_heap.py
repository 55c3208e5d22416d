"""Memory that a private step frees is kept for the next step, and returned when the engine is released."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from rigdyno.engines.dp.gradients import memory

glibc = pytest.mark.skipif(memory._load_glibc() is None, reason="the allocator isn't glibc's, or was set by hand")

PROGRAM = """
import os, resource
import torch
from rigdyno.engines.dp.gradients import memory

def filled(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(size, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

def most_faults():
    filled(30_000_000)
    return max(filled(29_000_000), filled(28_000_000))

if os.fork() == 0:
    print(most_faults(), flush=True)
    os._exit(0)
os.wait()
memory.keep_freed_memory(), memory.keep_freed_memory()
faults, kept = most_faults(), resident()
memory.return_freed_memory()
still = resident()
memory.return_freed_memory()
print(faults, still - kept, resident() - kept)
"""


def run(**environment: str) -> list[int]:
    """Return page faults without and with `keep_freed_memory`, and the change of resident pages after one and after two
    calls of `return_freed_memory`.

    The first number is that of a forked child, whose allocator is as fresh as its parent's.
    """
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return [int(word) for word in found.stdout.split()]


@glibc
def test_memory_is_kept_until_the_last_training_ends():
    _, faults, after_one, after_all = run()
    pages = 30_000_000 // os.sysconf("SC_PAGE_SIZE")
    assert faults < 0.05 * pages
    assert abs(after_one) < 0.05 * pages
    assert after_all < -0.9 * pages


@glibc
def test_an_allocator_configured_by_the_user_is_not_changed():
    unkept, faults, *_ = run(MALLOC_MMAP_MAX_="65536")
    assert faults > 0.5 * unkept


@pytest.mark.parametrize("size", [10, memory.LARGE_BYTES // 4, memory.LARGE_BYTES // 4 + 12_345])
def test_requesting_huge_pages_returns_the_same_tensor(size):
    values = torch.empty(size)
    assert memory.request_huge_pages(values) is values
    values.fill_(1.0)
    assert float(values.sum(dtype=torch.float64)) == size
