"""Norms of sums of outer products, from the dot products of all pairs of rows, each pair once.

Pairs are computed in squares of SIDE x SIDE, whose sums stay in registers during the loop over a row: every value that
is loaded is used in SIDE products. The Gram matrices are never stored, and only half of their values are computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange
from numba.core import cgutils, types
from numba.extending import intrinsic

from rigdyno.engines.dp.kernels import Array, helper, kernel
from rigdyno.engines.dp.kernels.convolution import LANES
from rigdyno.engines.dp.kernels.sums import FLUSHED, SUMS

SIDE = 4 if LANES == 16 else 3  # as large as the number of registers allows

PAIRS = SIDE * SIDE


@intrinsic
def _dots(typing: Any, rows: Any, starts: Any, other_starts: Any, length: Any, sums: Any) -> Any:
    """Compute sums[i * SIDE + j] = the dot product of the rows that begin at starts[i] and other_starts[j], up to
    `length`, a multiple of LANES."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def data(number: int) -> Any:
            return context.make_array(signature.args[number])(context, builder, arguments[number]).data

        single, whole = ir.FloatType(), ir.IntType(64)
        vector = ir.VectorType(single, LANES)
        nothing = ir.Constant(vector, [0.0] * LANES)
        kind = ir.FunctionType(vector, [vector] * 3)
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        kind = ir.FunctionType(single, [single, vector])
        add_up = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        lines = [cgutils.unpack_tuple(builder, arguments[number], SIDE) for number in (1, 2)]
        totals = [cgutils.alloca_once_value(builder, nothing) for _ in range(PAIRS)]
        for total in totals:  # an alloca is executed once per function: reset it for each square
            builder.store(nothing, total)

        def loaded(start: Any, index: Any) -> Any:
            pointer = builder.gep(data(0), [builder.add(start, index)])
            return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=4)

        with cgutils.for_range_slice(builder, whole(0), arguments[3], whole(LANES)) as (index, _):
            ones, others = ([loaded(start, index) for start in starts] for starts in lines)
            for number, total in enumerate(totals):
                one, other = ones[number // SIDE], others[number % SIDE]
                builder.store(builder.call(multiply_add, [one, other, builder.load(total)]), total)
        for number, total in enumerate(totals):
            found = builder.call(add_up, [ir.Constant(single, 0.0), builder.load(total)], fastmath=("reassoc",))
            builder.store(found, builder.gep(data(4), [whole(number)]))
        return context.get_dummy_value()

    return types.void(rows, starts, other_starts, types.int64, sums), generate


if SIDE == 4:

    @helper()
    def _starts(first: int, terms: int, width: int) -> tuple[int, ...]:
        """Return where SIDE rows from `first` on begin; rows beyond the last one are replaced by the last one."""
        last = terms - 1
        return first * width, min(first + 1, last) * width, min(first + 2, last) * width, min(first + 3, last) * width

else:

    @helper()
    def _starts(first: int, terms: int, width: int) -> tuple[int, ...]:
        last = terms - 1
        return first * width, min(first + 1, last) * width, min(first + 2, last) * width


@helper(fastmath=SUMS)
def _square(rows: Array, width: int, terms: int, s: int, t: int, sums: Array) -> None:
    """Compute the dot products of SIDE rows from s on with SIDE rows from t on."""
    starts, other_starts, whole = _starts(s, terms, width), _starts(t, terms, width), width // LANES * LANES
    _dots(rows, starts, other_starts, whole, sums)
    if whole < width:
        for i in range(SIDE):
            for j in range(SIDE):
                for k in range(whole, width):
                    sums[i * SIDE + j] += rows[starts[i] + k] * rows[other_starts[j] + k]


@kernel(fastmath=SUMS)
def gram(inputs: Array, gradients: Array, found: Array, slack: float) -> None:
    """Compute the squared norms of sum_t g_t x_t' for each sample.

    `slack` times the rows' sums of squares is added, since pairs cancel. A single row has no pairs: only what its
    squares may have lost by underflow is added.
    """
    samples, terms, width = inputs.shape
    height = gradients.shape[2]
    lost = FLUSHED * terms if terms == 1 else FLUSHED / slack * terms
    for sample in prange(samples):
        rows, others = inputs[sample].reshape(terms * width), gradients[sample].reshape(terms * height)
        products, other_products = np.empty(PAIRS, np.float32), np.empty(PAIRS, np.float32)
        total, energy, other_energy = 0.0, lost * width, lost * height
        for s in range(0, terms, SIDE):
            for t in range(0, s + 1, SIDE):
                _square(rows, width, terms, s, t, products)
                _square(others, height, terms, s, t, other_products)
                for i in range(min(SIDE, terms - s)):
                    for j in range(min(SIDE, s + i - t + 1)):
                        product, other = np.float64(products[i * SIDE + j]), np.float64(other_products[i * SIDE + j])
                        if s + i == t + j:
                            total += product * other
                            energy += product
                            other_energy += other
                        else:
                            total += 2.0 * product * other
        if terms == 1:
            total = energy * other_energy
        elif total < 0.0:
            total = slack * energy * other_energy
        else:
            total += slack * energy * other_energy
        found[sample] = total
