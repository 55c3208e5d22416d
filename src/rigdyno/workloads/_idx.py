"""Reads MNIST's own file format (idx, plain or gzipped), trusting nothing that the header says."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rigdyno.errors import BadValue
from rigdyno.units import show_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_UNSIGNED_BYTE = 0x08
_MOST_BYTES = 2**30  # the largest file of the family, EMNIST, has 0.55 GB
_CHUNK_BYTES = 2**20


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An array of unsigned bytes with so many dimensions."""
    import numpy as np

    try:
        with _opened(path) as stream:
            shape = _shape(stream, path, dimensions)
            body = _body(stream, path, math.prod(shape))
    except (OSError, EOFError, zlib.error) as error:
        raise BadValue(f"{path} can't be read: {error}") from error
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _opened(path: Path) -> IO[bytes]:
    # GzipFile is a BufferedIOBase, which typeshed doesn't call an IO.
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _shape(stream: IO[bytes], path: Path, dimensions: int) -> tuple[int, ...]:
    header = stream.read(4 + 4 * dimensions)
    if header[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
        raise BadValue(
            f"{path} is no idx file of bytes in {dimensions} dimensions: it begins with {header[:4].hex(' ')}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise BadValue(f"{path} ends inside its header")
    return struct.unpack(f">{dimensions}I", header[4:])


def _body(stream: IO[bytes], path: Path, size: int) -> bytearray:
    """Grows with what the file really has: a header alone allocates nothing."""
    if size > _MOST_BYTES:
        raise BadValue(f"the header of {path} promises {show_bytes(size)}: too much for this format's data sets")
    body = bytearray()
    while len(body) <= size and (chunk := stream.read(min(_CHUNK_BYTES, size + 1 - len(body)))):
        body += chunk
    if len(body) < size:
        raise BadValue(f"{path} is truncated: {len(body):,} of the {size:,} bytes that its header promises")
    if len(body) > size:
        raise BadValue(f"{path} is longer than the {size:,} bytes that its header promises")
    return body
