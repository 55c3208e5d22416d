"""Sums and fills of a few values at a time, in whole vectors: LLVM's own loops begin to pay at some 64 values.

Both touch what lies behind the last value, up to LANES - 1 further: arrays have to be that much longer.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
SINGLE, WHOLE = ir.FloatType(), ir.IntType(64)
VECTOR = ir.VectorType(SINGLE, LANES)
NOTHING = ir.Constant(VECTOR, [0.0] * LANES)


@intrinsic
def total_of(typing: Any, values: Any, begin: Any, end: Any) -> Any:
    """The sum of values[begin:end]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        kind = ir.FunctionType(SINGLE, [SINGLE, VECTOR])
        add_up = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        numbers = ir.Constant(ir.VectorType(WHOLE, LANES), list(range(LANES)))
        total = cgutils.alloca_once_value(builder, NOTHING)
        builder.store(NOTHING, total)  # an alloca is made once for the whole function
        with cgutils.for_range_slice(builder, arguments[1], arguments[2], WHOLE(LANES)) as (index, _):
            found = builder.load(_vector_at(builder, data, index), align=4)
            left = _everywhere(builder, builder.sub(arguments[2], index), WHOLE)
            counted = builder.select(builder.icmp_signed("<", numbers, left), found, NOTHING)
            builder.store(builder.fadd(builder.load(total), counted), total)
        return builder.call(add_up, [SINGLE(0.0), builder.load(total)], fastmath=("reassoc",))

    return types.float32(values, types.int64, types.int64), generate


@intrinsic
def fill(typing: Any, values: Any, begin: Any, end: Any, value: Any) -> Any:
    """values[begin:end] = value; what is to stand behind it is filled later."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        spread = _everywhere(builder, arguments[3], SINGLE)
        with cgutils.for_range_slice(builder, arguments[1], arguments[2], WHOLE(LANES)) as (index, _):
            builder.store(spread, _vector_at(builder, data, index), align=4)
        return context.get_dummy_value()

    return types.void(values, types.int64, types.int64, types.float32), generate


def _vector_at(builder: Any, data: Any, index: Any) -> Any:
    return builder.bitcast(builder.gep(data, [index]), VECTOR.as_pointer())


def _everywhere(builder: Any, value: Any, kind: Any) -> Any:
    vector = ir.VectorType(kind, LANES)
    alone = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(alone, ir.Constant(vector, ir.Undefined), zeros)
