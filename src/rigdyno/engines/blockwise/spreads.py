"""How low values lie and how far they reach, seen part by part: all at once may be more than memory holds."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rigdyno.engines.blockwise.ports import Array

PERCENTILES = (1.0, 99.0)


class Spread(Protocol):
    count: int

    def add(self, values: Array) -> None:
        """`values` are finite, and may be none."""

    def figures(self) -> tuple[float, float]:
        """What to subtract, and what to divide by."""


class Standard:
    """Mean and deviation, from those of the parts."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[int, float, float]] = []

    def add(self, values: Array) -> None:
        self.count += values.size
        if values.size:
            self._parts.append((values.size, float(values.mean(dtype=np.float64)), float(values.var(dtype=np.float64))))

    def figures(self) -> tuple[float, float]:
        counts, means, variances = np.array(self._parts).T
        mean = np.average(means, weights=counts)
        return float(mean), float(np.sqrt(np.average(variances + (means - mean) ** 2, weights=counts)))


class Range:
    """The smallest and the largest."""

    def __init__(self) -> None:
        self.count = 0
        self._low, self._high = np.inf, -np.inf

    def add(self, values: Array) -> None:
        self.count += values.size
        self._low, self._high = float(values.min(initial=self._low)), float(values.max(initial=self._high))

    def figures(self) -> tuple[float, float]:
        return self._low, self._high - self._low


class Percentile:
    """As NumPy's, interpolated between two values; whole numbers are counted, only floats are kept."""

    def __init__(self) -> None:
        self.count = 0
        self._counts = np.zeros(0, np.int64)
        self._floats: list[Array] = []

    def add(self, values: Array) -> None:
        self.count += values.size
        if values.dtype.kind == "f":
            self._floats.append(values)
        elif values.size:
            counts = np.bincount(values, minlength=np.iinfo(values.dtype).max + 1)
            self._counts = counts + self._counts if self._counts.size else counts

    def figures(self) -> tuple[float, float]:
        if self._floats:
            low, high = np.percentile(np.concatenate(self._floats), PERCENTILES, overwrite_input=True)
        else:
            low, high = (self._counted(share / 100 * (self.count - 1)) for share in PERCENTILES)
        return float(low), float(high) - float(low)

    def _counted(self, place: float) -> float:
        """What stands there, were all put in order."""
        before = int(place)
        lower, upper = np.searchsorted(np.cumsum(self._counts), [before, min(before + 1, self.count - 1)], side="right")
        return float(lower + (place - before) * (upper - lower))


SPREADS: dict[str, type[Spread]] = {"standard": Standard, "range": Range, "percentile": Percentile}
