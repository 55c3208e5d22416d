"""MNIST, or what has its form (Fashion-MNIST), from a folder; else made-up images that can be learnt. What workloads on
all frameworks share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno.errors import BadValue
from rigdyno.workloads._idx import read_idx
from rigdyno.workloads._labelled import RESIDENT, Part, Source, made_up

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIDE = 28
CLASSES = 10
TRAIN_IMAGES, TEST_IMAGES = 60_000, 10_000
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels between 0 and 1
FASHION = "fashion"  # in place of a folder: Fashion-MNIST, where Debian's package dataset-fashion-mnist has put it
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")

_PREFIXES = ("train", "t10k")
_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_FLOAT32_BYTES = 4


def opened(data: str, seed: int) -> Source:
    """`data`: a folder, 'fashion', or nothing for synthetic images."""
    if not data:
        return Source(*synthetic(seed), ("synthetic images, not MNIST: the accuracy says nothing", RESIDENT))
    whose = "Fashion-MNIST" if data == FASHION else "images of MNIST's form, from the given folder"
    return Source(*from_folder(_folder(data)), (whose, RESIDENT))


def refusal(data: str) -> str | None:
    if not data:
        return None
    missing = missing_file(_folder(data))
    if missing is None or data != FASHION:
        return missing
    return f"{missing}; Debian's package dataset-fashion-mnist brings it: apt install dataset-fashion-mnist"


def _folder(data: str) -> Path:
    return FASHION_FOLDER if data == FASHION else Path(data)


def memory_bytes(batch_size: int) -> int:
    """Of all images, as bytes and as numbers, and of what one batch computes."""
    pixels = SIDE * SIDE
    return (TRAIN_IMAGES + TEST_IMAGES) * pixels * (_FLOAT32_BYTES + 2) + batch_size * pixels * 100


def normalised(part: Part) -> NDArray[np.float32]:
    """Pixels as numbers, as the classic example has them."""
    import numpy as np

    pixels = part.images.astype(np.float32)
    pixels /= 255
    pixels -= MEAN
    pixels /= DEVIATION
    return pixels


def count(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


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
    made = made_up(seed, CLASSES, (SIDE, SIDE), train + test)
    return made.first(train), made.behind(train)


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
