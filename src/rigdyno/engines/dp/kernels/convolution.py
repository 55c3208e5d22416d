"""Per-sample weight gradients of convolutions, computed directly from the feature maps, without storing patches.

A gradient is a matrix product of patches (positions, taps) and output gradients (positions, outputs). It is computed in
tiles that stay in registers during the loop over positions: TAPS neighbouring taps, which are contiguous in a
channels-last map, times LANES outputs. Neither LLVM nor a matrix library does that for matrices as small as these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import prange
from numba.core import cgutils, types
from numba.extending import intrinsic

from rigdyno.engines.dp.kernels import Array, kernel
from rigdyno.engines.dp.kernels.sums import SUMS

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8

TAPS = 8  # independent sums: a result takes 4 cycles, and up to two operations begin in each


@intrinsic
def _tile(typing: Any, maps: Any, at: Any, given: Any, lane: Any, sums: Any, sums_at: Any, steps: Any) -> Any:
    """Compute sums[sums_at + tap * wide + l] = sum over rows and columns of maps[at + row * row_step + column *
    column_step + tap] * given[(row * columns + column) * wide + lane + l].

    `steps` are rows, columns, row_step, column_step, wide.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def data(number: int) -> Any:
            return context.make_array(signature.args[number])(context, builder, arguments[number]).data

        def vector_at(pointer: Any) -> Any:
            return builder.bitcast(pointer, vector.as_pointer())

        single, whole = ir.FloatType(), ir.IntType(64)
        vector = ir.VectorType(single, LANES)
        kind = ir.FunctionType(vector, [vector] * 3)
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        rows, columns, row_step, column_step, wide = cgutils.unpack_tuple(builder, arguments[6], 5)
        totals = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES)) for _ in range(TAPS)]
        for total in totals:  # an alloca is executed once per function: reset it for each tile
            builder.store(ir.Constant(vector, [0.0] * LANES), total)
        place = cgutils.alloca_once_value(builder, arguments[3])
        builder.store(arguments[3], place)
        with cgutils.for_range(builder, rows) as down:
            start = builder.add(arguments[1], builder.mul(down.index, row_step))
            with cgutils.for_range(builder, columns) as across:
                seen = builder.gep(data(0), [builder.add(start, builder.mul(across.index, column_step))])
                lanes = builder.load(vector_at(builder.gep(data(2), [builder.load(place)])), align=4)
                for tap, total in enumerate(totals):
                    value = builder.load(builder.gep(seen, [whole(tap)]), align=4)
                    alone = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
                    spread = builder.shuffle_vector(alone, ir.Constant(vector, ir.Undefined), everywhere)
                    builder.store(builder.call(multiply_add, [spread, lanes, builder.load(total)]), total)
                builder.store(builder.add(builder.load(place), wide), place)
        for tap, total in enumerate(totals):
            into = builder.add(arguments[5], builder.mul(whole(tap), wide))
            builder.store(builder.load(total), vector_at(builder.gep(data(4), [into])), align=4)
        return context.get_dummy_value()

    return types.void(maps, types.int64, given, types.int64, sums, types.int64, steps), generate


@kernel(fastmath=SUMS)
def weight_gradients(maps: Array, gradient: Array, per_sample: Array, squared: Array, steps: Array) -> None:
    """Compute per-sample weight gradients and their squared norms.

    `per_sample` is (samples, kernel height, TAPS * n >= kernel width * channels, LANES * n >= outputs); its values
    beyond the taps are undefined, those beyond the outputs are zero. `squared` gets the squared norm of each sample.
    `steps` are stride and padding, each for height and width, and kernel width * channels.
    """
    samples, height, width, channels = maps.shape
    rows, columns, outputs = gradient.shape[1:]
    down, padded_taps, wide = per_sample.shape[1:]
    line, taps = (width + 2 * steps[3]) * channels, steps[4]
    walk = (rows, columns, steps[0] * line, steps[1] * channels, wide)
    for sample in prange(samples):
        # Copies with padding, so that tiles may read beyond the end of a row and of the outputs.
        seen = np.zeros((height + 2 * steps[2]) * line + TAPS, np.float32)
        for row in range(height):
            begin, values = (row + steps[2]) * line + steps[3] * channels, maps[sample, row].reshape(width * channels)
            for i in range(width * channels):
                seen[begin + i] = values[i]
        given = gradient[sample].reshape(rows * columns * outputs)
        if outputs < wide:
            narrow, given = given, np.zeros(rows * columns * wide, np.float32)
            for place in range(rows * columns):
                for output in range(outputs):
                    given[place * wide + output] = narrow[place * outputs + output]
        own, total = per_sample[sample].reshape(down * padded_taps * wide), 0.0
        for i in range(down):
            for tap in range(0, taps, TAPS):
                for lane in range(0, wide, LANES):
                    _tile(seen, i * line + tap, given, lane, own, (i * padded_taps + tap) * wide + lane, walk)
            for value in own[i * padded_taps * wide : (i * padded_taps + taps) * wide]:
                total += np.float64(value) * np.float64(value)
        squared[sample] = total


def padded(taps: int, outputs: int) -> tuple[int, int]:
    """Return the padded numbers of taps and outputs that `weight_gradients` needs."""
    return -(-taps // TAPS) * TAPS, -(-outputs // LANES) * LANES
