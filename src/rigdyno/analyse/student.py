"""Student's t, for any number of degrees of freedom, whole or not: Welch's intervals have fractions of them.

Needs no scipy, which takes longer to import than most commands take to answer.
"""

from __future__ import annotations

import math
from functools import lru_cache

ENOUGH = 1e-15  # relative: where a continued fraction counts as settled
ROUNDING = 1e-14  # relative: steps this small are rounding
MOST_ROUNDS = 500  # six do; more only far out in the tail of very few degrees
MOST_TERMS = 20_000  # a few dozen do; more only for a huge number of degrees


@lru_cache(maxsize=1024)
def student_quantile(probability: float, degrees: float) -> float:
    """For a probability of one half and more, by Newton's method: right of zero the distribution bends down, so every
    round comes nearer and none overshoots."""
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
    """For t >= 0, by the incomplete beta function (Abramowitz and Stegun 26.7.1 and 26.5.27)."""
    square = t * t
    outside = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + square), square / (degrees + square))
    return 1 - outside / 2


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised one, at x; `rest` is 1 - x, which the caller may know better than subtraction does."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # beyond it the fraction of the other tail settles sooner
        return 1 - incomplete_beta(b, a, rest, x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(scale) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of Abramowitz and Stegun 26.5.8, from the front, by Lentz's way of doing it."""
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
