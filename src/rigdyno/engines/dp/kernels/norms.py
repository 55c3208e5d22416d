"""Squared norms, summed up in double precision; a row a sample."""

from __future__ import annotations

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import Array, kernel

# Sums in vectors, but no liberties with NaN and infinity: whoever gets a norm must see them.
SUMS = frozenset({"reassoc", "contract", "nsz"})
LARGEST = 2.0**127  # of a square: beyond, products with it aren't safe in single precision, and it counts as infinite
FLUSHED = 2.0**-125  # as in ../norms.py


@kernel(fastmath=SUMS)
def squares(rows: Array, found: Array) -> None:
    for row in prange(len(rows)):
        values, total = rows[row], 0.0
        for i in range(len(values)):
            total += np.float64(values[i]) * np.float64(values[i])
        found[row] = np.inf if total > LARGEST else total + FLUSHED * len(values)
