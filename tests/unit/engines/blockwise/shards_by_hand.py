"""Read zarr's sharding codec without any library: the index at the end, its checksum, the chunk headers.

https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html
"""

import struct
from math import prod

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
CHECKSUM_BIT, SINGLE_SEGMENT_BIT = 0x04, 0x20
NOTHING = 2**64 - 1


def crc32c(content):
    """Compute the CRC with Castagnoli's polynomial bit by bit (RFC 3720, appendix B.4)."""
    register = 0xFFFFFFFF
    for byte in content:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def read_index(file, shard, chunk):
    """Return offset and length of each chunk of a shard, in the order of the index; raise ValueError if damaged."""
    content = file.read_bytes()
    number = prod(whole // part for whole, part in zip(shard, chunk, strict=True))
    index, checksum = content[-16 * number - 4 : -4], content[-4:]
    if len(index) != 16 * number or struct.unpack("<I", checksum)[0] != crc32c(index):
        raise ValueError(f"{file} has a damaged index")
    entries = list(struct.iter_unpack("<QQ", index))
    stored = sorted(entry for entry in entries if entry != (NOTHING, NOTHING))
    ends = [0, *(offset + length for offset, length in stored)]
    if (
        any(offset < end for (offset, _), end in zip(stored, ends, strict=False))
        or ends[-1] > len(content) - len(index) - 4
    ):
        raise ValueError(f"{file} has chunks that overlap, or reach beyond its end")
    return entries


def size_in_zstd_frame(content):
    """Return the decompressed length of a chunk, and whether it has a checksum (RFC 8878, section 3.1.1)."""
    assert content[:4] == ZSTD_MAGIC
    descriptor = content[4]
    assert descriptor & SINGLE_SEGMENT_BIT
    width, more = {0: ("<B", 0), 1: ("<H", 256), 2: ("<I", 0), 3: ("<Q", 0)}[descriptor >> 6]
    return struct.unpack_from(width, content, 5)[0] + more, bool(descriptor & CHECKSUM_BIT)
