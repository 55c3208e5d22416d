"""What a private step frees is kept for the next one, and given back when the engine lets go."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from rigdyno.engines.dp import heap

glibc = pytest.mark.skipif(heap._glibc() is None, reason="the allocator isn't glibc's, or was set by hand")

PROGRAM = """
import os, resource
import torch
from rigdyno.engines.dp import heap

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
heap.keep(), heap.keep()
faults, kept = most_faults(), resident()
heap.let_go()
still = resident()
heap.let_go()
print(faults, still - kept, resident() - kept)
"""


def run(**environment: str) -> list[int]:
    """Page faults without `keep`; then page faults with it, and the change of memory after one `let_go` and after two.

    The first number is of a forked child, whose allocator is as fresh as its parent's.
    """
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return [int(word) for word in found.stdout.split()]


@glibc
def test_memory_is_kept_until_the_last_training_lets_go():
    _, faults, after_one, after_all = run()
    pages = 30_000_000 // os.sysconf("SC_PAGE_SIZE")
    assert faults < 0.05 * pages
    assert abs(after_one) < 0.05 * pages
    assert after_all < -0.9 * pages


@glibc
def test_an_allocator_that_was_set_by_hand_is_left_alone():
    unkept, faults, *_ = run(MALLOC_MMAP_MAX_="65536")
    assert faults > 0.5 * unkept


@pytest.mark.parametrize("size", [10, heap.LARGE_BYTES // 4, heap.LARGE_BYTES // 4 + 12_345])
def test_large_pages_are_the_same_tensor(size):
    values = torch.empty(size)
    assert heap.in_large_pages(values) is values
    values.fill_(1.0)
    assert float(values.sum(dtype=torch.float64)) == size
