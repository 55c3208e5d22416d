"""GroupNorm with what comes after it, over (samples, places, channels); its backward pass yields per-sample gradients.

The variance is that of the differences from the mean: the mean of squares minus the square of the mean loses all digits
where the mean is large.

Vector instructions need long loops, and maps with many places have few channels: their places are taken several at a
time, a lap, with each channel's figures repeated as often.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import CAREFUL, Array, helper, kernel
from rigdyno.engines.dp.kernels.activations import ONE, sigmoid
from rigdyno.engines.dp.kernels.lanes import LANES, fill, total_of
from rigdyno.engines.dp.kernels.norms import SUMS

NOTHING, SILU, RELU = 0, 1, 2
ZERO = np.float32(0.0)
LONG_LAP, MOST_PLACES = 512, 8  # values of a lap, and places: repeating figures takes time too
SAMPLES_A_TURN = 4  # of one thread, which needs room for figures once a turn
LEAST_LAPS = 4


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
    """The first channels' figures, over the rest of the lap."""
    for i in range(channels, lap, channels):
        for c in range(channels):
            values[i + c] = values[c]


@helper()
def _fold(values: Array, channels: int, lap: int) -> None:
    """A lap's sums, into those of the channels."""
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
    """All places of a sample, by the slope and the offset of each channel."""
    _repeat(slope, channels, lap)
    _repeat(offset, channels, lap)
    for begin in range(0, len(every), lap):
        _activate(every[begin : begin + lap], slope, offset, answers[begin : begin + lap], after)


@helper(fastmath=CAREFUL)
def activate_again(
    every: Array, scale: Array, shift: Array, mean: Array, rstd: Array, answers: Array, after: int
) -> None:
    """One sample's answer once more, to the last digit, from the figures that `forward` found."""
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
    """Into `back` the maps' gradient; into `scales` and `shifts`, (samples, channels), those of scale and shift; into
    `squared`, (2, samples), their squared norms."""
    samples, places, channels = maps.shape
    groups = mean.shape[1]
    wide = channels // groups
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
            _fill_groups(middle, own_mean, wide)
            _fill_groups(narrow, own_rstd, wide)
            for c in range(channels):
                slope[c] = scale[c] * narrow[c]
                offset[c] = shift[c] - middle[c] * slope[c]
            _repeat(middle, channels, lap)
            _repeat(slope, channels, lap)
            _repeat(offset, channels, lap)
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
