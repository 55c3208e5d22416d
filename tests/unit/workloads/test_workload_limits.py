"""Tests of the workloads that measure the machine's limits: memory, arithmetic, copies, launches."""

import signal
import subprocess

import pytest
import torch

from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, WorkerPlace
from rigdyno.workloads import host_device_copy, launch_latency, matmul_peak, memory_bandwidth
from rigdyno.workloads.host_device_copy import HostDeviceCopy
from rigdyno.workloads.launch_latency import LaunchLatency
from rigdyno.workloads.matmul_peak import MatmulPeak
from rigdyno.workloads.memory_bandwidth import MemoryBandwidth

MB = 1_000_000
HERE = WorkerPlace(device="cpu", threads=2)


class ManualClock:
    def __init__(self):
        self.time_ns = 0

    def now_ns(self):
        return self.time_ns


def test_each_kind_of_access_goes_over_the_working_set_and_says_what_it_moved():
    steps = MemoryBandwidth(working_set="1.28MB").build(HERE)
    moved = {name: step() for name, step in steps.kinds.items()}
    assert moved == {"in_place_add": 2.56 * MB, "memmove": 1.28 * MB, "read": 1.28 * MB}
    assert steps.settled == {"working_set_bytes": 1_280_000}
    assert steps.check() is True


def test_the_check_detects_memory_that_did_not_change():
    moves = memory_bandwidth._Moves(1 * MB, "cpu", 1)
    moves._added = 1
    assert moves.is_correct() is False


def test_threads_copy_everything_once():
    source, target = torch.arange(100_003, dtype=torch.int32), torch.zeros(100_003, dtype=torch.int32)
    memory_bandwidth._threaded_memmove(target.data_ptr(), source.data_ptr(), 4 * 100_003, 3)()
    assert torch.equal(source, target)


@pytest.mark.parametrize(("size", "count"), [(64, 4), (640, 3), (1000, 3), (1, 2), (64 * 7, 7)])
def test_slices_cover_without_gap_or_overlap(size, count):
    slices = memory_bandwidth._slices(size, count)
    assert len(slices) <= count
    assert [begin for begin, _ in slices] == [sum(length for _, length in slices[:i]) for i in range(len(slices))]
    assert sum(length for _, length in slices) == size


@pytest.mark.parametrize(
    ("cache", "available", "size"),
    [
        (32 * MB, 64_000 * MB, 256 * MB),  # the least
        (260 * MB, 64_000 * MB, 1040 * MB),  # four times the cache
        (260 * MB, 2_000 * MB, 500 * MB),  # a quarter of what is free
        (None, 64_000 * MB, 256 * MB),
    ],
)
def test_the_working_set_follows_cache_and_free_memory(cache, available, size):
    assert MemoryBandwidth()._size(256 * MB, cache, available) == size
    assert MemoryBandwidth(working_set="2MB")._size(256 * MB, cache, available) == 2 * MB


def test_a_cached_working_set_gets_a_note():
    assert "partly cached" in memory_bandwidth._notes(100 * MB, 32 * MB)[1]
    assert "can't be read" in memory_bandwidth._notes(100 * MB, None)[1]
    assert len(memory_bandwidth._notes(128 * MB, 32 * MB)) == 1


@pytest.mark.parametrize("working_set", ["12", "big", "1kB", "-1GB", "", 5])
def test_a_bad_working_set_is_refused(working_set):
    with pytest.raises(BadValue):
        MemoryBandwidth(working_set=working_set)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_product_equals_the_float64_product(dtype):
    product = matmul_peak._Product((64, 96, 80), dtype, HERE)
    product.step()
    exact = product._left.double() @ product._right.double()
    assert torch.allclose(product._product.double(), exact, atol=1e-4)
    assert product.is_correct() is True


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_check_detects_one_wrong_factor(dtype):
    product = matmul_peak._Product((64, 64, 64), dtype, HERE)
    assert product.is_correct() is False  # nothing was computed yet
    product.step()
    assert product.is_correct() is True
    product._left[0, 7] += 20
    assert product.is_correct() is False


def test_a_given_size_is_used_and_counted():
    steps = MatmulPeak(size=64).build(HERE)
    steps.kinds["step"]()
    assert steps.items_per_step == 2 * 64**3
    assert steps.settled == {"shape": "64x64x64"}
    assert steps.notes == ("a multiply-add counts as 2 flop",)
    assert steps.check() is True


def search(rate_of, seconds_per_trial=0.0):
    """Return the shape that is found and those that were tried, at scripted rates."""
    clock, tried = ManualClock(), []

    def seconds_of(shape):
        tried.append(shape)
        clock.time_ns += int(seconds_per_trial * 1e9)
        return matmul_peak.count_flop(shape) / rate_of(shape)

    return matmul_peak.find_fastest_shape(matmul_peak.SHAPES, seconds_of, clock), tried


def test_the_search_finds_the_quickest_shape():
    best, tried = search(lambda shape: 90e12 if shape == (2048, 512, 2048) else 80e12)
    assert best == (2048, 512, 2048)
    assert len(tried) == len(matmul_peak.SHAPES)


def test_the_search_leaves_out_products_that_would_take_too_long():
    best, tried = search(lambda shape: 100e9)
    assert max(map(matmul_peak.count_flop, tried)) <= 0.25 * 100e9
    assert best == tried[0]


def test_the_search_ends_in_time():
    _, tried = search(lambda shape: 1e15, seconds_per_trial=2.0)
    assert len(tried) == 2


def test_a_dtype_without_matmul_skips_the_cell(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("not implemented for 'Double'")

    monkeypatch.setattr(torch, "matmul", refuse)
    with pytest.raises(CannotRun, match="float64 products don't work on cpu: not implemented"):
        MatmulPeak(dtype="float64", size=8).build(HERE)


@pytest.mark.parametrize(
    ("code", "stderr", "reason"),
    [
        (-signal.SIGILL, "", "a trial ended by SIGILL"),
        (1, "Traceback\nRuntimeError: no bf16", "RuntimeError: no bf16"),
        (3, "", "a trial ended with code 3"),
    ],
)
def test_a_crash_of_the_trial_skips_the_cell(monkeypatch, code, stderr, reason):
    ended = subprocess.CompletedProcess([], code, stdout="", stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(CannotRun, match=reason):
        MatmulPeak(dtype="bfloat16").build(HERE)


def test_dtypes_are_refused_on_devices_without_them():
    assert "NVIDIA" in MatmulPeak(dtype="tf32").refuses(None, "cpu")
    assert MatmulPeak(dtype="tf32").refuses(None, "cuda:1") is None
    assert MatmulPeak(dtype="float64").refuses(None, "mps") == "MPS has no float64"


def test_a_bad_dtype_or_size_is_refused():
    with pytest.raises(BadValue, match=r"dtype must be one of .*, not 'float23'; did you mean 'float32'\?"):
        MatmulPeak(dtype="float23")
    with pytest.raises(BadValue, match="size must be a whole number of at least 0"):
        MatmulPeak(size=-1)


def test_copies_need_an_accelerator():
    refusal = HostDeviceCopy().refuses(None, "cpu")
    assert refusal == "needs an accelerator: this device is the host itself"
    assert HostDeviceCopy().refuses(None, "cuda") is None


def test_copies_carry_the_data_there_and_back():
    waits = []
    copies = host_device_copy._Copies(torch.zeros(4096, dtype=torch.uint8), lambda: waits.append(1))
    copies.add("pageable", *host_device_copy._host_buffers(4096, pinned=False))
    assert list(copies.kinds) == ["pageable_to_device", "device_to_pageable"]
    assert copies.is_correct() is False
    for step in copies.kinds.values():
        step()
    assert copies.is_correct() is True
    assert len(waits) == 2  # each step waits, or its copy would be timed as the next one's


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is pinned memory here")
def test_a_rig_without_pinned_memory_says_so():
    steps = HostDeviceCopy(buffer="4kB").build(HERE)
    assert list(steps.kinds) == ["pageable_to_device", "device_to_pageable"]
    assert "no pinned memory here" in steps.notes[1]


def test_launches_are_counted_one_by_one():
    steps = LaunchLatency(launches=50).build(HERE)
    assert list(steps.kinds) == ["dispatch"]
    assert steps.kinds["dispatch"]() == 50
    assert steps.check() is True


def test_a_round_trip_waits_after_each_launch():
    waits = []
    launches = launch_latency._Launches(torch.zeros(1, dtype=torch.int64), lambda: waits.append(1))
    assert launches.enqueue(10)() == 10
    assert len(waits) == 1
    assert launches.round_trip(10)() == 10
    assert len(waits) == 11
    assert launches.is_correct() is True
    launches._launched += 1
    assert launches.is_correct() is False
