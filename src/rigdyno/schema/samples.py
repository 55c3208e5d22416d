"""How raw samples lie on disk: one JSON header line, then fixed-size little-endian rows.

Rows are only ever appended, in whole: a file cut off by `kill -9` or a full disk loses its last row at most.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat, TypeGuard

import msgspec

from rigdyno.errors import DamagedRun, NewerStore
from rigdyno.schema.channel import Channel, from_name
from rigdyno.schema.participant import Participant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Fields = tuple[tuple[str, str], ...]

# Version of the file format, raised when older readers would misread it. In version 2, a telemetry channel had only a
# name and a unit, and didn't say what it measures.
FORMAT = 3

SAMPLER_SECONDS = 0.5  # between two readings of a node's meters

# Flags of a row.
WARM_UP = 1  # taken before the meter called the stream steady
CLOCK_JUMPED = 2  # at some time since the rows before were written, the clock parted from the wall clock

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
_FORMS = frozenset(form for _, form in STEP_FIELDS)  # telemetry's are among them


# The phases of a training step, in the order that they come in. "scatter" and "gather": what one process sends to its
# devices and takes back; "broadcast": what an arrangement sends around before the model computes; "communication": what
# of it is left to wait for when the gradients are computed.
PHASES = ("data", "scatter", "broadcast", "forward", "gather", "backward", "communication", "optimizer")
COMPUTING = ("data", "forward", "backward", "optimizer")  # those in which a rank waits for no other


class Header(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    fields: Fields
    participant: Participant  # whose rows they are, and by which clock
    kinds: tuple[str, ...] = ()  # of steps
    channels: tuple[Channel, ...] = ()  # of telemetry, in the order of the fields behind at_ns
    absent: dict[str, str] = {}  # by probe: why it couldn't be read, and what would change that


def telemetry_header(channels: Sequence[Channel], own: Participant, absent: Mapping[str, str] | None = None) -> Header:
    fields = telemetry_fields([channel.name for channel in channels])
    return Header(fields=fields, participant=own, channels=tuple(channels), absent=dict(absent or {}))


def telemetry_fields(channels: Sequence[str]) -> Fields:
    return (("at_ns", "<i8"), *((name, "<f8") for name in channels))


class RowFile:
    """Appends packed rows. Unbuffered: what `append` returned from is safe against the death of this process."""

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
    """The header and every whole row; a torn last row is left out."""
    import numpy as np

    try:
        line, newline, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise DamagedRun(f"can't read {path}: {(error.strerror or str(error)).lower()}") from error
    if not newline:
        raise DamagedRun(f"{path} ends inside its header")
    try:
        header = _header(line, path)
        dtype = np.dtype(list(header.fields))
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
        raise DamagedRun(f"{path} has no readable header ({error})") from error
    if not header.fields or not {form for _, form in header.fields} <= _FORMS:
        raise DamagedRun(f"{path} declares rows that can't be read")
    whole = len(body) - len(body) % dtype.itemsize
    return header, np.frombuffer(body[:whole], dtype=dtype)


def _header(line: bytes, path: Path) -> Header:
    raw = msgspec.json.decode(line)
    form = raw.get("format") if isinstance(raw, dict) else None
    if isinstance(form, int) and form > FORMAT:
        raise NewerStore(f"{path} has rows of form {form}, this Rigdyno reads {FORMAT}; upgrade it")
    if form == 2:
        return _from_2(msgspec.convert(raw, _Header2))
    header = msgspec.convert(raw, Header)
    if header.channels and [channel.name for channel in header.channels] != [name for name, _ in header.fields[1:]]:
        raise ValueError("its channels are not its columns")
    return header


class _Header2(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    fields: Fields
    participant: Participant
    kinds: tuple[str, ...] = ()
    units: tuple[str, ...] = ()


def _from_2(old: _Header2) -> Header:
    """What a channel means followed from its name."""
    named = zip([name for name, _ in old.fields[1:]], old.units, strict=bool(old.units))
    channels = tuple(from_name(name, unit) for name, unit in named)
    return Header(format=old.format, fields=old.fields, participant=old.participant, kinds=old.kinds, channels=channels)


def is_count(items: object) -> TypeGuard[SupportsFloat]:
    """A whole number, not negative: what a user may give as the number of items of a step."""
    if isinstance(items, bool) or not isinstance(items, (int, float, Real)):
        return False
    number = float(items)
    return number >= 0 and number.is_integer()
