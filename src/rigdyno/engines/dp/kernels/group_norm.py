"""GroupNorm with the activation after it, over (samples, positions, channels). Backward gives per-sample gradients.

The variance is computed from the differences from the mean: the mean of squares minus the square of the mean loses all
digits if the mean is large.

Vector instructions need long loops, but maps with many positions have few channels. So several positions are processed
at a time, a lap, with each channel's parameters repeated as often.

exp is a polynomial in single precision, which compilers can vectorise, unlike a library's function. Its relative error
is below 2e-7 from -87 to 87; beyond, it is constant. The compiler must not reorder sums in it: the argument is reduced
by a difference of nearly equal numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import CAREFUL, Array, helper, inlined, kernel
from rigdyno.engines.dp.kernels.sums import LANES, SUMS, fill, total_of

FAR = np.float32(87.0)

LOG2_E = np.float32(1.4426950408889634)

LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)

ONE, HALF = np.float32(1.0), np.float32(0.5)

NOTHING, SILU, RELU = 0, 1, 2  # activations

ZERO = np.float32(0.0)

LONG_LAP, MOST_PLACES = 512, 8  # most values and positions of a lap: repeating parameters takes time too

SAMPLES_A_TURN = 4  # samples per iteration of the parallel loop, which allocates its buffers once

LEAST_LAPS = 4


@partial(inlined, fastmath=CAREFUL)
def exp(x: Any) -> Any:
    x = min(max(x, -FAR), FAR)
    power = np.floor(x * LOG2_E + HALF)
    rest = x - power * LN2_HIGH - power * LN2_LOW
    series = np.float32(1.9875691500e-4)
    series = series * rest + np.float32(1.3981999507e-3)
    series = series * rest + np.float32(8.3334519073e-3)
    series = series * rest + np.float32(4.1665795894e-2)
    series = series * rest + np.float32(1.6666665459e-1)
    series = series * rest + np.float32(5.0000001201e-1)
    series = series * rest * rest + rest + ONE
    bits = np.int32((np.int32(power) + np.int32(127)) << np.int32(23))
    return series * bits.view(np.float32)


@partial(inlined, fastmath=CAREFUL)
def sigmoid(x: Any) -> Any:
    return ONE / (ONE + exp(-x))


@helper()
def _places_a_lap(places: int, channels: int) -> int:
    found = 1
    for count in range(2, min(places // LEAST_LAPS, MOST_PLACES) + 1):
        if count * channels > LONG_LAP:
            break
        if places % count == 0:
            found = count
    return found


@helper()
def _repeat(values: Array, channels: int, lap: int) -> None:
    """Repeat the channels' values over the rest of the lap."""
    for i in range(channels, lap, channels):
        for c in range(channels):
            values[i + c] = values[c]


@helper()
def _fold(values: Array, channels: int, lap: int) -> None:
    """Add up the sums of a lap to one for each channel."""
    for i in range(channels, lap, channels):
        for c in range(channels):
            values[c] += values[i + c]


@helper(fastmath=SUMS)
def _squares(values: Array) -> Any:
    total = 0.0
    for i in range(len(values)):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@helper(fastmath=CAREFUL)
def _activate(seen: Array, slope: Array, offset: Array, found: Array, after: int) -> None:
    if after == SILU:
        for c in range(len(seen)):
            y = seen[c] * slope[c] + offset[c]
            found[c] = y * sigmoid(y)
    elif after == RELU:
        for c in range(len(seen)):
            found[c] = max(seen[c] * slope[c] + offset[c], ZERO)
    else:
        for c in range(len(seen)):
            found[c] = seen[c] * slope[c] + offset[c]


@helper(fastmath=CAREFUL)
def _activate_back(seen: Array, given: Array, slope: Array, offset: Array, inner: Array, after: int) -> None:
    if after == SILU:
        for c in range(len(seen)):
            y = seen[c] * slope[c] + offset[c]
            share = sigmoid(y)
            inner[c] = given[c] * share * (ONE + y * (ONE - share))
    elif after == RELU:
        for c in range(len(seen)):
            inner[c] = given[c] if seen[c] * slope[c] + offset[c] > ZERO else ZERO
    else:
        for c in range(len(seen)):
            inner[c] = given[c]


@helper()
def _fill_groups(values: Array, by_group: Array, wide: int) -> None:
    for group in range(len(by_group)):
        fill(values, group * wide, group * wide + wide, by_group[group])


@helper()
def _totals(values: Array, by_group: Array, wide: int) -> None:
    for group in range(len(by_group)):
        by_group[group] = total_of(values, group * wide, group * wide + wide)


@helper(fastmath=CAREFUL)
def _activate_all(
    every: Array, slope: Array, offset: Array, channels: int, lap: int, answers: Array, after: int
) -> None:
    """Compute the output at all positions of a sample, from the slope and the offset of each channel."""
    _repeat(slope, channels, lap)
    _repeat(offset, channels, lap)
    for begin in range(0, len(every), lap):
        _activate(every[begin : begin + lap], slope, offset, answers[begin : begin + lap], after)


@helper(fastmath=CAREFUL)
def activate_again(
    every: Array, scale: Array, shift: Array, mean: Array, rstd: Array, answers: Array, after: int
) -> None:
    """Compute one sample's output again, bit for bit, from the mean and rstd of `forward`."""
    channels = len(scale)
    wide, lap = channels // len(mean), _places_a_lap(len(every) // channels, channels) * channels
    slope, offset = np.empty(lap + LANES, np.float32), np.empty(lap + LANES, np.float32)
    _fill_groups(offset, mean, wide)
    _fill_groups(slope, rstd, wide)
    for c in range(channels):
        slope[c] *= scale[c]
        offset[c] = shift[c] - offset[c] * slope[c]
    _activate_all(every, slope, offset, channels, lap, answers, after)


@kernel(fastmath=CAREFUL)
def forward(
    maps: Array, scale: Array, shift: Array, out: Array, mean: Array, rstd: Array, eps: float, after: int
) -> None:
    samples, places, channels = maps.shape
    wide = channels // mean.shape[1]
    lap, share = _places_a_lap(places, channels) * channels, np.float32(1.0 / (wide * places))
    for turn in prange(-(-samples // SAMPLES_A_TURN)):
        sums, middle = np.empty(lap + LANES, np.float32), np.empty(lap + LANES, np.float32)
        slope, offset = np.empty(lap + LANES, np.float32), np.empty(lap + LANES, np.float32)
        for sample in range(turn * SAMPLES_A_TURN, min(turn * SAMPLES_A_TURN + SAMPLES_A_TURN, samples)):
            every, answers = maps[sample].reshape(places * channels), out[sample].reshape(places * channels)
            own_mean, own_rstd = mean[sample], rstd[sample]
            sums[:] = ZERO
            for begin in range(0, places * channels, lap):
                seen = every[begin : begin + lap]
                for c in range(lap):
                    sums[c] += seen[c]
            _fold(sums, channels, lap)
            _totals(sums, own_mean, wide)
            for group in range(len(own_mean)):
                own_mean[group] *= share
            _fill_groups(middle, own_mean, wide)
            _repeat(middle, channels, lap)
            sums[:] = ZERO
            for begin in range(0, places * channels, lap):
                seen = every[begin : begin + lap]
                for c in range(lap):
                    off = seen[c] - middle[c]
                    sums[c] += off * off
            _fold(sums, channels, lap)
            _totals(sums, own_rstd, wide)
            for group in range(len(own_rstd)):
                own_rstd[group] = 1.0 / np.sqrt(own_rstd[group] * share + eps)
            _fill_groups(slope, own_rstd, wide)
            for c in range(channels):
                slope[c] *= scale[c]
                offset[c] = shift[c] - middle[c] * slope[c]
            _activate_all(every, slope, offset, channels, lap, answers, after)


@helper(fastmath=CAREFUL)
def _fill_lines(
    scale: Array,
    shift: Array,
    mean: Array,
    rstd: Array,
    middle: Array,
    narrow: Array,
    slope: Array,
    offset: Array,
    lap: int,
) -> None:
    """Fill in each channel's mean, 1 / deviation, slope and offset; repeat them, except 1 / deviation, over the lap."""
    channels = len(scale)
    _fill_groups(middle, mean, channels // len(mean))
    _fill_groups(narrow, rstd, channels // len(rstd))
    for c in range(channels):
        slope[c] = scale[c] * narrow[c]
        offset[c] = shift[c] - middle[c] * slope[c]
    _repeat(middle, channels, lap)
    _repeat(slope, channels, lap)
    _repeat(offset, channels, lap)


@kernel(fastmath=CAREFUL)
def backward(
    maps: Array,
    gradient: Array,
    scale: Array,
    shift: Array,
    mean: Array,
    rstd: Array,
    back: Array,
    scales: Array,
    shifts: Array,
    squared: Array,
    after: int,
) -> None:
    """Compute the maps' gradient into `back`, the per-sample gradients of scale and shift into `scales` and `shifts`
    (samples, channels), and their squared norms into `squared` (2, samples)."""
    samples, places, channels = maps.shape
    groups, wide = mean.shape[1], channels // mean.shape[1]
    lap, share = _places_a_lap(places, channels) * channels, np.float32(1.0 / (wide * places))
    for turn in prange(-(-samples // SAMPLES_A_TURN)):
        middle, narrow = np.empty(lap + LANES, np.float32), np.empty(channels + LANES, np.float32)
        slope, offset = np.empty(lap + LANES, np.float32), np.empty(lap + LANES, np.float32)
        by_scale, by_shift = np.empty(lap + LANES, np.float32), np.empty(lap + LANES, np.float32)
        tilt, drop = np.empty(groups, np.float32), np.empty(groups, np.float32)
        for sample in range(turn * SAMPLES_A_TURN, min(turn * SAMPLES_A_TURN + SAMPLES_A_TURN, samples)):
            every, all_given = maps[sample].reshape(places * channels), gradient[sample].reshape(places * channels)
            all_inner, own_mean, own_rstd = back[sample].reshape(places * channels), mean[sample], rstd[sample]
            own_scales, own_shifts = scales[sample], shifts[sample]
            _fill_lines(scale, shift, own_mean, own_rstd, middle, narrow, slope, offset, lap)
            by_scale[:] = ZERO
            by_shift[:] = ZERO
            for begin in range(0, places * channels, lap):
                seen, inner = every[begin : begin + lap], all_inner[begin : begin + lap]
                _activate_back(seen, all_given[begin : begin + lap], slope, offset, inner, after)
                for c in range(lap):
                    by_shift[c] += inner[c]
                    by_scale[c] += inner[c] * (seen[c] - middle[c])
            _fold(by_shift, channels, lap)
            _fold(by_scale, channels, lap)
            for c in range(channels):
                own_scales[c] = by_scale[c] * narrow[c]
                by_scale[c] = scale[c] * own_scales[c]
            for c in range(channels):
                own_shifts[c] = by_shift[c]
                by_shift[c] *= scale[c]
            squared[0, sample], squared[1, sample] = _squares(own_scales), _squares(own_shifts)
            _totals(by_scale, tilt, wide)
            _totals(by_shift, drop, wide)
            for group in range(groups):
                tilt[group] *= -share * own_rstd[group] * own_rstd[group]
                drop[group] = -share * drop[group] * own_rstd[group] - tilt[group] * own_mean[group]
            _fill_groups(middle, tilt, wide)
            _fill_groups(offset, drop, wide)
            _repeat(middle, channels, lap)
            _repeat(offset, channels, lap)
            for begin in range(0, places * channels, lap):
                seen, inner = every[begin : begin + lap], all_inner[begin : begin + lap]
                for c in range(lap):
                    inner[c] = inner[c] * slope[c] + seen[c] * middle[c] + offset[c]
