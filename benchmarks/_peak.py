"""Measure the peak float32 multiply-add rate of this machine's cores, by chains of vector instructions in registers."""

from __future__ import annotations

import time
from pathlib import Path

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

CHAINS = 12  # instructions in flight: a result takes 4 to 5 cycles, and two begin in each cycle
ROUNDS = 20_000_000


def _lanes() -> int:
    """Return the number of floats in the widest register."""
    return 16 if "avx512f" in Path("/proc/cpuinfo").read_text() else 8


LANES = _lanes()


@intrinsic
def _chains(typing, rounds):
    def generate(context, builder, signature, arguments):
        vector = ir.VectorType(ir.FloatType(), LANES)

        def all_lanes(number: float) -> ir.Constant:
            return ir.Constant(vector, [ir.Constant(ir.FloatType(), number)] * LANES)

        kind = ir.FunctionType(vector, [vector] * 3)
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        sums = [cgutils.alloca_once_value(builder, all_lanes(0.1 * chain)) for chain in range(CHAINS)]
        with cgutils.for_range(builder, arguments[0]):
            for chain in sums:
                value = builder.call(multiply_add, [builder.load(chain), all_lanes(0.5), all_lanes(0.25)])
                builder.store(value, chain)
        total = builder.load(sums[0])
        for chain in sums[1:]:
            total = builder.fadd(total, builder.load(chain))
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return types.float32(types.int64), generate


@numba.njit(parallel=True)
def _on_all(threads, rounds):
    total = 0.0
    for _ in numba.prange(threads):
        total += _chains(rounds)
    return total


def peak_flops(threads: int) -> float:
    """Return floating-point operations per second, counting two for each multiply-add."""
    numba.set_num_threads(threads)
    _on_all(threads, 10)
    began = time.perf_counter()
    _on_all(threads, ROUNDS)
    return threads * ROUNDS * CHAINS * LANES * 2 / (time.perf_counter() - began)
