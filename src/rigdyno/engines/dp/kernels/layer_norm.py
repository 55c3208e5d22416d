"""Backward of LayerNorm over (samples, positions, features), in one pass, with per-sample gradients."""

from __future__ import annotations

import numpy as np
from numba import prange

from rigdyno.engines.dp.kernels import Array, kernel
from rigdyno.engines.dp.kernels.sums import SUMS

ZERO = np.float32(0.0)


@kernel(fastmath=SUMS)
def backward(
    rows: Array,
    gradient: Array,
    scale: Array,
    mean: Array,
    rstd: Array,
    back: Array,
    scales: Array,
    shifts: Array,
    squared: Array,
) -> None:
    """Compute the rows' gradient into `back`, the per-sample gradients of scale and shift into `scales` and `shifts`
    (samples, features), and their squared norms into `squared` (2, samples). Mean and rstd are (samples, positions)."""
    samples, positions, features = rows.shape
    for sample in prange(samples):
        by_scale, by_shift = scales[sample], shifts[sample]
        by_scale[:] = 0
        by_shift[:] = 0
        for position in range(positions):
            seen, given, inner = rows[sample, position], gradient[sample, position], back[sample, position]
            middle, narrow = mean[sample, position], rstd[sample, position]
            along, across = ZERO, ZERO
            for f in range(features):
                normalised = (seen[f] - middle) * narrow
                by_scale[f] += given[f] * normalised
                by_shift[f] += given[f]
                along += given[f] * scale[f] * normalised
                across += given[f] * scale[f]
            tilt, drop = along * narrow / features, across * narrow / features
            tilt, drop = np.float32(tilt), np.float32(drop)
            for f in range(features):
                inner[f] = given[f] * scale[f] * narrow - drop - (seen[f] - middle) * narrow * tilt
        total, other_total = 0.0, 0.0
        for f in range(features):
            total += np.float64(by_scale[f]) * np.float64(by_scale[f])
            other_total += np.float64(by_shift[f]) * np.float64(by_shift[f])
        squared[0, sample], squared[1, sample] = total, other_total
