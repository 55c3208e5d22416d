"""Depthwise convolutions over maps with the channels innermost; taps that only ever see padding cost nothing.

Maps are (samples, height, width, channels), weights (kernel height, kernel width, channels).
"""

from __future__ import annotations

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import Array, kernel
from rigdyno.engines.dp.kernels.norms import SUMS


@kernel(fastmath=SUMS)
def forward(maps: Array, weight: Array, out: Array, steps: Array) -> None:
    """`steps` are stride, padding and dilation, then the first living tap and the last, each down and across."""
    samples, height, width, channels = maps.shape
    for sample in prange(samples):
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                found = out[sample, row, column]
                found[:] = 0
                for i in range(steps[6], steps[8]):
                    y = row * steps[0] - steps[2] + i * steps[4]
                    if y < 0 or y >= height:
                        continue
                    for j in range(steps[7], steps[9]):
                        x = column * steps[1] - steps[3] + j * steps[5]
                        if x < 0 or x >= width:
                            continue
                        seen, tap = maps[sample, y, x], weight[i, j]
                        for channel in range(channels):
                            found[channel] += seen[channel] * tap[channel]


@kernel(fastmath=SUMS)
def backward(
    maps: Array, gradient: Array, weight: Array, back: Array, per_sample: Array, squared: Array, steps: Array
) -> None:
    """Into `back` the maps' gradient, into `per_sample` (samples, living taps down, across, channels) the weight's, a
    sample, and into `squared` its squared norm."""
    samples, height, width, channels = maps.shape
    for sample in prange(samples):
        back[sample] = 0
        own = per_sample[sample]
        own[:] = 0
        for row in range(gradient.shape[1]):
            for column in range(gradient.shape[2]):
                given = gradient[sample, row, column]
                for i in range(steps[6], steps[8]):
                    y = row * steps[0] - steps[2] + i * steps[4]
                    if y < 0 or y >= height:
                        continue
                    for j in range(steps[7], steps[9]):
                        x = column * steps[1] - steps[3] + j * steps[5]
                        if x < 0 or x >= width:
                            continue
                        seen, to = maps[sample, y, x], back[sample, y, x]
                        tap, sums = weight[i, j], own[i - steps[6], j - steps[7]]
                        for channel in range(channels):
                            to[channel] += given[channel] * tap[channel]
                            sums[channel] += given[channel] * seen[channel]
        total = 0.0
        for i in range(own.shape[0]):
            for j in range(own.shape[1]):
                sums = own[i, j]
                for channel in range(channels):
                    total += np.float64(sums[channel]) * np.float64(sums[channel])
        squared[sample] = total
