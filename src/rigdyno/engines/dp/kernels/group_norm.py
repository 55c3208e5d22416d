"""GroupNorm with what comes after it, over (samples, places, channels); its backward pass yields per-sample gradients.

The variance is that of the differences from the mean: the mean of squares minus the square of the mean loses all digits
where the mean is large.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import CAREFUL, Array, kernel
from rigdyno.engines.dp.kernels.activations import ONE, sigmoid

NOTHING, SILU, RELU = 0, 1, 2
ZERO = np.float32(0.0)


@kernel(fastmath=CAREFUL)
def forward(
    maps: Array, scale: Array, shift: Array, out: Array, mean: Array, rstd: Array, eps: float, after: int
) -> None:
    samples, places, channels = maps.shape
    groups = mean.shape[1]
    wide = channels // groups
    for sample in prange(samples):
        sums, middle = np.zeros(channels, np.float32), np.empty(channels, np.float32)
        slope, offset = np.empty(channels, np.float32), np.empty(channels, np.float32)
        for place in range(places):
            seen = maps[sample, place]
            for c in range(channels):
                sums[c] += seen[c]
        for group in range(groups):
            total = 0.0
            for c in range(group * wide, group * wide + wide):
                total += sums[c]
            mean[sample, group] = total / (wide * places)
            for c in range(group * wide, group * wide + wide):
                middle[c] = mean[sample, group]
        sums[:] = 0
        for place in range(places):
            seen = maps[sample, place]
            for c in range(channels):
                off = seen[c] - middle[c]
                sums[c] += off * off
        for group in range(groups):
            total = 0.0
            for c in range(group * wide, group * wide + wide):
                total += sums[c]
            rstd[sample, group] = 1.0 / np.sqrt(total / (wide * places) + eps)
            for c in range(group * wide, group * wide + wide):
                slope[c] = scale[c] * rstd[sample, group]
                offset[c] = shift[c] - middle[c] * slope[c]
        for place in range(places):
            seen, found = maps[sample, place], out[sample, place]
            if after == SILU:
                for c in range(channels):
                    y = seen[c] * slope[c] + offset[c]
                    found[c] = y * sigmoid(y)
            elif after == RELU:
                for c in range(channels):
                    found[c] = max(seen[c] * slope[c] + offset[c], ZERO)
            else:
                for c in range(channels):
                    found[c] = seen[c] * slope[c] + offset[c]


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
    for sample in prange(samples):
        middle, narrow = np.empty(channels, np.float32), np.empty(channels, np.float32)
        slope, offset = np.empty(channels, np.float32), np.empty(channels, np.float32)
        by_scale, by_shift = scales[sample], shifts[sample]
        for group in range(groups):
            for c in range(group * wide, group * wide + wide):
                middle[c], narrow[c] = mean[sample, group], rstd[sample, group]
        for c in range(channels):
            slope[c] = scale[c] * narrow[c]
            offset[c] = shift[c] - middle[c] * slope[c]
            by_scale[c], by_shift[c] = ZERO, ZERO
        for place in range(places):
            seen, given, inner = maps[sample, place], gradient[sample, place], back[sample, place]
            if after == SILU:
                for c in range(channels):
                    y = seen[c] * slope[c] + offset[c]
                    share = sigmoid(y)
                    inner[c] = given[c] * share * (ONE + y * (ONE - share))
            elif after == RELU:
                for c in range(channels):
                    inner[c] = given[c] if seen[c] * slope[c] + offset[c] > ZERO else ZERO
            else:
                for c in range(channels):
                    inner[c] = given[c]
            for c in range(channels):
                by_shift[c] += inner[c]
                by_scale[c] += inner[c] * (seen[c] - middle[c]) * narrow[c]
        total, other_total = 0.0, 0.0
        for c in range(channels):
            total += np.float64(by_scale[c]) * np.float64(by_scale[c])
            other_total += np.float64(by_shift[c]) * np.float64(by_shift[c])
        squared[0, sample], squared[1, sample] = total, other_total
        for group in range(groups):
            along, across = 0.0, 0.0
            for c in range(group * wide, group * wide + wide):
                along += scale[c] * by_scale[c]
                across += scale[c] * by_shift[c]
            tilt = -along / (wide * places) * rstd[sample, group] ** 2
            drop = -across / (wide * places) * rstd[sample, group] - tilt * mean[sample, group]
            for c in range(group * wide, group * wide + wide):
                middle[c], offset[c] = tilt, drop
        for place in range(places):
            seen, inner = maps[sample, place], back[sample, place]
            for c in range(channels):
                inner[c] = inner[c] * slope[c] + seen[c] * middle[c] + offset[c]
