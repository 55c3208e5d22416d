"""Reads MNIST, or a data set of its form such as Fashion-MNIST, from a folder, or makes synthetic images that can be
learnt. The workloads of all frameworks share it.

The reader of MNIST's file format (idx, plain or gzipped) doesn't trust the header.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rigdyno.base.errors import BadValue
from rigdyno.base.units import show_bytes
from rigdyno.workloads.datasets.labelled import RESIDENT, ImageSet, Source, make_images

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIDE = 28

CLASSES = 10

TRAIN_IMAGES, TEST_IMAGES = 60_000, 10_000

MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels, scaled to 0..1

FASHION = "fashion"  # instead of a folder: Fashion-MNIST as installed by Debian's package dataset-fashion-mnist

FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")

_PREFIXES = ("train", "t10k")

_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"

_FLOAT32_BYTES = 4

_UNSIGNED_BYTE = 0x08

_MOST_BYTES = 2**30  # file size limit; EMNIST, the largest data set of this format, has 0.55 GB

_CHUNK_BYTES = 2**20


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of unsigned bytes with this number of dimensions."""
    import numpy as np

    try:
        with _open(path) as stream:
            shape = _read_shape(stream, path, dimensions)
            body = _read_body(stream, path, math.prod(shape))
    except (OSError, EOFError, zlib.error) as error:
        raise BadValue(f"{path} can't be read: {error}") from error
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _open(path: Path) -> IO[bytes]:
    # GzipFile is a BufferedIOBase, which isn't an IO for typeshed.
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _read_shape(stream: IO[bytes], path: Path, dimensions: int) -> tuple[int, ...]:
    header = stream.read(4 + 4 * dimensions)
    if header[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
        raise BadValue(
            f"{path} isn't an idx file of bytes in {dimensions} dimensions: it begins with {header[:4].hex(' ')}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise BadValue(f"{path} ends inside its header")
    return struct.unpack(f">{dimensions}I", header[4:])


def _read_body(stream: IO[bytes], path: Path, size: int) -> bytearray:
    """Read the data piece by piece, so that a wrong size in the header doesn't allocate memory."""
    if size > _MOST_BYTES:
        raise BadValue(f"the header of {path} claims {show_bytes(size)}: too much for this format's data sets")
    body = bytearray()
    while len(body) <= size and (chunk := stream.read(min(_CHUNK_BYTES, size + 1 - len(body)))):
        body += chunk
    if len(body) < size:
        raise BadValue(f"{path} is truncated: it has {len(body):,} of the {size:,} bytes in its header")
    if len(body) > size:
        raise BadValue(f"{path} is longer than the {size:,} bytes in its header")
    return body


def open_dataset(data: str, seed: int) -> Source:
    """Open the folder `data`, 'fashion', or make synthetic images if it is empty."""
    if not data:
        return Source(
            *make_synthetic_images(seed), ("synthetic images, not MNIST: the accuracy says nothing", RESIDENT)
        )
    origin = "Fashion-MNIST" if data == FASHION else "images of MNIST's form, from the given folder"
    return Source(*read_folder(_folder(data)), (origin, RESIDENT))


def refusal(data: str) -> str | None:
    if not data:
        return None
    missing = find_missing_file(_folder(data))
    if missing is None or data != FASHION:
        return missing
    return f"{missing}; install it with: apt install dataset-fashion-mnist"


def _folder(data: str) -> Path:
    return FASHION_FOLDER if data == FASHION else Path(data)


def memory_bytes(batch_size: int) -> int:
    """Return the memory of all images, as bytes and as float32, and of the activations of one batch."""
    pixels = SIDE * SIDE
    return (TRAIN_IMAGES + TEST_IMAGES) * pixels * (_FLOAT32_BYTES + 2) + batch_size * pixels * 100


def normalise(part: ImageSet) -> NDArray[np.float32]:
    """Return normalised float32 pixels, as in PyTorch's classic example."""
    import numpy as np

    pixels = part.images.astype(np.float32)
    pixels /= 255
    pixels -= MEAN
    pixels /= DEVIATION
    return pixels


def count_parameters(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def find_missing_file(folder: Path) -> str | None:
    """Return what is missing in the folder, or None."""
    if not folder.is_dir():
        return f"no folder '{folder}'"
    for prefix in _PREFIXES:
        for ending in (_IMAGES, _LABELS):
            if _find(folder, prefix, ending) is None:
                return f"'{folder}' has no {prefix}-{ending} or {prefix}-{ending}.gz"
    return None


def read_folder(folder: Path) -> tuple[ImageSet, ImageSet]:
    """Read the training and the test images."""
    train, test = (_read_part(folder, prefix) for prefix in _PREFIXES)
    return train, test


def make_synthetic_images(seed: int, train: int = TRAIN_IMAGES, test: int = TEST_IMAGES) -> tuple[ImageSet, ImageSet]:
    images = make_images(seed, CLASSES, (SIDE, SIDE), train + test)
    return images.take(train), images.skip(train)


def _read_part(folder: Path, prefix: str) -> ImageSet:
    part = ImageSet(read_idx(_path(folder, prefix, _IMAGES), 3), read_idx(_path(folder, prefix, _LABELS), 1))
    if part.images.shape != (len(part), SIDE, SIDE) or len(part) == 0:
        raise BadValue(
            f"the {prefix} images in {folder} have the shape {part.images.shape} for {len(part)} labels; "
            f"one image of {SIDE} x {SIDE} per label is needed"
        )
    if part.labels.max() >= CLASSES:
        raise BadValue(f"the {prefix} labels in {folder} go up to {part.labels.max()}: there are {CLASSES} classes")
    return part


def _path(folder: Path, prefix: str, ending: str) -> Path:
    found = _find(folder, prefix, ending)
    if found is None:
        raise BadValue(find_missing_file(folder) or f"'{folder}' changed while it was read")
    return found


def _find(folder: Path, prefix: str, ending: str) -> Path | None:
    candidates = (folder / f"{prefix}-{ending}{suffix}" for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)
