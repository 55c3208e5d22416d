"""Reads CIFAR-100 from a folder (python or binary version, unpacked or .tar.gz), or makes synthetic images of its
shape."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rigdyno.base.errors import BadValue
from rigdyno.base.units import show_bytes
from rigdyno.workloads.datasets.labelled import RESIDENT, ImageSet, Source, make_images
from rigdyno.workloads.datasets.pickled import Array, read_pickle

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIDE, CHANNELS, CLASSES = 32, 3, 100

TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000

MEANS, DEVIATIONS = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)  # of the pixels, scaled to 0..1

IMAGE_BYTES = CHANNELS * SIDE * SIDE

_LABEL_BYTES = 2  # labels of a record in the binary version: coarse, then fine, which is used

_MOST_BYTES = 2**30  # file size limit; the real files have 0.15 GB

_CHUNK_BYTES = 2**24


@dataclass(frozen=True)
class Version:
    """A version of CIFAR-100: the folder in its archive, the names of its two files, and how to read them."""

    folder: str
    train: str
    test: str
    read: Callable[[IO[bytes], str], ImageSet]

    @property
    def archive(self) -> str:
        return f"{self.folder}.tar.gz"


def open_dataset(data: str, seed: int, test_images: int) -> Source:
    """Open the folder `data`, or make synthetic images if it is empty. Only the first `test_images` are kept."""
    if not data:
        images = make_images(seed, CLASSES, (CHANNELS, SIDE, SIDE), TRAIN_IMAGES + test_images)
        notes = ("synthetic images, not CIFAR-100: the accuracy says nothing", RESIDENT)
        return Source(images.take(TRAIN_IMAGES), images.skip(TRAIN_IMAGES), notes)
    folder = Path(data)
    train = _read(folder, "train")
    test = _read(folder, "test").take(test_images) if test_images else train.take(0)
    return Source(train, test, ("CIFAR-100, from the given folder", RESIDENT))


def refusal(data: str) -> str | None:
    if not data:
        return None
    folder = Path(data)
    if not folder.is_dir():
        return f"no folder '{folder}'"
    if any(_find(folder, version, version.train) for version in VERSIONS):
        return None
    kinds = " or ".join(f"{version.folder} ({version.train}, {version.test})" for version in VERSIONS)
    return f"'{folder}' has no CIFAR-100: neither {kinds}, unpacked or as .tar.gz"


def _read(folder: Path, part: str) -> ImageSet:
    for version in VERSIONS:
        name = getattr(version, part)
        found = _find(folder, version, name)
        if found is not None:
            return _read_version(version, found, name)
    raise BadValue(f"'{folder}' has no {part} images of CIFAR-100")


def _find(folder: Path, version: Version, name: str) -> Path | None:
    candidates = (folder / name, folder / version.folder / name, folder / version.archive)
    return next((path for path in candidates if path.is_file()), None)


def _read_version(version: Version, path: Path, name: str) -> ImageSet:
    packed = path.name == version.archive
    what = f"{name} in {path}" if packed else str(path)
    try:
        with _member(path, f"{version.folder}/{name}") if packed else path.open("rb") as stream:
            part = version.read(stream, what)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise BadValue(f"{what} can't be read: {error}") from error
    if not len(part) or part.labels.max() >= CLASSES:
        highest = f"labels up to {part.labels.max()}" if len(part) else "no images"
        raise BadValue(f"{what} has {highest}: images of {CLASSES} classes are needed")
    return part


@contextmanager
def _member(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open a file inside the archive. Nothing is unpacked, so no name in the archive can cause a write."""
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            if member.name.removeprefix("./") == name and member.isfile():
                if member.size > _MOST_BYTES:
                    raise BadValue(f"{name} in {path} claims to have {show_bytes(member.size)}: too much for CIFAR-100")
                stream = archive.extractfile(member)
                assert stream is not None
                yield stream
                return
    raise BadValue(f"{path} has no file {name}")


def _read_python(stream: IO[bytes], what: str) -> ImageSet:
    found = read_pickle(stream, what)
    fields = {_name(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    data, labels = fields.get("data"), fields.get("fine_labels")
    if not isinstance(data, Array) or data.values is None or not isinstance(labels, list):
        raise BadValue(f"{what} has no arrays 'data' and 'fine_labels', as CIFAR-100 has them")
    return _make_image_set(data.values, labels, what)


def _name(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _make_image_set(pixels: NDArray[np.uint8], labels: list[Any], what: str) -> ImageSet:
    import numpy as np

    if pixels.shape != (len(labels), IMAGE_BYTES):
        raise BadValue(
            f"the images in {what} have the shape {pixels.shape} for {len(labels)} labels; "
            f"one row of {IMAGE_BYTES} bytes per label is needed"
        )
    if not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise BadValue(f"the labels in {what} aren't whole numbers from 0 to {CLASSES - 1}")
    return ImageSet(pixels.reshape(-1, CHANNELS, SIDE, SIDE), np.array(labels, dtype=np.uint8))


def _read_binary(stream: IO[bytes], what: str) -> ImageSet:
    import numpy as np

    body = bytearray()
    while piece := stream.read(_CHUNK_BYTES):
        body += piece
        if len(body) > _MOST_BYTES:
            raise BadValue(f"{what} has more than {show_bytes(_MOST_BYTES)}: too much for CIFAR-100")
    record = _LABEL_BYTES + IMAGE_BYTES
    if len(body) % record:
        raise BadValue(
            f"{what} has {len(body):,} bytes, which isn't a multiple of the record size {record:,}: truncated?"
        )
    records = np.frombuffer(body, dtype=np.uint8).reshape(-1, record)
    images = np.ascontiguousarray(records[:, _LABEL_BYTES:]).reshape(-1, CHANNELS, SIDE, SIDE)
    return ImageSet(images, records[:, 1].copy())


VERSIONS = (
    Version("cifar-100-python", "train", "test", _read_python),
    Version("cifar-100-binary", "train.bin", "test.bin", _read_binary),
)
