"""Depthwise convolutions over channels-last maps. Taps that only ever see padding are skipped.

Maps are (samples, height, width, channels), weights (kernel height, kernel width, channels). Every result is a sum of
products that stays in registers until it is complete: an output is a sum over the taps, a weight's gradient a sum over
the positions, and a map's gradient a sum over the taps that have seen the position.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import Array, helper, kernel
from rigdyno.engines.dp.kernels.group_norm import activate_again
from rigdyno.engines.dp.kernels.sums import LANES, SUMS, dots_of

Walk = tuple[int, int, int, int, int, int]

Sizes = tuple[
    int, int, int, int, int, int
]  # height, width, channels of a map; height, width of the output; taps across

_four, _two, _single = dots_of(4), dots_of(2), dots_of(1)


@helper(fastmath=SUMS)
def _dots(one: Array, at: int, other: Array, other_at: int, found: Array, to: int, channels: int, walk: Walk) -> None:
    """Compute the products of `sums.dots_of` for all channels."""
    c = 0
    while c + 4 * LANES <= channels:
        _four(one, at + c, other, other_at + c, found, to + c, walk)
        c += 4 * LANES
    if c + 2 * LANES <= channels:
        _two(one, at + c, other, other_at + c, found, to + c, walk)
        c += 2 * LANES
    if c + LANES <= channels:
        _single(one, at + c, other, other_at + c, found, to + c, walk)
        c += LANES
    for channel in range(c, channels):
        total = np.float32(0.0)
        for row in range(walk[0]):
            for column in range(walk[1]):
                seen = one[at + channel + row * walk[2] + column * walk[3]]
                total += seen * other[other_at + channel + row * walk[4] + column * walk[5]]
        found[to + channel] = total


@helper()
def _inside(start: int, step: int, size: int, first: int, last: int) -> tuple[int, int]:
    """Return the first n from `first` to `last` for which start + n * step is between 0 and size, and their number."""
    low = max(first, -(start // step))
    high = min(last, (size - 1 - start) // step + 1)
    return low, max(high - low, 0)


@helper()
def _reaching(place: int, steps: tuple[int, ...], first: int, last: int, size: int) -> tuple[int, ...]:
    """Find the taps that saw a position of the map.

    Return the first tap, their number and their distance, then the output of the first tap and the distance of the
    outputs, which run backwards. `steps` are stride, padding, dilation.
    """
    stride, padding, dilation = steps
    shared = np.gcd(stride, dilation)
    tap_step, answer_step = stride // shared, dilation // shared
    for tap in range(first, min(first + tap_step, last)):
        ahead = place + padding - tap * dilation
        if ahead % stride == 0:
            answer = ahead // stride
            skipped = max(0, -((size - 1 - answer) // answer_step))
            tap, answer = tap + skipped * tap_step, answer - skipped * answer_step
            count = min((last - 1 - tap) // tap_step, answer // answer_step) + 1
            return tap, max(count, 0), tap_step, answer, answer_step
    return first, 0, 1, 0, 1


@kernel(fastmath=SUMS)
def forward(maps: Array, weight: Array, out: Array, steps: Array) -> None:
    """Compute the convolution.

    `steps` are stride, padding, dilation, the first living tap and the end of the living taps, each for height and
    width. Living taps are those that ever see the map.
    """
    samples, height, width, channels = maps.shape
    rows, columns, wide = out.shape[1], out.shape[2], weight.shape[1]
    taps = weight.reshape(weight.size)
    for sample in prange(samples):
        every, answers = maps[sample].reshape(height * width * channels), out[sample].reshape(rows * columns * channels)
        for row in range(rows):
            y = row * steps[0] - steps[2]
            i, down = _inside(y, steps[4], height, steps[6], steps[8])
            y += i * steps[4]
            for column in range(columns):
                x = column * steps[1] - steps[3]
                j, across = _inside(x, steps[5], width, steps[7], steps[9])
                x += j * steps[5]
                walk = (down, across, steps[4] * width * channels, steps[5] * channels, wide * channels, channels)
                at, tap, to = (y * width + x) * channels, (i * wide + j) * channels, (row * columns + column) * channels
                _dots(every, at, taps, tap, answers, to, channels, walk)


@helper(fastmath=SUMS)
def _back(every: Array, given: Array, taps: Array, inner: Array, own: Array, sizes: Sizes, steps: Array) -> float:
    """Compute one sample's gradients of the map and of the weight, and return the squared norm of the latter."""
    height, width, channels, rows, columns, wide = sizes
    living = steps[9] - steps[7]
    for i in range(steps[6], steps[8]):
        row, down = _inside(i * steps[4] - steps[2], steps[0], height, 0, rows)
        y = row * steps[0] - steps[2] + i * steps[4]
        for j in range(steps[7], steps[9]):
            column, across = _inside(j * steps[5] - steps[3], steps[1], width, 0, columns)
            x = column * steps[1] - steps[3] + j * steps[5]
            walk = (down, across, steps[0] * width * channels, steps[1] * channels, columns * channels, channels)
            at, answer = (y * width + x) * channels, (row * columns + column) * channels
            to = ((i - steps[6]) * living + j - steps[7]) * channels
            _dots(every, at, given, answer, own, to, channels, walk)
    for y in range(height):
        i, down, i_step, row, row_step = _reaching(y, (steps[0], steps[2], steps[4]), steps[6], steps[8], rows)
        for x in range(width):
            j, across, j_step, column, column_step = _reaching(
                x, (steps[1], steps[3], steps[5]), steps[7], steps[9], columns
            )
            line = i_step * wide * channels
            walk = (down, across, line, j_step * channels, -row_step * columns * channels, -column_step * channels)
            at, answer = (i * wide + j) * channels, (row * columns + column) * channels
            _dots(taps, at, given, answer, inner, (y * width + x) * channels, channels, walk)
    total = 0.0
    for n in range(len(own)):
        total += np.float64(own[n]) * np.float64(own[n])
    return total


@kernel(fastmath=SUMS)
def backward(
    maps: Array, gradient: Array, weight: Array, back: Array, per_sample: Array, squared: Array, steps: Array
) -> None:
    """Compute the maps' gradient into `back`, the weight's per-sample gradients into `per_sample` (samples, living taps
    down, across, channels), and their squared norms into `squared`."""
    samples, height, width, channels = maps.shape
    sizes = (height, width, channels, gradient.shape[1], gradient.shape[2], weight.shape[1])
    taps, size, given_size = weight.reshape(weight.size), height * width * channels, sizes[3] * sizes[4] * channels
    own_size = per_sample.shape[1] * per_sample.shape[2] * channels
    for sample in prange(samples):
        given, own = gradient[sample].reshape(given_size), per_sample[sample].reshape(own_size)
        inner = back[sample].reshape(size)
        squared[sample] = _back(maps[sample].reshape(size), given, taps, inner, own, sizes, steps)


@kernel(fastmath=SUMS)
def backward_again(
    rows: Array, gradient: Array, weight: Array, back: Array, per_sample: Array, squared: Array, steps: Array,
    scale: Array, shift: Array, mean: Array, rstd: Array, after: int,
) -> None:  # fmt: skip
    """Compute the same as `backward`, for maps that are GroupNorm's output for `rows`.

    They are computed again, one sample at a time, which stays within the processor's cache.
    """
    samples, height, width, channels = back.shape
    sizes = (height, width, channels, gradient.shape[1], gradient.shape[2], weight.shape[1])
    taps, size, given_size = weight.reshape(weight.size), height * width * channels, sizes[3] * sizes[4] * channels
    own_size = per_sample.shape[1] * per_sample.shape[2] * channels
    for sample in prange(samples):
        every = np.empty(size, np.float32)
        activate_again(rows[sample].reshape(size), scale, shift, mean[sample], rstd[sample], every, after)
        given, own = gradient[sample].reshape(given_size), per_sample[sample].reshape(own_size)
        squared[sample] = _back(every, given, taps, back[sample].reshape(size), own, sizes, steps)
