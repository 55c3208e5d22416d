"""Where a stream of step durations becomes steady: what comes before is warm-up.

The end of a stream says what steady is; its beginning is cut as long as it differs from that. A change later on is no
warm-up: it makes the stream one that never settled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rigdyno.errors import DamagedRun

Floats = NDArray[np.float64]

# Medians of 40 segments in a row, or up to three times as many where they don't divide evenly: a hiccup of one step
# doesn't move them, and a cut is right to 2.5 % of the run.
SEGMENTS = 40
# Fewer steps than this can't show that they are alike.
MIN_STEPS = 5
# Warm-up may be half of a stream at most: the other half must be there to say what steady is.
MAX_WARM_UP_SHARE = 0.5
# A segment within 3 % of the later level is at that level: processes of the same code differ by up to 1.5 % anyway.
LEVEL_TOLERANCE = 0.03
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
    early, late = np.triu_indices(count, 1)
    rises = medians[late] - medians[early]
    change = float(np.median(rises / (late - early))) * (count - 1) / float(np.median(medians))
    balance = abs(float(np.sign(rises).sum()))
    by_chance = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return Trend(change, balance > TREND_Z * by_chance or balance == len(rises))


def checked_durations(durations: ArrayLike) -> Floats:
    steps = np.asarray(durations, dtype=float).reshape(-1)
    if not np.all(np.isfinite(steps) & (steps > 0)):
        raise DamagedRun("a step took no time, or less, or isn't a number: the clock stood still or jumped back")
    return steps


def segment_medians(steps: Floats) -> Floats:
    """Of equal segments in a row; steps that fill no whole segment go to the first one, which is warm-up's anyway."""
    size = _segment_size(len(steps))
    rest = len(steps) % size
    whole = np.median(steps[rest:].reshape(-1, size), axis=1)
    if rest:
        whole[0] = np.median(steps[: rest + size])
    return whole


def _segment_size(count: int) -> int:
    """Odd: the median of two is their mean, which a hiccup does move."""
    size = max(1, count // SEGMENTS)
    return size if size % 2 else size - 1


def _level_cut(steps: Floats) -> int:
    """The first step of the first two segments in a row that are at the level of the second half."""
    medians, size = segment_medians(steps), _segment_size(len(steps))
    later = medians[len(medians) // 2 :]
    level = float(np.median(later))
    noise = max(_deviation(later), _median_noise(steps[len(steps) // 2 :], size))
    first = _first_two(np.abs(medians - level) <= max(LEVEL_TOLERANCE * level, NOISE_WIDTH * noise))
    return 0 if first == 0 else first * size + len(steps) % size


def _early_cut(steps: Floats) -> int:
    """Behind the leading steps that are out of place one by one: a compilation is one step among thousands."""
    later = steps[len(steps) // 2 :]
    level = float(np.median(later))
    in_place = np.abs(steps - level) <= max(STEP_TOLERANCE * level, NOISE_WIDTH * _deviation(later))
    early = min(EARLY_STEPS, len(steps) // 4)
    slow_early = np.flatnonzero(~in_place[:early] & (steps[:early] > level))
    return max(_first_two(in_place), int(slow_early[-1]) + 1 if len(slow_early) else 0)


def _first_two(good: NDArray[np.bool_]) -> int:
    """Index of the first of two that are good in a row."""
    pairs = np.flatnonzero(good[:-1] & good[1:])
    return int(pairs[0]) if len(pairs) else len(good)


def _unrest(steps: Floats) -> str | None:
    """Why these steps are not one level with noise around it."""
    change, certain = trend(steps)
    if certain and abs(change) > TREND_CHANGE:
        return f"step times {'rise' if change > 0 else 'fall'} all the way, by {100 * abs(change):.0f} %"
    medians = segment_medians(steps)
    level = float(np.median(medians))
    noise = _median_noise(steps, _segment_size(len(steps)))
    changed = _in_company(np.abs(medians - level) > max(CHANGED_LEVEL * level, NOISE_WIDTH * noise)).mean()
    return f"{100 * changed:.0f} % of the steps were at another level" if changed > MAX_CHANGED_SHARE else None


def _in_company(changed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those whose neighbour is changed as well: hiccups stand alone, levels last."""
    pairs = changed[:-1] & changed[1:]
    return np.concatenate((pairs, [False])) | np.concatenate(([False], pairs))


def _deviation(values: Floats) -> float:
    """The standard deviation, by the median of deviations: outliers don't count."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _median_noise(steps: Floats, size: int) -> float:
    """How far medians of `size` steps scatter by step-to-step noise alone, which a change of level doesn't raise."""
    if len(steps) < 2:
        return 0.0
    per_step = float(np.median(np.abs(np.diff(steps)))) / 0.954  # of a normal distribution
    return per_step * (1.2533 / math.sqrt(size) if size > 1 else 1.0)


def _cut_sentence(steps: Floats, start: int) -> str:
    if start == 0:
        return "steady from the first step"
    slower = float(np.median(steps[:start])) >= float(np.median(steps[start:]))
    return f"the first {start} steps were {'slower' if slower else 'faster'} than the rest"
