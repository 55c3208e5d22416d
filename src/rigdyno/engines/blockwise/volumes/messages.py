"""Checks and messages that the readers and the writer share."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.blockwise.boxes import Box, Zyx, whole_box
from rigdyno.engines.blockwise.errors import BadSetting, BadVolume

DTYPES = ("uint8", "uint16", "float32")

LABEL_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")

MOST_REASON = 200  # characters of a reason: tensorstore adds the spec and source lines to every message

MOST_NAMES = 10

_STATUS = re.compile(r'^[A-Z_]+: |Error opening "\w+" driver: ')

_NOTES = re.compile(r" \[\w[\w ]*='.*$")


def shorten_error(error: BaseException, within: str = "") -> str:
    """Return the error's message in one short line, with paths relative to the folder `within`.

    Cut the middle: the beginning says what was read, and the end what is wrong with it.
    """
    text = " ".join(str(error).split())
    if within:
        text = text.replace(f"{within}/", "")
    text = _STATUS.sub("", _NOTES.sub("", text)) or type(error).__name__
    if len(text) <= MOST_REASON:
        return text
    return f"{text[: MOST_REASON // 2]} ... {text[-MOST_REASON // 2 :]}"


def join_names(names: Iterable[str]) -> str:
    """Join names with commas; after the tenth only count the rest."""
    known = list(names)
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return ", ".join(known[:MOST_NAMES]) + more


def check_dtype(location: str, name: str, known: Sequence[str] = DTYPES) -> None:
    if name not in known:
        raise BadVolume(f"{location} holds {name}, and {join_names(known)} are read: convert it to one of them first")


def check_inside(location: str, box: Box, shape: Zyx) -> None:
    if not box.voxels or box.within(whole_box(shape)) != box:
        raise BadSetting(f"the box {box} isn't inside {location}, which is {whole_box(shape)}")


def missing_extra(package: str) -> MissingExtra:
    return MissingExtra(f"volumes need {package}, which isn't installed: pip install 'rigdyno[volume]'")


def hash_parts(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
