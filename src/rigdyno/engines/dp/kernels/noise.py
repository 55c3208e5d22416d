"""Gaussian noise in one pass over a buffer: bits by ChaCha, normals by Box and Muller.

No operation here depends on a library or on the compiler's optimisations: a key gives the same noise on every machine,
with any number of threads. Buffers are processed in tiles of LANES ChaCha blocks side by side, so that vector
instructions work on 8 or 16 of them at once. The first half of a tile's words are angles, the second half radii.

64 bits make a pair of normals: 31 for the radius, one for its sign, 32 for the angle. The angle's bits, the lower half
first, also extend the radius from 31 to 62 bits, so that it reaches 9.3 sigma. Radius and angle depend on one another
only in where a pair is within a cell of 2^-31 of the radius' probability, by 2^-16 of a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, log, pi
from typing import Any

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import Array, helper, inlined, kernel

LANES = 32

TILE = 16 * LANES

PAIRS = TILE // 2

CHUNK = 32 * TILE  # values that a thread processes at a time

Word = Any  # np.uint32, which mypy and Numba add up differently

Real = Any

State = tuple[Word, ...]

SIGMA0, SIGMA1, SIGMA2, SIGMA3 = np.frombuffer(b"expand 32-byte k", "<u4")


@inlined
def _rotated(word: Word, by: int) -> Word:
    return np.uint32((word << np.uint32(by)) | (word >> np.uint32(32 - by)))


@inlined
def _quarter_round(a: Word, b: Word, c: Word, d: Word) -> State:
    a = np.uint32(a + b)
    d = _rotated(np.uint32(d ^ a), 16)
    c = np.uint32(c + d)
    b = _rotated(np.uint32(b ^ c), 12)
    a = np.uint32(a + b)
    d = _rotated(np.uint32(d ^ a), 8)
    c = np.uint32(c + d)
    b = _rotated(np.uint32(b ^ c), 7)
    return a, b, c, d


@inlined
def _double_round(state: State) -> State:
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = state
    a0, b0, c0, d0 = _quarter_round(a0, b0, c0, d0)
    a1, b1, c1, d1 = _quarter_round(a1, b1, c1, d1)
    a2, b2, c2, d2 = _quarter_round(a2, b2, c2, d2)
    a3, b3, c3, d3 = _quarter_round(a3, b3, c3, d3)
    a0, b1, c2, d3 = _quarter_round(a0, b1, c2, d3)
    a1, b2, c3, d0 = _quarter_round(a1, b2, c3, d0)
    a2, b3, c0, d1 = _quarter_round(a2, b3, c0, d1)
    a3, b0, c1, d2 = _quarter_round(a3, b0, c1, d2)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@inlined
def _twenty_rounds(state: State) -> State:
    """Apply 20 rounds of RFC 8439. They aren't a loop: LLVM vectorises the outer loop only if it has none inside."""
    state = _double_round(_double_round(_double_round(_double_round(_double_round(state)))))
    return _double_round(_double_round(_double_round(_double_round(_double_round(state)))))


@inlined
def _eight_rounds(state: State) -> State:
    return _double_round(_double_round(_double_round(_double_round(state))))


@inlined
def _store_four(words: Array, lane: int, first: int, old: State, new: State) -> None:
    words[first * LANES + lane] = old[0] + new[0]
    words[(first + 1) * LANES + lane] = old[1] + new[1]
    words[(first + 2) * LANES + lane] = old[2] + new[2]
    words[(first + 3) * LANES + lane] = old[3] + new[3]


def keystream_of(mix: Callable[[State], State]) -> Callable[[Array, Array, int, int], None]:
    @helper()
    def fill(words: Array, key: Array, call: int, first_block: int) -> None:
        """Compute LANES blocks. The block counter and the nonce, which is the number of the call, have 64 bits each:
        Bernstein's original layout, in which neither runs out. Word w of block l is stored at w * LANES + l."""
        sigma = (SIGMA0, SIGMA1, SIGMA2, SIGMA3)
        key_low, key_high = (key[0], key[1], key[2], key[3]), (key[4], key[5], key[6], key[7])
        call_low, call_high = np.uint32(call), np.uint32(call >> 32)
        for lane in range(LANES):
            block = first_block + lane
            counter = (np.uint32(block), np.uint32(block >> 32), call_low, call_high)
            mixed = mix(sigma + key_low + key_high + counter)
            _store_four(words, lane, 0, sigma, mixed[:4])
            _store_four(words, lane, 4, key_low, mixed[4:8])
            _store_four(words, lane, 8, key_high, mixed[8:12])
            _store_four(words, lane, 12, counter, mixed[12:])

    return fill


fill_with_keystream = keystream_of(_twenty_rounds)

# For noise that repeats with its seed, and so isn't secret. No attack distinguishes these bits from random ones either.
fill_with_short_keystream = keystream_of(_eight_rounds)


@inlined
def split_single(u: Real) -> tuple[np.int32, Real]:
    """Split u into mantissa * 2**exponent, with the mantissa between sqrt(1/2) and sqrt(2)."""
    bits = np.float32(u).view(np.int32)
    exponent = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
    return exponent, np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32)


@inlined
def split_double(u: Real) -> tuple[np.int32, Real]:
    bits = np.float64(u).view(np.int64)
    exponent = np.int64(bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    return np.int32(exponent), np.int64(bits - np.int64(exponent << np.int64(52))).view(np.float64)


@inlined
def _power_series(x: Real, coefficients: tuple[Real, ...]) -> Real:
    """Evaluate a polynomial; its coefficients begin with that of the highest power."""
    total = coefficients[0]
    for i in range(1, len(coefficients)):
        total = total * x + coefficients[i]
    return total


def log_in(real: type, split: Callable[[Real], tuple[np.int32, Real]], terms: int) -> Callable[[Real, Real], Real]:
    """Make log(u) = exponent * log(2) + 2 artanh(f / (2 + f)), with the mantissa 1 + f.

    The compiled function also takes `below_one` = u - 1, which near one is more exact than a subtraction.
    """
    log2, one, two, none = real(log(2)), real(1), real(2), np.int32(0)
    series = tuple(real(1 / (2 * k + 1)) for k in reversed(range(terms)))

    @inlined
    def log_of(u: Real, below_one: Real) -> Real:
        exponent, mantissa = split(u)
        f = below_one if exponent == none else mantissa - one
        ratio = f / (f + two)
        return real(exponent) * log2 + two * ratio * _power_series(ratio * ratio, series)

    return log_of


def cos_sin_in(real: type, terms: int) -> Callable[[Real], tuple[Real, Real]]:
    """Make a function that returns cos and sin from -pi/4 to pi/4, where Taylor series converge fast."""
    cos_series = tuple(real((-1) ** k / factorial(2 * k)) for k in reversed(range(terms)))
    sin_series = tuple(real((-1) ** k / factorial(2 * k + 1)) for k in reversed(range(terms)))

    @inlined
    def cos_sin_of(x: Real) -> tuple[Real, Real]:
        return _power_series(x * x, cos_series), x * _power_series(x * x, sin_series)

    return cos_sin_of


def squared_radii_in(real: type, log_of: Callable[[Real, Real], Real]) -> Callable[[Array, Array], None]:
    unit, half, minus_two = real(2.0**-31), real(0.5), real(-2)

    @helper()
    def fill_squared_radii(words: Array, squares: Array) -> None:
        angles, radii = words[:PAIRS], words[PAIRS:]
        for i in range(PAIRS):
            high, low = np.int32(radii[i] >> np.uint32(1)), np.int32(_rotated(angles[i], 16) >> np.uint32(1))
            rest = (real(low) + half) * unit
            below_one = (real(np.int32(high - 2**31)) + rest) * unit
            squares[i] = minus_two * log_of((real(high) + rest) * unit, below_one)

    return fill_squared_radii


def turned_in(real: type, cos_sin_of: Callable[[Real], tuple[Real, Real]]) -> Callable[[Array, Array], None]:
    eighth, one, none = real(pi / 4 * 2.0**-31), np.uint32(1), np.int32(0)

    @helper()
    def turn(words: Array, normals: Array) -> None:
        """Turn squared radii into pairs of normals. Bits choose an axis, a sign, and an angle of up to an eighth of a
        turn to either side of the axis."""
        angles, radii, across, along = words[:PAIRS], words[PAIRS:], normals[:PAIRS], normals[PAIRS:]
        for i in range(PAIRS):
            angle, length = angles[i], np.sqrt(across[i])
            cos, sin = cos_sin_of(real(np.int32(np.uint32(angle << one) | one)) * eighth)
            signed = -length if radii[i] & one else length
            swapped = np.int32(angle) < none
            across[i] = signed * (sin if swapped else cos)
            along[i] = signed * (cos if swapped else sin)

    return turn


# Enough terms that the truncation error is below half a unit in the last place.
log_single, log_double = log_in(np.float32, split_single, 5), log_in(np.float64, split_double, 10)

cos_sin_single, cos_sin_double = cos_sin_in(np.float32, 5), cos_sin_in(np.float64, 9)

_radii_single, _radii_double = squared_radii_in(np.float32, log_single), squared_radii_in(np.float64, log_double)

_turn_single, _turn_double = turned_in(np.float32, cos_sin_single), turned_in(np.float64, cos_sin_double)


@helper()
def normals_single(words: Array, normals: Array) -> None:
    _radii_single(words, normals)
    _turn_single(words, normals)


@helper()
def normals_double(words: Array, normals: Array) -> None:
    _radii_double(words, normals)
    _turn_double(words, normals)


@helper()
def _add(piece: Array, normals: Array, std: float, factor: float) -> None:
    for i in range(len(piece)):
        piece[i] = (piece[i] + std * normals[i]) * factor


@helper()
def _add_up(total: Array, normals: Array) -> None:
    for i in range(TILE):
        total[i] += normals[i]


@kernel()
def release_single(buffer: Array, key: Array, call: int, std: float, factor: float) -> None:
    """Compute buffer = (buffer + std * noise) * factor, with noise of single precision."""
    for chunk in prange(-(-len(buffer) // CHUNK)):
        words, normals = np.empty(TILE, np.uint32), np.empty(TILE, np.float32)
        for start in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, len(buffer)), TILE):
            fill_with_short_keystream(words, key, call, start // TILE * LANES)
            normals_single(words, normals)
            _add(buffer[start : start + TILE], normals, std, factor)


@kernel()
def release_double(buffer: Array, key: Array, call: int, std: float, factor: float, draws: int) -> None:
    """Compute the same with noise of double precision. Each value is the sum of `draws` normals; the caller scales
    `std` accordingly."""
    for chunk in prange(-(-len(buffer) // CHUNK)):
        words, normals, total = np.empty(TILE, np.uint32), np.empty(TILE), np.empty(TILE)
        for start in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, len(buffer)), TILE):
            total[:] = 0
            for draw in range(draws):
                fill_with_keystream(words, key, call, (start // TILE * draws + draw) * LANES)
                normals_double(words, normals)
                _add_up(total, normals)
            _add(buffer[start : start + TILE], total, std, factor)
