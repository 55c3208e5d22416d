"""Squared norms, summed up in double precision; a row a sample."""

from __future__ import annotations

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import Array, kernel


@kernel(fastmath=True)
def squares(rows: Array, found: Array) -> None:
    for row in prange(len(rows)):
        values, total = rows[row], 0.0
        for i in range(len(values)):
            total += np.float64(values[i]) * np.float64(values[i])
        found[row] = total


@kernel(fastmath=True)
def gram(inputs: Array, gradients: Array, found: Array, slack: float) -> None:
    """Of sum_t g_t x_t', by the products of all pairs of rows; `slack` times the rows' own size is added."""
    samples, terms, width = inputs.shape
    for sample in prange(samples):
        total, energy, other_energy = 0.0, 0.0, 0.0
        for s in range(terms):
            for t in range(s + 1):
                x, y = inputs[sample, s], inputs[sample, t]
                product = np.float32(0.0)
                for i in range(width):
                    product += x[i] * y[i]
                g, h = gradients[sample, s], gradients[sample, t]
                other = np.float32(0.0)
                for i in range(len(g)):
                    other += g[i] * h[i]
                if s == t:
                    total += np.float64(product) * np.float64(other)
                    energy += product
                    other_energy += other
                else:
                    total += 2.0 * np.float64(product) * np.float64(other)
        found[sample] = max(total, 0.0) + slack * energy * other_energy
