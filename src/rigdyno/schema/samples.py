"""Read and write files of raw samples: one JSON header line, then fixed-size little-endian rows.

Only whole rows are appended: a file cut off by `kill -9` or a full disk loses its last row at most.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat, TypeGuard

import msgspec

from rigdyno.base.errors import DamagedRun, NewerStore, os_error_reason
from rigdyno.schema.channel import Channel, from_name
from rigdyno.schema.spec import Participant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Fields = tuple[tuple[str, str], ...]

# Version of the file format, raised when older readers would misread it. In version 2, a telemetry channel had only a
# name and a unit, and didn't say what it measures.
FORMAT = 3

SAMPLER_SECONDS = 0.5  # between two readings of a node's meters

# Flags of a row.
WARM_UP = 1  # measured before the meter found the stream steady

CLOCK_JUMPED = 2  # since the previous rows were written, the monotonic clock diverged from the wall clock

# A row is a step, or a block of short steps; `kind` indexes the header's kinds ("step", or "forward", "read", ...).
STEP_FIELDS: Fields = (
    ("start_ns", "<i8"),
    ("end_ns", "<i8"),
    ("items", "<f8"),
    ("steps", "<u4"),
    ("kind", "<u2"),
    ("flags", "<u2"),
)

STEP_STRUCT = "<qqdIHH"

_FIELD_TYPES = frozenset(form for _, form in STEP_FIELDS)  # includes those of telemetry

# The phases of a training step, in their order. "scatter" and "gather": one process sends to its devices and collects
# from them; "broadcast": what an arrangement sends before the model computes; "communication": waiting for the
# communication that is left when the gradients are computed.
PHASES = ("data", "scatter", "broadcast", "forward", "gather", "backward", "communication", "optimizer")

COMPUTING = ("data", "forward", "backward", "optimizer")  # phases in which a rank doesn't wait for other ranks


class Header(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    fields: Fields
    participant: Participant  # who wrote the rows, and by which clock
    kinds: tuple[str, ...] = ()  # of steps
    channels: tuple[Channel, ...] = ()  # of telemetry, in the order of the fields after at_ns
    absent: dict[str, str] = {}  # by probe: why it couldn't be read, and how to fix that


def telemetry_header(channels: Sequence[Channel], own: Participant, absent: Mapping[str, str] | None = None) -> Header:
    fields = telemetry_fields([channel.name for channel in channels])
    return Header(fields=fields, participant=own, channels=tuple(channels), absent=dict(absent or {}))


def telemetry_fields(channels: Sequence[str]) -> Fields:
    return (("at_ns", "<i8"), *((name, "<f8") for name in channels))


class RowFile:
    """Append packed rows to a file. Unbuffered: rows survive the death of this process once `append` has returned."""

    def __init__(self, path: Path, header: Header) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self.append(msgspec.json.encode(header) + b"\n")

    def append(self, rows: bytes | memoryview) -> None:
        written = 0
        while written < len(rows):
            written += os.write(self._descriptor, rows[written:])

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_rows(path: Path) -> tuple[Header, NDArray[np.void]]:
    """Return the header and every whole row; an incomplete last row is left out."""
    import numpy as np

    try:
        line, newline, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise DamagedRun(f"can't read {path}: {os_error_reason(error)}") from error
    if not newline:
        raise DamagedRun(f"{path} ends inside its header")
    try:
        header = _decode_header(line, path)
        dtype = np.dtype(list(header.fields))
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
        raise DamagedRun(f"{path} has no readable header ({error})") from error
    if not header.fields or not {form for _, form in header.fields} <= _FIELD_TYPES:
        raise DamagedRun(f"{path} declares rows that can't be read")
    whole = len(body) - len(body) % dtype.itemsize
    return header, np.frombuffer(body[:whole], dtype=dtype)


def _decode_header(line: bytes, path: Path) -> Header:
    raw = msgspec.json.decode(line)
    form = raw.get("format") if isinstance(raw, dict) else None
    if isinstance(form, int) and form > FORMAT:
        raise NewerStore(f"{path} has format {form}, but this Rigdyno reads up to {FORMAT}; upgrade Rigdyno")
    if form == 2:
        return _upgrade_header(msgspec.convert(raw, _Header2))
    header = msgspec.convert(raw, Header)
    if header.channels and [channel.name for channel in header.channels] != [name for name, _ in header.fields[1:]]:
        raise ValueError("its channels don't match its columns")
    return header


class _Header2(msgspec.Struct, frozen=True, kw_only=True):
    """The header of format 2."""

    format: int
    fields: Fields
    participant: Participant
    kinds: tuple[str, ...] = ()
    units: tuple[str, ...] = ()


def _upgrade_header(old: _Header2) -> Header:
    """Convert a header of format 2, in which the meaning of a channel followed from its name."""
    named = zip([name for name, _ in old.fields[1:]], old.units, strict=bool(old.units))
    channels = tuple(from_name(name, unit) for name, unit in named)
    return Header(format=old.format, fields=old.fields, participant=old.participant, kinds=old.kinds, channels=channels)


def is_count(items: object) -> TypeGuard[SupportsFloat]:
    """Return whether this can be the number of items of a step: a whole number that isn't negative."""
    if isinstance(items, bool) or not isinstance(items, (int, float, Real)):
        return False
    number = float(items)
    return number >= 0 and number.is_integer()
