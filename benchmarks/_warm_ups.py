"""Warm-ups made by construction: what a stream's step times are multiplied by, and where the good steps begin.

Sizes are drawn from a shape's range, so that a rule can't be fitted to one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shape = Callable[[int, np.random.Generator], Floats]

GOOD_STEP = 0.01  # a step that the warm-up still lengthens by less than this is one to keep


@dataclass(frozen=True)
class Stream:
    shape: str
    settles: bool
    noise: Floats  # of recorded steps, around one
    factor: Floats

    @property
    def durations(self) -> Floats:
        return self.noise * self.factor

    @property
    def good_from(self) -> int:
        """Return the index after the last step that isn't good."""
        bad = np.flatnonzero(np.abs(self.factor - 1) > GOOD_STEP)
        return int(bad[-1]) + 1 if len(bad) else 0

    def bias_left(self, start: int) -> float:
        """Return the share that the warm-up adds to the time of the steps from `start` on; both sums have the noise."""
        kept = self.noise[start:]
        return float((kept * self.factor[start:]).sum() / kept.sum()) - 1

    def good_share_cut(self, start: int) -> float:
        return max(0, start - self.good_from) / (len(self.factor) - self.good_from)


def none(n: int, _draw: np.random.Generator) -> Floats:
    return np.ones(n)


def slow_first_step(n: int, draw: np.random.Generator) -> Floats:
    """Model lazy initialisation or a first allocation."""
    factor = np.ones(n)
    factor[0] = np.exp(draw.uniform(np.log(2), np.log(500)))
    return factor


def slow_first_steps(n: int, draw: np.random.Generator) -> Floats:
    """Model filling caches and growing memory pools: two to eight slower steps, each by its own amount."""
    factor = np.ones(n)
    count = draw.integers(2, 9)
    factor[:count] = np.exp(draw.uniform(np.log(1.5), np.log(20), count))
    return factor


def decay(n: int, draw: np.random.Generator) -> Floats:
    """Return a warm-up that begins 20 % to 300 % slower and falls to a third within 0.5 to 6 % of the stream. Its last
    percent lasts up to five times as long."""
    height, length = np.exp(draw.uniform(np.log(0.2), np.log(3))), n * draw.uniform(0.005, 0.06)
    return 1 + height * np.exp(-np.arange(n) / length)


def compiled_later(n: int, draw: np.random.Generator) -> Floats:
    """Model a JIT compiler: the first 2 to 40 % of the stream are slower by 10 to 200 %."""
    return _early_level(n, draw, 1 + np.exp(draw.uniform(np.log(0.1), np.log(2))))


def turbo(n: int, draw: np.random.Generator) -> Floats:
    """Model a machine that heats up: the first 2 to 40 % of the stream take 7 to 40 % less time."""
    return _early_level(n, draw, 1 - draw.uniform(0.07, 0.4))


def _early_level(n: int, draw: np.random.Generator, level: float) -> Floats:
    return np.where(np.arange(n) < n * draw.uniform(0.02, 0.4), level, 1.0)


def trend(n: int, draw: np.random.Generator) -> Floats:
    """Drift over the whole stream by 20 to 100 %, up or down."""
    end = 1 + draw.uniform(0.2, 1.0)
    return np.linspace(1, end, n) if draw.integers(2) else np.linspace(end, 1, n)


def late_change(n: int, draw: np.random.Generator) -> Floats:
    """Jump at 55 to 80 % of the stream by 20 to 100 %, up or down."""
    level = 1 + draw.uniform(0.2, 1.0)
    late = np.arange(n) >= n * draw.uniform(0.55, 0.8)
    return np.where(late, level if draw.integers(2) else 1 / level, 1.0)


def oscillation(n: int, draw: np.random.Generator) -> Floats:
    """Alternate two to four times between two levels that are 20 to 60 % apart, with half of the time on each."""
    phase = np.arange(n) / n * draw.integers(2, 5) + draw.uniform()
    return np.where(phase % 1 < 0.5, 1.0, 1 + draw.uniform(0.2, 0.6))


SETTLING: tuple[Shape, ...] = (none, slow_first_step, slow_first_steps, decay, compiled_later, turbo)
NEVER_SETTLING: tuple[Shape, ...] = (trend, late_change, oscillation)
