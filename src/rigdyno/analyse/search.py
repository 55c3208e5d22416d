"""The largest value of an option that fits into a given memory: what to try next, decided from what was tried.

Memory is close to a line over the value: what the network takes, and so much for each sample. Two small tries give a
first one, and each further try a better one. Decided from the tries alone, so that a search goes on wherever it was
interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FIRST = 1
MOST = 2**20
STRIDE = 16  # at most so many times the largest that fitted: a line through two small values isn't exact
LEAST_STRIDE = 8  # while nothing has failed: two values that are close say nothing beside the noise
NEAR, NEARLY = 3, 0.85  # times the largest that fitted, and of the memory: there a try has all steps at once
# Of the memory. The peak of the same process differs by a few hundredths from start to start.
AIM, FULL, CONFIRMED = 0.935, 0.91, 0.96  # what is aimed at, what is as good as full, what a confirmed value may take
EASE, NARROW = 0.02, 1.06  # by which a failure lowers the aim that took less than this
MORE = 1.5  # times the value: if more than that may fit, memory that is nearly taken isn't full
BOLDNESS = 2  # times the memory: what a try may take at worst
NOISE = 0.05  # of the peak, by which it may have been seen too low
CLOSE = 1 / 32  # of the value, to the smallest that didn't fit
LOCAL = 32  # a line is drawn through values down to this part of the largest: others may lie on another one
ENOUGH_TRIES = 8  # then the largest that was confirmed has to do
TRUSTED_FAILURES = 2  # so often the line is followed behind a value that didn't fit; then what is left is halved


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


@dataclass(frozen=True)
class Line:
    """Memory over the value."""

    fixed_bytes: float
    each_bytes: float

    def at(self, value: float) -> float:
        return self.fixed_bytes + self.each_bytes * value

    def end(self, size: float) -> float:
        """The value that fills so much."""
        return (size - self.fixed_bytes) / self.each_bytes if self.each_bytes > 0 else MOST


def next_of(tries: Sequence[Try], allowed_bytes: int, most: int = MOST) -> Next | Settled | NothingFits:
    """`most`: a larger value means the same, such as a batch of more than all samples."""
    broken = next((each.value for each in tries if each.fits is None), None)
    if broken is not None:
        return Settled(broken)  # not a matter of size: whoever runs with it says what is wrong
    points = _by_value(tries, allowed_bytes)
    if not points:
        return Next(min(FIRST, most))
    too_large = min((value for value, each in points.items() if not each.fits), default=most + 1)
    fitting = [points[value] for value in sorted(points) if value < too_large]
    if not fitting:
        return NothingFits(points[too_large].memory_bytes)
    best, left = fitting[-1], ENOUGH_TRIES - len(tries)
    line = line_of(points.values(), at_least=best.value / LOCAL)
    full = _is_full(best, line, too_large, allowed_bytes)
    confirmed = [each.value for each in fitting if each.thorough]
    if confirmed and (left <= 0 or (best.thorough and full)):
        return Settled(max(confirmed))
    failed = [each for each in points.values() if not each.fits]
    value = _guess(line, fitting, failed, too_large, allowed_bytes)
    to_confirm = left <= 0 or (left == 1 and value > NEAR * best.value) or value <= best.value * (1 + CLOSE)
    if not best.thorough and (to_confirm or full):
        return Next(best.value, thorough=True)
    is_near = value <= NEAR * best.value and line is not None and line.at(value) >= NEARLY * allowed_bytes
    return Next(value, thorough=bool(failed) or left <= 2 or is_near)


def _by_value(tries: Sequence[Try], allowed_bytes: int) -> dict[int, Try]:
    """What is known of each: it fits if it always did, and takes the most that it ever took. What is to be confirmed
    must leave a margin, for the next start takes more or less."""
    points: dict[int, Try] = {}
    for each in tries:
        before = points.get(each.value, each)
        memory = max(before.memory_bytes or 0, each.memory_bytes or 0) or None
        margin = each.thorough and (each.memory_bytes or 0) > CONFIRMED * allowed_bytes
        fits = bool(before.fits and each.fits and not margin)
        points[each.value] = Try(each.value, fits, memory, before.thorough or each.thorough)
    return points


def _is_full(best: Try, line: Line | None, too_large: int, allowed_bytes: int) -> bool:
    """Memory that is nearly taken says little where the network alone takes nearly all of it: then many more may fit
    into what is left."""
    if too_large - best.value <= max(1, CLOSE * best.value):
        return True
    taken = best.memory_bytes is not None and best.memory_bytes >= FULL * allowed_bytes
    return taken and line is not None and line.end(allowed_bytes) <= MORE * best.value


def _guess(line: Line | None, fitting: Sequence[Try], failed: Sequence[Try], too_large: int, allowed_bytes: int) -> int:
    """Where the line ends. Each narrow failure lowers the aim: the noise is larger than was thought."""
    best = fitting[-1]
    narrow = sum((each.memory_bytes or MOST * allowed_bytes) < NARROW * allowed_bytes for each in failed)
    value = MOST if line is None else int(min(MOST, line.end((AIM - EASE * narrow) * allowed_bytes)))
    if failed and (len(failed) > TRUSTED_FAILURES or value >= too_large):
        value = (best.value + too_large) // 2
    return max(best.value + 1, min(value, _boldest(fitting, allowed_bytes), too_large - 1))


def line_of(tries: Iterable[Try], at_least: float = 0.0) -> Line | None:
    """By least squares, each try weighted by what it took: noise grows with it. None: they are too close together."""
    known = [(each.value, each.memory_bytes) for each in tries if each.memory_bytes and each.value >= at_least]
    if not known or max(known)[0] < 2 * min(known)[0]:
        return None
    weights = [1 / memory**2 for _, memory in known]
    total = sum(weights)
    middle = sum(w * value for w, (value, _) in zip(weights, known, strict=True)) / total
    level = sum(w * memory for w, (_, memory) in zip(weights, known, strict=True)) / total
    spread = sum(w * (value - middle) ** 2 for w, (value, _) in zip(weights, known, strict=True))
    shared = sum(w * (value - middle) * (memory - level) for w, (value, memory) in zip(weights, known, strict=True))
    each = max(0.0, shared / spread)
    return Line(level - each * middle, each)


def _boldest(fitting: Sequence[Try], allowed_bytes: int) -> int:
    """A try that is far too large wastes its time, and others' memory: so many fit at worst, if what was seen of
    smaller values was too low by its noise. Of the first nobody knows what would be there without it: all may grow."""
    best, *smaller = reversed(fitting)
    if not best.memory_bytes:
        return STRIDE * best.value
    grown = best.memory_bytes if not smaller else NOISE * best.memory_bytes + _growth(best, smaller[-1])
    each = grown / (best.value - (smaller[-1].value if smaller else 0))
    room = BOLDNESS * allowed_bytes - best.memory_bytes
    return int(min(STRIDE * best.value, max(best.value + room / each, LEAST_STRIDE * best.value)))


def _growth(best: Try, smallest: Try) -> int:
    return max(0, (best.memory_bytes or 0) - (smallest.memory_bytes or 0))
