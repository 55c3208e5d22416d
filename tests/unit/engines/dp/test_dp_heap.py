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
import resource
import torch
from rigdyno.engines.dp import heap

def filled(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(size, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

if KEPT:
    heap.keep(), heap.keep()
filled(30_000_000)
faults = [filled(29_000_000), filled(28_000_000)]
kept = resident()
if KEPT:
    heap.let_go()
    still = resident()
    heap.let_go()
    print(max(faults), still - kept, resident() - kept)
else:
    print(max(faults), 0, 0)
"""


def run(kept: bool, **environment: str) -> list[int]:
    found = subprocess.run(
        [sys.executable, "-c", f"KEPT = {kept}\n{PROGRAM}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return [int(word) for word in found.stdout.split()]


@glibc
def test_memory_is_kept_until_the_last_training_lets_go():
    faults, after_one, after_all = run(True)
    pages = 30_000_000 // os.sysconf("SC_PAGE_SIZE")
    assert faults < 0.05 * pages
    assert abs(after_one) < 0.05 * pages
    assert after_all < -0.9 * pages


@glibc
def test_whoever_has_set_the_allocator_is_left_alone():
    unset, *_ = run(False)
    by_hand, *_ = run(True, MALLOC_MMAP_MAX_="65536")
    assert by_hand > 0.5 * unset


@pytest.mark.parametrize("size", [10, heap.LARGE_BYTES // 4, heap.LARGE_BYTES // 4 + 12_345])
def test_large_pages_are_the_same_tensor(size):
    values = torch.empty(size)
    assert heap.in_large_pages(values) is values
    values.fill_(1.0)
    assert float(values.sum(dtype=torch.float64)) == size
