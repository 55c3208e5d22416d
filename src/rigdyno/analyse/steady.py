"""Where a stream of step durations becomes steady: what comes before is warm-up.

The end of a stream says what steady is; its beginning is cut as long as it differs from that. A change later on is no
warm-up: it makes the stream one that never settled.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rigdyno.errors import DamagedRun

Floats = NDArray[np.float64]

# Medians of 40 segments in a row, or up to three times as many where they don't divide evenly: a hiccup of one step
# doesn't move them, and a cut is right to 2.5 % of the run.
SEGMENTS = 40
# Levels that take turns last longer: in noisy streams only medians over more steps tell them apart.
LONG_SEGMENTS = 10
# Fewer steps than this can't show that they are alike.
MIN_STEPS = 5
# Warm-up may be half of a stream at most: the other half must be there to say what steady is.
MAX_WARM_UP_SHARE = 0.5
# A segment within 3 % of the later level is at that level: processes of the same code differ by up to 1.5 % anyway.
LEVEL_TOLERANCE = 0.03
# A shorter or longer early part whose median is within 5 % of the rest's is left in: machines wander by that much.
SHIFT_TOLERANCE = 0.05
# A single step within 10 % is in place, whatever the noise: a compilation or a first allocation costs far more.
STEP_TOLERANCE = 0.10
# How many standard deviations of the noise itself are no difference. Dozens of segments are looked at, so 3 is too few.
NOISE_WIDTH = 4.0
# A slow step among the first five is warm-up (lazy initialisation, a second compilation); later it is a hiccup.
EARLY_STEPS = 5
# Levels that differ by a tenth are different levels; a shared machine wanders by less while nothing happens to it.
CHANGED_LEVEL = 0.10
# One in seven segments may be off: a neighbour's burst of that length doesn't move the median of the stream.
MAX_CHANGED_SHARE = 0.15
# Who lies closest together: just below half, so that one of two levels that take turns is found as a whole.
CROWD_SHARE = 0.4
# A trend that moves the step time by a tenth from begin to end is one that hasn't ended.
TREND_CHANGE = 0.10
# Mann-Kendall's z of a trend; random order reaches 3 once in 370 streams.
TREND_Z = 3.0
# Fewer in perfect order are so by chance too often; five are once in 60 streams, and eight reach the z above.
TREND_MIN_SEGMENTS = 5


class Steady(NamedTuple):
    start: int  # index of the first steady step
    settled: bool
    reason: str


class Trend(NamedTuple):
    change: float  # from begin to end, as a share of the median
    certain: bool  # by Mann and Kendall's test


def steady_window(durations: ArrayLike) -> Steady:
    """The cut, and whether what follows it keeps one level. Of a stream that never settled the cut is a best guess."""
    steps = checked_durations(durations)
    if len(steps) < MIN_STEPS:
        return Steady(0, False, f"{len(steps)} steps are too few to tell; it takes {MIN_STEPS}")
    start = max(_level_cut(steps), _early_cut(steps))
    start += _shift_cut(steps[start:])
    if start > MAX_WARM_UP_SHARE * len(steps):
        half = len(steps) // 2
        return Steady(half, False, "the level still changed in the second half of the stream")
    unrest = _unrest(steps[start:])
    return Steady(start, unrest is None, unrest or _cut_sentence(steps, start))


def settled_so_far(durations: ArrayLike) -> bool:
    """Whether warm-up may end here, with enough steps behind the cut to tell: for the meter, which asks repeatedly."""
    found = steady_window(durations)
    return found.settled and np.size(durations) - found.start >= MIN_STEPS


def trend(durations: ArrayLike) -> Trend:
    """Theil and Sen's slope over the segments' medians, with Mann and Kendall's test of it."""
    medians = segment_medians(checked_durations(durations))
    count = len(medians)
    if count < TREND_MIN_SEGMENTS:
        return Trend(0.0, False)
    early, late = _pairs(count)
    rises = medians[late] - medians[early]
    change = median_of(rises / (late - early)) * (count - 1) / median_of(medians)
    balance = abs(float(np.sign(rises).sum()))
    by_chance = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return Trend(change, balance > TREND_Z * by_chance or balance == len(rises))


def median_of(values: Floats) -> float:
    """As numpy has it, without what numpy does first for arrays of any kind: a long run asks for thousands."""
    if len(values) == 0:
        return math.nan
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    ordered = np.partition(values, (half - 1, half))
    return float((ordered[half - 1] + ordered[half]) / 2)


@cache
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Every two of so many; segments are 120 at most."""
    return np.triu_indices(count, 1)


def checked_durations(durations: ArrayLike) -> Floats:
    steps = np.asarray(durations, dtype=float).reshape(-1)
    if not np.all(np.isfinite(steps) & (steps > 0)):
        raise DamagedRun("a step took no time, or less, or isn't a number: the clock stood still or jumped back")
    return steps


def segment_medians(steps: Floats, segments: int = SEGMENTS) -> Floats:
    """Of equal segments in a row; steps that fill no whole segment go to the first one, which is warm-up's anyway."""
    size = _segment_size(len(steps), segments)
    rest = len(steps) % size
    whole = np.median(steps[rest:].reshape(-1, size), axis=1)
    if rest:
        whole[0] = median_of(steps[: rest + size])
    return whole


def _segment_size(count: int, segments: int = SEGMENTS) -> int:
    """Odd: the median of two is their mean, which a hiccup does move."""
    size = max(1, count // segments)
    return size if size % 2 else size - 1


def _level_cut(steps: Floats) -> int:
    """The first step of the first two segments in a row that are at the level of the second half."""
    medians, size = segment_medians(steps), _segment_size(len(steps))
    later = medians[len(medians) // 2 :]
    level = median_of(later)
    noise = max(_deviation(later), _median_noise(steps[len(steps) // 2 :], size))
    first = _first_two(np.abs(medians - level) <= max(LEVEL_TOLERANCE * level, NOISE_WIDTH * noise))
    return 0 if first == 0 else first * size + len(steps) % size


def _early_cut(steps: Floats) -> int:
    """Behind the leading steps that are out of place one by one: a compilation is one step among thousands."""
    later = steps[len(steps) // 2 :]
    level = median_of(later)
    in_place = np.abs(steps - level) <= max(STEP_TOLERANCE * level, NOISE_WIDTH * _deviation(later))
    early = min(EARLY_STEPS, len(steps) // 4)
    slow_early = np.flatnonzero(~in_place[:early] & (steps[:early] > level))
    return max(_first_two(in_place), int(slow_early[-1]) + 1 if len(slow_early) else 0)


def _shift_cut(steps: Floats) -> int:
    """Behind an early level that is too close to the later one to be told step by step, but not all in all."""
    if len(steps) < 2 * MIN_STEPS:
        return 0
    clipped = _without_outliers(steps)
    cut, gain = _best_split(clipped)
    half = len(steps) // 2
    certain = math.sqrt(gain) > NOISE_WIDTH * _lasting_noise(clipped[half:])
    if cut > half or not certain or gain <= _gain_of_line(clipped):  # late, or chance, or a trend: no warm-up
        return 0
    before, after = median_of(steps[:cut]), median_of(steps[cut:])
    return cut if abs(before - after) > SHIFT_TOLERANCE * after else 0


def _without_outliers(steps: Floats) -> Floats:
    middle, width = median_of(steps), 3 * _deviation(steps)
    return np.clip(steps, middle - width, middle + width)


def _best_split(values: Floats) -> tuple[int, float]:
    """Where two levels explain most of the values' squares, and how much: divided by the variance of their noise, that
    is the square of the difference in standard deviations."""
    count = len(values)
    before = np.arange(1, count)
    gains = np.cumsum(values - values.mean())[:-1] ** 2 * (count / (before * (count - before)))
    best = int(np.argmax(gains))
    return best + 1, float(gains[best])


def _gain_of_line(values: Floats) -> float:
    """How much of the squares a straight line explains: more than two levels do, if it is a trend."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    return float(place @ values) ** 2 / float(place @ place)


def _lasting_noise(values: Floats) -> float:
    """The standard deviation of one value, as means of several show it: correlated noise averages out more slowly."""
    sizes = (1, max(1, len(values) // SEGMENTS), max(1, len(values) // 10))
    means = [values[len(values) % size :].reshape(-1, size).mean(axis=1) for size in sizes]
    return max(float(mean.std()) * math.sqrt(size) for size, mean in zip(sizes, means, strict=True))


def _first_two(good: NDArray[np.bool_]) -> int:
    """Index of the first of two that are good in a row."""
    pairs = np.flatnonzero(good[:-1] & good[1:])
    return int(pairs[0]) if len(pairs) else len(good)


def _unrest(steps: Floats) -> str | None:
    """Why these steps are not one level with noise around it."""
    change, certain = trend(steps)
    if certain and abs(change) > TREND_CHANGE:
        return f"step times {'rise' if change > 0 else 'fall'} all the way, by {100 * abs(change):.0f} %"
    changed = max(_changed_share(steps, SEGMENTS), _changed_share(steps, LONG_SEGMENTS))
    return f"{100 * changed:.0f} % of the steps were at another level" if changed > MAX_CHANGED_SHARE else None


def _changed_share(steps: Floats, segments: int) -> float:
    medians = segment_medians(steps, segments)
    level, noise = _main_level(medians), _median_noise(steps, _segment_size(len(steps), segments))
    changed = np.abs(medians - level) > max(CHANGED_LEVEL * level, NOISE_WIDTH * noise)
    return float(_in_company(changed).mean())


def _main_level(medians: Floats) -> float:
    """Around which they lie closest together; the median of two levels that share a stream lies between them."""
    ordered = np.sort(medians)
    crowd = math.ceil(CROWD_SHARE * len(ordered))
    first = int(np.argmin(ordered[crowd - 1 :] - ordered[: len(ordered) - crowd + 1]))
    return median_of(ordered[first : first + crowd])


def _in_company(changed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those whose neighbour is changed as well: hiccups stand alone, levels last."""
    pairs = changed[:-1] & changed[1:]
    return np.concatenate((pairs, [False])) | np.concatenate(([False], pairs))


def _deviation(values: Floats) -> float:
    """The standard deviation, by the median of deviations: outliers don't count."""
    return 1.4826 * median_of(np.abs(values - median_of(values)))


def _median_noise(steps: Floats, size: int) -> float:
    """How far medians of `size` steps scatter by step-to-step noise alone, which a change of level doesn't raise."""
    if len(steps) < 2:
        return 0.0
    per_step = median_of(np.abs(np.diff(steps))) / 0.954  # of a normal distribution
    return per_step * (1.2533 / math.sqrt(size) if size > 1 else 1.0)


def _cut_sentence(steps: Floats, start: int) -> str:
    if start == 0:
        return "steady from the first step"
    slower = median_of(steps[:start]) >= median_of(steps[start:])
    return f"the beginning was {'slower' if slower else 'faster'} than the rest"
