"""exp in single precision as a polynomial: compilers make vector instructions of it, which they can't of a library's.

Within 2e-7 of the truth, relative, from -87 to 87; beyond, as at those ends. The compiler must not reorder sums here:
the argument is reduced by a difference of nearly equal figures.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rigdyno.engines.dp.kernels import CAREFUL, inlined

FAR = np.float32(87.0)
LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
ONE, HALF = np.float32(1.0), np.float32(0.5)


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
