"""The largest value of an option that fits into a given memory: what to try next, decided from what was tried.

Memory is close to a line over the value: what the model takes, and so much for each sample. Two small tries give it,
the third is near its end. Decided from the tries alone, so that a search goes on wherever it was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST = 1
MOST = 2**20
STRIDE = 8  # at most so many times the largest that fitted: a line through two small values isn't exact
AIM = 0.965  # of the memory: the peak of the same process differs by a few hundredths from start to start
FULL = 0.94  # of the memory: from here on it is as good as full
BOLDNESS = 2  # times the memory: what a try may take at worst
NOISE = 0.05  # of the peak, by which it may have been seen too low
CLOSE = 1 / 32  # of the value, to the smallest that didn't fit
MOST_TRIES = 30  # then the largest that was confirmed has to do
TRUSTED_TRIES = 3  # behind the first that didn't fit the line is followed; then what is left is halved: that ends


@dataclass(frozen=True)
class Try:
    value: int
    fits: bool | None  # None: it failed for another reason
    memory_bytes: int | None = None
    thorough: bool = False


@dataclass(frozen=True)
class Next:
    """`thorough`: with more steps, to confirm what was found."""

    value: int
    thorough: bool = False


@dataclass(frozen=True)
class Settled:
    value: int


@dataclass(frozen=True)
class NothingFits:
    memory_bytes: int | None  # of the smallest


def next_of(tries: Sequence[Try], allowed_bytes: int) -> Next | Settled | NothingFits:
    broken = next((each.value for each in tries if each.fits is None), None)
    if broken is not None:
        return Settled(broken)  # not a matter of size: whoever runs with it says what is wrong
    points = _by_value(tries)
    if not points:
        return Next(FIRST)
    too_large = min((value for value, each in points.items() if not each.fits), default=MOST + 1)
    fitting = [points[value] for value in sorted(points) if value < too_large]
    if not fitting:
        return NothingFits(points[too_large].memory_bytes)
    best = fitting[-1]
    if best.thorough and len(tries) >= MOST_TRIES:
        return Settled(best.value)
    if not _is_full(best, too_large, allowed_bytes):
        halve = _since_the_first_that_failed(tries) >= TRUSTED_TRIES
        guess = (best.value + too_large) // 2 if halve else _end_of_line(points, best, too_large, allowed_bytes)
        value = max(best.value + 1, min(guess, _boldest(fitting, allowed_bytes), too_large - 1))
        return Next(value, thorough=any(each.thorough and not each.fits for each in tries))  # else it would again
    return Settled(best.value) if best.thorough else Next(best.value, thorough=True)


def _by_value(tries: Sequence[Try]) -> dict[int, Try]:
    """What is known of each: it fits if it always did, and takes the most that it ever took."""
    points: dict[int, Try] = {}
    for each in tries:
        before = points.get(each.value, each)
        memory = max(before.memory_bytes or 0, each.memory_bytes or 0) or None
        fits = before.fits and each.fits
        points[each.value] = Try(each.value, fits, memory, before.thorough or each.thorough)
    return points


def _is_full(best: Try, too_large: int, allowed_bytes: int) -> bool:
    if too_large - best.value <= max(1, CLOSE * best.value):
        return True
    return best.memory_bytes is not None and best.memory_bytes >= FULL * allowed_bytes


def _since_the_first_that_failed(tries: Sequence[Try]) -> int:
    return len(tries) - next((number for number, each in enumerate(tries) if not each.fits), len(tries))


def _boldest(fitting: Sequence[Try], allowed_bytes: int) -> int:
    """A try that is far too large takes the machine down with it: so many fit at worst, if what was seen of smaller
    values was too low by its noise. Of the first nobody knows what would be there without it: all may grow."""
    best, *smaller = reversed(fitting)
    if not best.memory_bytes:
        return STRIDE * best.value
    grown = best.memory_bytes if not smaller else NOISE * best.memory_bytes + _growth(best, smaller[-1])
    each = grown / (best.value - (smaller[-1].value if smaller else 0))
    room = BOLDNESS * allowed_bytes - best.memory_bytes
    return int(min(STRIDE * best.value, best.value + room / each))


def _growth(best: Try, smallest: Try) -> int:
    return max(0, (best.memory_bytes or 0) - (smallest.memory_bytes or 0))


def _end_of_line(points: Mapping[int, Try], best: Try, too_large: int, allowed_bytes: int) -> int:
    """Where the line through the largest that fits, and the smallest that didn't or one of half its size, comes to the
    aim."""
    known = {value: each.memory_bytes for value, each in points.items() if each.memory_bytes is not None}
    others = [value for value in known if value == too_large or 2 * value <= best.value]
    if best.value not in known or not others:
        return MOST
    other = max(others)
    slope = (known[other] - known[best.value]) / (other - best.value)
    return MOST if slope <= 0 else int(best.value + (AIM * allowed_bytes - known[best.value]) / slope)
