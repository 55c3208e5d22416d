"""Places in a volume that stand for the whole of it: always the same ones, and all of it where it is small."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole, zyx

SEED = 20_26


def bricks(shape: Zyx, size: Zyx, most: int) -> Iterator[Box]:
    """At most so many boxes of that size, on a grid of that size, none twice; in the order of the grid."""
    counts = zyx(-(-length // edge) for length, edge in zip(shape, size, strict=True))
    total = int(np.prod(counts, dtype=object))
    if total <= most:
        chosen: list[tuple[int, ...]] = list(itertools.product(*(range(count) for count in counts)))
    else:
        chance = np.random.default_rng(SEED)
        picked = {tuple(int(chance.integers(count)) for count in counts) for _ in range(most)}
        chosen = sorted(picked)
    for place in chosen:
        start = zyx(index * edge for index, edge in zip(place, size, strict=True))
        stop = zyx(begin + edge for begin, edge in zip(start, size, strict=True))
        yield Box(start, stop).within(whole(shape))
