"""One set of figures for the whole volume: a block must not be brighter because its neighbour is dark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from rigdyno.engines.blockwise.backends import Floats
from rigdyno.engines.blockwise.boxes import Box, Zyx, zyx
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting
from rigdyno.engines.blockwise.ports import Array, Volume
from rigdyno.engines.blockwise.sampling import bricks
from rigdyno.engines.blockwise.spreads import SPREADS, Spread

BRICK = (64, 64, 64)
MOST_BRICKS = 256
PIECE = (16, 16, 16)  # of a brick that can't be read whole
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
    source: str  # what the figures were taken from

    def apply(self, values: Array) -> Floats:
        answer = values.astype(np.float32)
        for channel, (subtract, divide) in enumerate(zip(self.subtract, self.divide, strict=True)):
            answer[channel] -= np.float32(subtract)
            answer[channel] /= np.float32(divide)
        return answer


def normalisation(kind: str, volume: Volume) -> Normalisation:
    """`kind` is one of KINDS, or two numbers: what to subtract and what to divide by."""
    if kind == "none":
        return _same(volume, 0.0, 1.0, "not normalised")
    if "," in kind:
        return _same(volume, *_given(kind), "--normalise")
    if kind not in KINDS:
        raise BadSetting(f"no normalisation named '{kind}'; there are {', '.join(KINDS)}, or MEAN,DEVIATION")
    if kind == "range" and volume.dtype.kind == "u":
        return _same(volume, 0.0, float(np.iinfo(volume.dtype).max), f"the range of {volume.dtype}")
    spreads = [SPREADS[kind]() for _ in range(volume.channels)]
    source = _look(volume, spreads)
    figures = [_usable(spread, number, volume) for number, spread in enumerate(spreads)]
    return Normalisation(tuple(low for low, _ in figures), tuple(width for _, width in figures), source)


def finite(values: Array, box: Box, volume: Volume, instead: float | None) -> Array:
    """A single NaN would spoil every answer that sees it, and nobody would know from where it came.

    `box` is what was read, and may reach outside of the volume: the place that is named lies inside.
    """
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values
    if instead is not None:
        return np.where(np.isfinite(values), values, values.dtype.type(instead))
    channel, *inside = map(int, np.unravel_index(int(np.argmin(np.isfinite(values))), values.shape))
    place = _mirrored(zyx(map(sum, zip(box.start, inside, strict=True))), volume.shape)
    raise BadRegion(
        f"{volume.location} has a value that isn't finite at {place} of channel {channel}; "
        "--nan VALUE reads all such as that value"
    )


def _mirrored(place: Zyx, shape: Zyx) -> Zyx:
    periods = [max(1, 2 * (length - 1)) for length in shape]
    return zyx(min(at % period, -at % period) for at, period in zip(place, periods, strict=True))


def _same(volume: Volume, subtract: float, divide: float, source: str) -> Normalisation:
    return Normalisation((subtract,) * volume.channels, (divide,) * volume.channels, source)


def _given(text: str) -> tuple[float, float]:
    try:
        mean, deviation = (float(part) for part in text.split(","))
    except ValueError:
        raise BadSetting(f"--normalise takes a name or MEAN,DEVIATION, not '{text}'") from None
    if not _is_usable(mean, deviation):
        raise BadSetting(f"--normalise {text}: the deviation must be above zero, and both within float32")
    return mean, deviation


def _look(volume: Volume, spreads: Sequence[Spread]) -> str:
    """Where; a part that can't be read is said when its block is reached."""
    places = seen = 0
    refused: BadRegion | None = None
    for brick in bricks(volume.shape, BRICK, MOST_BRICKS):
        values, error = _readable(volume, brick)
        refused, places, seen = error or refused, places + bool(values), seen + sum(part[0].size for part in values)
        for spread, *channels in zip(spreads, *values, strict=True):
            for channel in channels:
                spread.add(channel[np.isfinite(channel)])
    if not places and refused:
        raise refused
    everything = int(np.prod(volume.shape, dtype=object))
    return "the whole volume" if seen == everything else f"{places} places ({seen / everything:.2g} of the volume)"


def _readable(volume: Volume, brick: Box) -> tuple[list[Array], BadRegion | None]:
    """All of it, or else those of its pieces that can be read, with the reason."""
    try:
        return [volume.read(brick).values], None
    except BadRegion as error:
        reason = error
    found = []
    for piece in bricks(brick.shape, PIECE, MOST_BRICKS):
        with suppress(BadRegion):
            found.append(volume.read(piece.moved(brick.start)).values)
    return found, reason


def _usable(spread: Spread, number: int, volume: Volume) -> tuple[float, float]:
    if not spread.count:
        raise BadSetting(f"channel {number} of {volume.location} has no finite value where it was looked at")
    low, width = spread.figures()
    if not _is_usable(low, width):
        raise BadSetting(f"channel {number} of {volume.location} is the same everywhere; try --normalise none")
    return low, width


def _is_usable(low: float, width: float) -> bool:
    """In float32, which is what they are applied in."""
    with np.errstate(over="ignore"):
        return bool(np.float32(width) > 0 and np.isfinite([np.float32(low), np.float32(width)]).all())
