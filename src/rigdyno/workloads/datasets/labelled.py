"""Labelled images: their division among ranks, their order, and synthetic images that can be learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rigdyno.contracts import CannotRun, WorkerPlace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESIDENT = "all images are on the device from the start: loading isn't measured"

_BLOCK = 4  # synthetic images consist of blocks of this size, which a small convolution can see

_AT_ONCE = 5000  # synthetic images made at a time, to keep the measured peak memory low


@dataclass(frozen=True)
class ImageSet:
    """The training or the test images, as bytes."""

    images: NDArray[np.uint8]  # count x (channels x) height x width
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def share(self, rank: int, world_size: int) -> ImageSet:
        """Return one rank's images. All ranks get equally many, so that none waits for another's last batch."""
        if world_size == 1:
            return self
        each = len(self) // world_size
        return ImageSet(self.images[rank::world_size][:each], self.labels[rank::world_size][:each])

    def take(self, count: int) -> ImageSet:
        """Return the first `count` images."""
        return ImageSet(self.images[:count], self.labels[:count])

    def skip(self, count: int) -> ImageSet:
        """Return all but the first `count` images."""
        return ImageSet(self.images[count:], self.labels[count:])


@dataclass(frozen=True)
class Source:
    train: ImageSet
    test: ImageSet
    notes: tuple[str, ...]  # origin of the images


def take_share(train: ImageSet, place: WorkerPlace, batch_size: int) -> ImageSet:
    mine = train.share(place.rank, place.world_size)
    if batch_size > len(mine):
        raise CannotRun(f"batch_size {batch_size} is larger than the {len(mine)} images of a rank")
    return mine


def epoch_orders(images: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the shuffled indices of all images, one order per epoch."""
    import numpy as np

    random = np.random.default_rng(seed)
    while True:
        yield random.permutation(images)


def make_images(seed: int, classes: int, shape: Sequence[int], count: int) -> ImageSet:
    """Make synthetic images. Each class is a pattern of blocks under noise: easy to learn, and as expensive as real
    images."""
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
    return ImageSet(images, labels)
