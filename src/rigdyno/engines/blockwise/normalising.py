"""Find one normalisation for the whole volume: normalising each block by itself would make its brightness jump.

The statistics come from sample boxes, always the same ones for a volume, or from all of it if it is small. They are
computed part by part, because the samples together may not fit into memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rigdyno.engines.blockwise.backends import Floats
from rigdyno.engines.blockwise.boxes import Box, Zyx, whole_box, zyx
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting
from rigdyno.engines.blockwise.interfaces import Array, Volume

SEED = 20_26

PERCENTILES = (1.0, 99.0)

BRICK = (64, 64, 64)

MOST_BRICKS = 256

PIECE = (16, 16, 16)  # part of a brick, read if the whole brick can't be

KINDS = {
    "standard": "mean 0 and deviation 1",
    "range": "the type's range, or the smallest and largest value of floats, to 0..1",
    "percentile": "the 1st and 99th percentile to 0..1",
    "none": "values as they are",
}


@dataclass(frozen=True)
class Normalisation:
    """(value - subtract) / divide, for each channel."""

    subtract: tuple[float, ...]
    divide: tuple[float, ...]
    source: str  # where the two numbers come from, for messages

    def apply(self, values: Array) -> Floats:
        answer = values.astype(np.float32)
        for channel, (subtract, divide) in enumerate(zip(self.subtract, self.divide, strict=True)):
            answer[channel] -= np.float32(subtract)
            answer[channel] /= np.float32(divide)
        return answer


def find_normalisation(kind: str, volume: Volume) -> Normalisation:
    """Return the normalisation of a volume. `kind` is one of KINDS, or two numbers: MEAN,DEVIATION."""
    if kind == "none":
        return _use_for_all_channels(volume, 0.0, 1.0, "not normalised")
    if "," in kind:
        return _use_for_all_channels(volume, *_parse_numbers(kind), "--normalise")
    if kind not in KINDS:
        raise BadSetting(f"no normalisation named '{kind}'; there are {', '.join(KINDS)}, or MEAN,DEVIATION")
    if kind == "range" and volume.dtype.kind == "u":
        return _use_for_all_channels(volume, 0.0, float(np.iinfo(volume.dtype).max), f"the range of {volume.dtype}")
    estimators = [ESTIMATORS[kind]() for _ in range(volume.channels)]
    source = _sample_values(volume, estimators)
    figures = [_estimate_channel(estimator, number, volume) for number, estimator in enumerate(estimators)]
    return Normalisation(tuple(low for low, _ in figures), tuple(width for _, width in figures), source)


def ensure_finite(values: Array, box: Box, volume: Volume, instead: float | None) -> Array:
    """Replace NaN and infinity with `instead`, or raise BadRegion with the place of the first one.

    A single NaN would spoil the output of every voxel that sees it. `box` is what was read and may extend outside the
    volume; the message names the voxel inside that it mirrors.
    """
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values
    if instead is not None:
        return np.where(np.isfinite(values), values, values.dtype.type(instead))
    channel, *inside = map(int, np.unravel_index(int(np.argmin(np.isfinite(values))), values.shape))
    place = _mirror_place(zyx(map(sum, zip(box.start, inside, strict=True))), volume.shape)
    raise BadRegion(
        f"{volume.location} has a value that isn't finite at {place} of channel {channel}; "
        "--nan VALUE replaces all of them with that value"
    )


def _mirror_place(place: Zyx, shape: Zyx) -> Zyx:
    periods = [max(1, 2 * (length - 1)) for length in shape]
    return zyx(min(at % period, -at % period) for at, period in zip(place, periods, strict=True))


def _use_for_all_channels(volume: Volume, subtract: float, divide: float, source: str) -> Normalisation:
    return Normalisation((subtract,) * volume.channels, (divide,) * volume.channels, source)


def _parse_numbers(text: str) -> tuple[float, float]:
    try:
        mean, deviation = (float(part) for part in text.split(","))
    except ValueError:
        raise BadSetting(f"--normalise takes a name or MEAN,DEVIATION, not '{text}'") from None
    if not _is_usable(mean, deviation):
        raise BadSetting(f"--normalise {text}: the deviation must be above zero, and both within float32")
    return mean, deviation


def _sample_values(volume: Volume, estimators: Sequence[ScaleEstimator]) -> str:
    """Add values of sample boxes to the estimators, and return where they are from.

    A part that can't be read is left out here and reported when its block is reached.
    """
    places = seen = 0
    refused: BadRegion | None = None
    for brick in sample_boxes(volume.shape, BRICK, MOST_BRICKS):
        values, error = _read_parts(volume, brick)
        refused, places, seen = error or refused, places + bool(values), seen + sum(part[0].size for part in values)
        for estimator, *channels in zip(estimators, *values, strict=True):
            for channel in channels:
                estimator.add(channel[np.isfinite(channel)])
    if not places and refused:
        raise refused
    everything = int(np.prod(volume.shape, dtype=object))
    return "the whole volume" if seen == everything else f"{places} places ({seen / everything:.2g} of the volume)"


def _read_parts(volume: Volume, brick: Box) -> tuple[list[Array], BadRegion | None]:
    """Read a brick; if that fails, return the pieces that can be read, and the error."""
    try:
        return [volume.read(brick).values], None
    except BadRegion as error:
        reason = error
    found = []
    for piece in sample_boxes(brick.shape, PIECE, MOST_BRICKS):
        with suppress(BadRegion):
            found.append(volume.read(piece.moved(brick.start)).values)
    return found, reason


def _estimate_channel(estimator: ScaleEstimator, number: int, volume: Volume) -> tuple[float, float]:
    if not estimator.count:
        raise BadSetting(f"channel {number} of {volume.location} has no finite value in the sampled places")
    low, width = estimator.estimate()
    if not _is_usable(low, width):
        raise BadSetting(f"channel {number} of {volume.location} is the same everywhere; try --normalise none")
    return low, width


def _is_usable(low: float, width: float) -> bool:
    """Check both in float32, the type in which they are applied."""
    with np.errstate(over="ignore"):
        return bool(np.float32(width) > 0 and np.isfinite([np.float32(low), np.float32(width)]).all())


def sample_boxes(shape: Zyx, size: Zyx, most: int) -> Iterator[Box]:
    """Yield at most `most` different boxes of a grid of boxes of this size, in the order of the grid.

    If the grid has more, they are drawn at random with a fixed seed.
    """
    counts = zyx(-(-length // edge) for length, edge in zip(shape, size, strict=True))
    total = int(np.prod(counts, dtype=object))
    if total <= most:
        chosen: list[tuple[int, ...]] = list(itertools.product(*(range(count) for count in counts)))
    else:
        generator = np.random.default_rng(SEED)
        picked = {tuple(int(generator.integers(count)) for count in counts) for _ in range(most)}
        chosen = sorted(picked)
    for place in chosen:
        start = zyx(index * edge for index, edge in zip(place, size, strict=True))
        stop = zyx(begin + edge for begin, edge in zip(start, size, strict=True))
        yield Box(start, stop).within(whole_box(shape))


class ScaleEstimator(Protocol):
    """Statistics of the values of one channel."""

    count: int  # of the values added

    def add(self, values: Array) -> None:
        """Add values, which are finite; there may be none."""

    def estimate(self) -> tuple[float, float]:
        """Return what to subtract, and what to divide by."""


class MeanAndDeviation:
    """Mean and standard deviation, combined from those of the parts."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[int, float, float]] = []

    def add(self, values: Array) -> None:
        self.count += values.size
        if values.size:
            self._parts.append((values.size, float(values.mean(dtype=np.float64)), float(values.var(dtype=np.float64))))

    def estimate(self) -> tuple[float, float]:
        counts, means, variances = np.array(self._parts).T
        mean = np.average(means, weights=counts)
        return float(mean), float(np.sqrt(np.average(variances + (means - mean) ** 2, weights=counts)))


class ValueRange:
    """Smallest value, and its distance to the largest."""

    def __init__(self) -> None:
        self.count = 0
        self._low, self._high = np.inf, -np.inf

    def add(self, values: Array) -> None:
        self.count += values.size
        self._low, self._high = float(values.min(initial=self._low)), float(values.max(initial=self._high))

    def estimate(self) -> tuple[float, float]:
        return self._low, self._high - self._low


class PercentileRange:
    """Percentiles as NumPy computes them, by linear interpolation. Integers are counted; floats are kept."""

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

    def estimate(self) -> tuple[float, float]:
        if self._floats:
            low, high = np.percentile(np.concatenate(self._floats), PERCENTILES, overwrite_input=True)
        else:
            low, high = (self._value_at_rank(share / 100 * (self.count - 1)) for share in PERCENTILES)
        return float(low), float(high) - float(low)

    def _value_at_rank(self, rank: float) -> float:
        """Return the value at a rank in sorted order, interpolated between two integers."""
        before = int(rank)
        lower, upper = np.searchsorted(np.cumsum(self._counts), [before, min(before + 1, self.count - 1)], side="right")
        return float(lower + (rank - before) * (upper - lower))


ESTIMATORS: dict[str, type[ScaleEstimator]] = {
    "standard": MeanAndDeviation,
    "range": ValueRange,
    "percentile": PercentileRange,
}
