"""MNIST, or what has its form (Fashion-MNIST), from a folder; else made-up images that can be learnt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno.errors import BadValue
from rigdyno.workloads._idx import read_idx

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIDE = 28
CLASSES = 10
TRAIN_IMAGES, TEST_IMAGES = 60_000, 10_000
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels between 0 and 1

_PREFIXES = ("train", "t10k")
_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_BLOCK = 4  # made-up images consist of blocks that a small convolution can see


@dataclass(frozen=True)
class Part:
    """The training or the test images, as bytes."""

    images: NDArray[np.uint8]  # count x 28 x 28
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def share(self, rank: int, world_size: int) -> Part:
        """One rank's images. All ranks have equally many, so that none waits for another's last batch."""
        each = len(self) // world_size
        return Part(self.images[rank::world_size][:each], self.labels[rank::world_size][:each])


def missing_file(folder: Path) -> str | None:
    """What a folder lacks to be used, as a reason."""
    if not folder.is_dir():
        return f"no folder '{folder}'"
    for prefix in _PREFIXES:
        for ending in (_IMAGES, _LABELS):
            if _find(folder, prefix, ending) is None:
                return f"'{folder}' has no {prefix}-{ending} or {prefix}-{ending}.gz"
    return None


def from_folder(folder: Path) -> tuple[Part, Part]:
    """Training and test part."""
    train, test = (_read_part(folder, prefix) for prefix in _PREFIXES)
    return train, test


def synthetic(seed: int, train: int = TRAIN_IMAGES, test: int = TEST_IMAGES) -> tuple[Part, Part]:
    """Each class is a pattern of blocks under noise: easy to learn, and of the cost of the real images."""
    import numpy as np

    random = np.random.default_rng(seed)
    coarse = random.integers(0, 128, (CLASSES, SIDE // _BLOCK, SIDE // _BLOCK), dtype=np.uint8)
    patterns = coarse.repeat(_BLOCK, axis=1).repeat(_BLOCK, axis=2)
    labels = random.integers(0, CLASSES, train + test, dtype=np.uint8)
    images = patterns[labels] + random.integers(0, 128, (train + test, SIDE, SIDE), dtype=np.uint8)
    return Part(images[:train], labels[:train]), Part(images[train:], labels[train:])


def _read_part(folder: Path, prefix: str) -> Part:
    part = Part(read_idx(_path(folder, prefix, _IMAGES), 3), read_idx(_path(folder, prefix, _LABELS), 1))
    if part.images.shape != (len(part), SIDE, SIDE) or len(part) == 0:
        raise BadValue(
            f"the {prefix} images in {folder} have the shape {part.images.shape} beside {len(part)} labels; "
            f"as many images of {SIDE} x {SIDE} as labels are needed"
        )
    if part.labels.max() >= CLASSES:
        raise BadValue(f"the {prefix} labels in {folder} go up to {part.labels.max()}: there are {CLASSES} classes")
    return part


def _path(folder: Path, prefix: str, ending: str) -> Path:
    found = _find(folder, prefix, ending)
    if found is None:
        raise BadValue(missing_file(folder) or f"'{folder}' changed while it was read")
    return found


def _find(folder: Path, prefix: str, ending: str) -> Path | None:
    candidates = (folder / f"{prefix}-{ending}{suffix}" for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)
