"""Find where a stream of step durations becomes steady; the steps before that are the warm-up.

The end of the stream defines the steady level. The beginning is cut as long as it differs from that level. A later
change of level is not warm-up: the stream then counts as never settled.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rigdyno.base.errors import DamagedRun

Floats = NDArray[np.float64]

# Medians of 40 consecutive segments, or up to three times as many if the steps don't divide evenly. One slow step
# doesn't change a median, and the cut is exact to 2.5 % of the run.
SEGMENTS = 40

# Alternating levels last longer: in noisy streams only medians over more steps tell them apart.
LONG_SEGMENTS = 10

# With fewer steps, a stream can't show that it is steady.
MIN_STEPS = 5

# Warm-up may be at most half of a stream: the other half defines the steady level.
MAX_WARM_UP_SHARE = 0.5

# A segment within 3 % of the later level is at that level: processes of the same code differ by up to 1.5 % anyway.
LEVEL_TOLERANCE = 0.03

# An early part whose median is within 5 % of the rest's is kept: machines vary by that much.
SHIFT_TOLERANCE = 0.05

# A single step within 10 % of the level belongs to it: a compilation or a first allocation costs far more.
STEP_TOLERANCE = 0.10

# Differences below this many standard deviations of the noise don't count. Dozens of segments are tested: 3 is too few.
NOISE_WIDTH = 4.0

# A slow step among the first five is warm-up (lazy initialisation, a second compilation); later it is an outlier.
EARLY_STEPS = 5

# Levels that differ by 10 % are different; an undisturbed shared machine varies by less.
CHANGED_LEVEL = 0.10

# One segment in seven may be at another level: a burst of that length doesn't change the median of the stream.
MAX_CHANGED_SHARE = 0.15

# The main level is where this share of segments is closest together: just below half, to find one of two levels.
CROWD_SHARE = 0.4

# A trend that changes the step time by 10 % from begin to end: the stream hasn't settled.
TREND_CHANGE = 0.10

# Mann and Kendall's z of a trend; a random order reaches 3 in one of 370 streams.
TREND_Z = 3.0

# Fewer segments are in perfect order by chance too often; five are in one of 60 streams, and eight reach the z above.
TREND_MIN_SEGMENTS = 5


class Steady(NamedTuple):
    start: int  # index of the first steady step
    settled: bool
    reason: str


class Trend(NamedTuple):
    change: float  # from begin to end, as a share of the median
    certain: bool  # by Mann and Kendall's test


def steady_window(durations: ArrayLike) -> Steady:
    """Return the end of the warm-up, and whether the rest stays at one level.

    For a stream that never settled, the cut is a best guess.
    """
    steps = check_durations(durations)
    if len(steps) < MIN_STEPS:
        return Steady(0, False, f"{len(steps)} steps are too few to tell; it takes {MIN_STEPS}")
    start = max(_level_cut(steps), _early_cut(steps))
    start += _shift_cut(steps[start:])
    if start > MAX_WARM_UP_SHARE * len(steps):
        half = len(steps) // 2
        return Steady(half, False, "the level still changed in the second half of the stream")
    unrest = _why_not_steady(steps[start:])
    return Steady(start, unrest is None, unrest or _cut_sentence(steps, start))


def settled_so_far(durations: ArrayLike) -> bool:
    """Tell whether warm-up may end now, with enough steps after the cut; the meter asks this repeatedly."""
    found = steady_window(durations)
    return found.settled and np.size(durations) - found.start >= MIN_STEPS


def trend(durations: ArrayLike) -> Trend:
    """Return Theil and Sen's slope over the medians of segments, with Mann and Kendall's test."""
    medians = segment_medians(check_durations(durations))
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
    """Return the same as np.median with less overhead: a long run needs thousands of medians."""
    if len(values) == 0:
        return math.nan
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    ordered = np.partition(values, (half - 1, half))
    return float((ordered[half - 1] + ordered[half]) / 2)


@cache
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of all pairs of segments, of which there are at most 120."""
    return np.triu_indices(count, 1)


def check_durations(durations: ArrayLike) -> Floats:
    steps = np.asarray(durations, dtype=float).reshape(-1)
    if not np.all(np.isfinite(steps) & (steps > 0)):
        raise DamagedRun("a step took no time, or less, or isn't a number: the clock stood still or jumped back")
    return steps


def segment_medians(steps: Floats, segments: int = SEGMENTS) -> Floats:
    """Return the medians of equal segments; the first, which is warm-up anyway, takes the steps that are left over."""
    size = _segment_size(len(steps), segments)
    rest = len(steps) % size
    whole = np.median(steps[rest:].reshape(-1, size), axis=1)
    if rest:
        whole[0] = median_of(steps[: rest + size])
    return whole


def _segment_size(count: int, segments: int = SEGMENTS) -> int:
    """Return an odd size: the median of an even number is a mean, which an outlier does change."""
    size = max(1, count // segments)
    return size if size % 2 else size - 1


def _level_cut(steps: Floats) -> int:
    """Return the first step of the first two consecutive segments at the level of the second half."""
    medians, size = segment_medians(steps), _segment_size(len(steps))
    later = medians[len(medians) // 2 :]
    level = median_of(later)
    noise = max(_deviation(later), _median_noise(steps[len(steps) // 2 :], size))
    first = _first_pair(np.abs(medians - level) <= max(LEVEL_TOLERANCE * level, NOISE_WIDTH * noise))
    return 0 if first == 0 else first * size + len(steps) % size


def _early_cut(steps: Floats) -> int:
    """Return the first step after the single outliers at the beginning: a compilation is one step among thousands."""
    later = steps[len(steps) // 2 :]
    level = median_of(later)
    in_place = np.abs(steps - level) <= max(STEP_TOLERANCE * level, NOISE_WIDTH * _deviation(later))
    early = min(EARLY_STEPS, len(steps) // 4)
    slow_early = np.flatnonzero(~in_place[:early] & (steps[:early] > level))
    return max(_first_pair(in_place), int(slow_early[-1]) + 1 if len(slow_early) else 0)


def _shift_cut(steps: Floats) -> int:
    """Return the end of an early level that differs from the later one only on average, not step by step."""
    if len(steps) < 2 * MIN_STEPS:
        return 0
    clipped = _clip_outliers(steps)
    cut, gain = _best_split(clipped)
    half = len(steps) // 2
    certain = math.sqrt(gain) > NOISE_WIDTH * _lasting_noise(clipped[half:])
    if cut > half or not certain or gain <= _gain_of_line(clipped):  # too late, by chance, or a trend: not warm-up
        return 0
    before, after = median_of(steps[:cut]), median_of(steps[cut:])
    return cut if abs(before - after) > SHIFT_TOLERANCE * after else 0


def _clip_outliers(steps: Floats) -> Floats:
    middle, width = median_of(steps), 3 * _deviation(steps)
    return np.clip(steps, middle - width, middle + width)


def _best_split(values: Floats) -> tuple[int, float]:
    """Return the split into two levels that explains most of the sum of squares, and how much it explains.

    Divided by the variance of the noise, that is the squared difference in standard deviations.
    """
    count = len(values)
    before = np.arange(1, count)
    gains = np.cumsum(values - values.mean())[:-1] ** 2 * (count / (before * (count - before)))
    best = int(np.argmax(gains))
    return best + 1, float(gains[best])


def _gain_of_line(values: Floats) -> float:
    """Return how much of the sum of squares a straight line explains; for a trend, more than two levels do."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    return float(place @ values) ** 2 / float(place @ place)


def _lasting_noise(values: Floats) -> float:
    """Return the standard deviation of a value as seen in means of several: correlated noise averages out slowly."""
    sizes = (1, max(1, len(values) // SEGMENTS), max(1, len(values) // 10))
    means = [values[len(values) % size :].reshape(-1, size).mean(axis=1) for size in sizes]
    return max(float(mean.std()) * math.sqrt(size) for size, mean in zip(sizes, means, strict=True))


def _first_pair(good: NDArray[np.bool_]) -> int:
    """Return the index of the first of two consecutive good values."""
    pairs = np.flatnonzero(good[:-1] & good[1:])
    return int(pairs[0]) if len(pairs) else len(good)


def _why_not_steady(steps: Floats) -> str | None:
    """Return why these steps aren't one level with noise; None if they are."""
    change, certain = trend(steps)
    if certain and abs(change) > TREND_CHANGE:
        return f"step times {'rise' if change > 0 else 'fall'} all the way, by {100 * abs(change):.0f} %"
    changed = max(_changed_share(steps, SEGMENTS), _changed_share(steps, LONG_SEGMENTS))
    return f"{100 * changed:.0f} % of the steps were at another level" if changed > MAX_CHANGED_SHARE else None


def _changed_share(steps: Floats, segments: int) -> float:
    medians = segment_medians(steps, segments)
    level, noise = _main_level(medians), _median_noise(steps, _segment_size(len(steps), segments))
    changed = np.abs(medians - level) > max(CHANGED_LEVEL * level, NOISE_WIDTH * noise)
    return float(_with_changed_neighbour(changed).mean())


def _main_level(medians: Floats) -> float:
    """Return the level around which the medians are closest together; their median may be between two levels."""
    ordered = np.sort(medians)
    crowd = math.ceil(CROWD_SHARE * len(ordered))
    first = int(np.argmin(ordered[crowd - 1 :] - ordered[: len(ordered) - crowd + 1]))
    return median_of(ordered[first : first + crowd])


def _with_changed_neighbour(changed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep changed segments with a changed neighbour: outliers are single, levels last."""
    pairs = changed[:-1] & changed[1:]
    return np.concatenate((pairs, [False])) | np.concatenate(([False], pairs))


def _deviation(values: Floats) -> float:
    """Return the standard deviation by the median absolute deviation, which outliers don't affect."""
    return 1.4826 * median_of(np.abs(values - median_of(values)))


def _median_noise(steps: Floats, size: int) -> float:
    """Return the scatter of medians of `size` steps by step-to-step noise alone, without changes of level."""
    if len(steps) < 2:
        return 0.0
    per_step = median_of(np.abs(np.diff(steps))) / 0.954  # for a normal distribution
    return per_step * (1.2533 / math.sqrt(size) if size > 1 else 1.0)


def _cut_sentence(steps: Floats, start: int) -> str:
    if start == 0:
        return "steady from the first step"
    slower = median_of(steps[:start]) >= median_of(steps[start:])
    return f"the beginning was {'slower' if slower else 'faster'} than the rest"
