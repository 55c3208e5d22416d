"""Building blocks of kernels: sums, fills and products in whole vectors, and squared norms in double precision.

LLVM's own vectorised loops pay off only from about 64 values on, and don't keep vector sums in registers.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import prange
from numba.core import cgutils, types
from numba.extending import intrinsic

from rigdyno.engines.dp.kernels import Array, kernel

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8

SINGLE, WHOLE = ir.FloatType(), ir.IntType(64)

VECTOR = ir.VectorType(SINGLE, LANES)

NOTHING = ir.Constant(VECTOR, [0.0] * LANES)

# Fast-math flags for vectorised sums. NaN and infinity are kept, because norms must show them.
SUMS = frozenset({"reassoc", "contract", "nsz"})

LARGEST = 2.0**127  # a larger square counts as infinite: products with it may overflow in single precision

FLUSHED = 2.0**-125  # as in gradients/contributions.py


@intrinsic
def total_of(typing: Any, values: Any, begin: Any, end: Any) -> Any:
    """Return the sum of values[begin:end]. Up to LANES - 1 values after it are read too, but not added."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        kind = ir.FunctionType(SINGLE, [SINGLE, VECTOR])
        add_up = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        numbers = ir.Constant(ir.VectorType(WHOLE, LANES), list(range(LANES)))
        total = cgutils.alloca_once_value(builder, NOTHING)
        builder.store(NOTHING, total)  # an alloca is executed once per function
        with cgutils.for_range_slice(builder, arguments[1], arguments[2], WHOLE(LANES)) as (index, _):
            found = builder.load(_vector_at(builder, data, index), align=4)
            left = _everywhere(builder, builder.sub(arguments[2], index), WHOLE)
            counted = builder.select(builder.icmp_signed("<", numbers, left), found, NOTHING)
            builder.store(builder.fadd(builder.load(total), counted), total)
        return builder.call(add_up, [SINGLE(0.0), builder.load(total)], fastmath=("reassoc",))

    return types.float32(values, types.int64, types.int64), generate


@intrinsic
def fill(typing: Any, values: Any, begin: Any, end: Any, value: Any) -> Any:
    """Set values[begin:end] = value. Up to LANES - 1 values after it are overwritten: they are padding or set later."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        spread = _everywhere(builder, arguments[3], SINGLE)
        with cgutils.for_range_slice(builder, arguments[1], arguments[2], WHOLE(LANES)) as (index, _):
            builder.store(spread, _vector_at(builder, data, index), align=4)
        return context.get_dummy_value()

    return types.void(values, types.int64, types.int64, types.float32), generate


def dots_of(vectors: int) -> Any:
    """Make a function for products over `vectors` vectors of neighbouring channels at once.

    Each is a chain of dependent sums; several chains hide the latency of one.
    """

    @intrinsic
    def dots(typing: Any, one: Any, one_at: Any, other: Any, other_at: Any, found: Any, to: Any, walk: Any) -> Any:
        """Compute found[to + l] = sum over rows and columns of one[one_at + row * walk[2] + column * walk[3] + l] *
        other[other_at + row * walk[4] + column * walk[5] + l]. walk[0] and walk[1] are the numbers of rows and
        columns."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            places = cgutils.unpack_tuple(builder, arguments[6], 6)
            data = [context.make_array(signature.args[n])(context, builder, arguments[n]).data for n in (0, 2, 4)]
            totals = [cgutils.alloca_once_value(builder, NOTHING) for _ in range(vectors)]
            for total in totals:
                builder.store(NOTHING, total)
            with ExitStack() as loops:
                down = loops.enter_context(cgutils.for_range(builder, places[0])).index
                across = loops.enter_context(cgutils.for_range(builder, places[1])).index
                starts = []
                for start, by_row, by_column in ((arguments[1], *places[2:4]), (arguments[3], *places[4:6])):
                    moved = builder.add(builder.mul(down, by_row), builder.mul(across, by_column))
                    starts.append(builder.add(start, moved))
                for number, total in enumerate(totals):
                    at = [builder.add(start, WHOLE(number * LANES)) for start in starts]
                    ones, others = (builder.load(_vector_at(builder, data[n], at[n]), align=4) for n in range(2))
                    product = builder.fmul(ones, others, flags=("contract",))
                    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
            for number, total in enumerate(totals):
                into = _vector_at(builder, data[2], builder.add(arguments[5], WHOLE(number * LANES)))
                builder.store(builder.load(total), into, align=4)
            return context.get_dummy_value()

        return types.void(one, types.int64, other, types.int64, found, types.int64, walk), generate

    return dots


def _vector_at(builder: Any, data: Any, index: Any) -> Any:
    return builder.bitcast(builder.gep(data, [index]), VECTOR.as_pointer())


def _everywhere(builder: Any, value: Any, kind: Any) -> Any:
    vector = ir.VectorType(kind, LANES)
    alone = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(alone, ir.Constant(vector, ir.Undefined), zeros)


@kernel(fastmath=SUMS)
def squares(rows: Array, found: Array) -> None:
    """Compute the squared norm of each row in double precision, raised by what its squares may have lost."""
    for row in prange(len(rows)):
        values, total = rows[row], 0.0
        for i in range(len(values)):
            total += np.float64(values[i]) * np.float64(values[i])
        found[row] = np.inf if total > LARGEST else total + FLUSHED * len(values)
