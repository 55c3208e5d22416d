"""Labelled images, whatever they show: who gets which of them, in which order, and made-up ones that can be learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rigdyno.contracts import CannotRun, Place

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESIDENT = "all images lie on the device from the start: loading isn't measured"

_BLOCK = 4  # made-up images consist of blocks that a small convolution can see
_AT_ONCE = 5000  # made at a time: the peak of a process is a figure here


@dataclass(frozen=True)
class Part:
    """The training or the test images, as bytes."""

    images: NDArray[np.uint8]  # count x (channels x) height x width
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def share(self, rank: int, world_size: int) -> Part:
        """One rank's images. All ranks have equally many, so that none waits for another's last batch."""
        if world_size == 1:
            return self
        each = len(self) // world_size
        return Part(self.images[rank::world_size][:each], self.labels[rank::world_size][:each])

    def first(self, count: int) -> Part:
        return Part(self.images[:count], self.labels[:count])

    def behind(self, count: int) -> Part:
        return Part(self.images[count:], self.labels[count:])


@dataclass(frozen=True)
class Source:
    train: Part
    test: Part
    notes: tuple[str, ...]  # which images these are


def share_of(train: Part, place: Place, batch_size: int) -> Part:
    mine = train.share(place.rank, place.world_size)
    if batch_size > len(mine):
        raise CannotRun(f"batch_size {batch_size} is more than the {len(mine)} images of a rank")
    return mine


def orders(images: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Of each epoch: the numbers of all images, shuffled."""
    import numpy as np

    random = np.random.default_rng(seed)
    while True:
        yield random.permutation(images)


def made_up(seed: int, classes: int, shape: Sequence[int], count: int) -> Part:
    """Each class is a pattern of blocks under noise: easy to learn, and of the cost of the real images."""
    import numpy as np

    random = np.random.default_rng(seed)
    coarse = random.integers(0, 128, (classes, *shape[:-2], *(side // _BLOCK for side in shape[-2:])), dtype=np.uint8)
    patterns = coarse.repeat(_BLOCK, axis=-1).repeat(_BLOCK, axis=-2)
    labels = random.integers(0, classes, count, dtype=np.uint8)
    images = np.empty((count, *shape), dtype=np.uint8)
    for start in range(0, count, _AT_ONCE):
        chosen = labels[start : start + _AT_ONCE]
        noise = random.integers(0, 128, (len(chosen), *shape), dtype=np.uint8)
        np.add(patterns[chosen], noise, out=images[start : start + _AT_ONCE])
    return Part(images, labels)
