"""Student's t distribution for any number of degrees of freedom; Welch's intervals need fractional ones.

This avoids scipy, whose import takes longer than most commands.
"""

from __future__ import annotations

import math
from functools import lru_cache

ENOUGH = 1e-15  # relative change at which a continued fraction has converged

ROUNDING = 1e-14  # relative steps this small are rounding errors

MOST_ROUNDS = 500  # six are usual; more are needed far out in the tail of very few degrees

MOST_TERMS = 20_000  # a few dozen are usual; more are needed for very many degrees


@lru_cache(maxsize=1024)
def student_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of a probability of at least 0.5, by Newton's method.

    The distribution is concave above zero, so every iteration approaches the quantile from below.
    """
    t = 0.0
    for _ in range(MOST_ROUNDS):
        step = (probability - student_cdf(t, degrees)) / student_density(t, degrees)
        t += max(0.0, step)
        if step <= t * ROUNDING:
            break
    return t


def student_density(t: float, degrees: float) -> float:
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    return math.exp(scale - (degrees + 1) / 2 * math.log1p(t * t / degrees))


def student_cdf(t: float, degrees: float) -> float:
    """Return the distribution function for t >= 0 (Abramowitz and Stegun 26.7.1 and 26.5.27)."""
    square = t * t
    outside = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + square), square / (degrees + square))
    return 1 - outside / 2


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function; `rest` is 1 - x, which the caller may know more exactly."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction of the other tail converges faster
        return 1 - incomplete_beta(b, a, rest, x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(scale) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """Return 1 + d1/(1 + d2/(1 + ...)) of Abramowitz and Stegun 26.5.8, by Lentz's method."""
    value = upper = 1.0
    lower = 0.0
    for term in range(1, MOST_TERMS):
        factor = _coefficient(a, b, x, term)
        lower = 1 / (1 + factor * lower)
        upper = 1 + factor / upper
        value *= upper * lower
        if abs(upper * lower - 1) < ENOUGH:
            break
    return value


def _coefficient(a: float, b: float, x: float, term: int) -> float:
    half = term // 2
    if term % 2 == 0:
        return half * (b - half) * x / ((a + term - 1) * (a + term))
    return -(a + half) * (a + b + half) * x / ((a + term - 1) * (a + term))
