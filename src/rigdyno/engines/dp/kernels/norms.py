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


@kernel(fastmath=SUMS)
def gram(inputs: Array, gradients: Array, found: Array, slack: float) -> None:
    """Of sum_t g_t x_t', by the products of all pairs of rows; `slack` times the rows' own size is added, since pairs
    cancel. A single row has no pairs: only what its squares have lost is added."""
    samples, terms, width = inputs.shape
    height = gradients.shape[2]
    lost = FLUSHED * terms if terms == 1 else FLUSHED / slack * terms
    for sample in prange(samples):
        total, energy, other_energy = 0.0, lost * width, lost * height
        for s in range(terms):
            for t in range(s + 1):
                x, y = inputs[sample, s], inputs[sample, t]
                product = np.float32(0.0)
                for i in range(width):
                    product += x[i] * y[i]
                g, h = gradients[sample, s], gradients[sample, t]
                other = np.float32(0.0)
                for i in range(height):
                    other += g[i] * h[i]
                if s == t:
                    total += np.float64(product) * np.float64(other)
                    energy += product
                    other_energy += other
                else:
                    total += 2.0 * np.float64(product) * np.float64(other)
        if terms == 1:
            total = energy * other_energy
        elif total < 0.0:
            total = slack * energy * other_energy
        else:
            total += slack * energy * other_energy
        found[sample] = total
