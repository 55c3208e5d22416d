"""What the readers and the writer say alike, and refuse alike."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole
from rigdyno.engines.blockwise.errors import BadSetting, BadVolume, MissingExtra

DTYPES = ("uint8", "uint16", "float32")
LABEL_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
MOST_REASON = 200  # characters: tensorstore adds the spec and its own source lines to every message
MOST_NAMES = 10

_STATUS = re.compile(r'^[A-Z_]+: |Error opening "\w+" driver: ')
_NOTES = re.compile(r" \[\w[\w ]*='.*$")


def one_line(error: BaseException, within: str = "") -> str:
    """`within` is the folder that the reader knows already.

    The middle goes first: what was read stands at the beginning, and what is wrong with it at the end.
    """
    text = " ".join(str(error).split())
    if within:
        text = text.replace(f"{within}/", "")
    text = _STATUS.sub("", _NOTES.sub("", text)) or type(error).__name__
    if len(text) <= MOST_REASON:
        return text
    return f"{text[: MOST_REASON // 2]} ... {text[-MOST_REASON // 2 :]}"


def listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return ", ".join(known[:MOST_NAMES]) + more


def check_dtype(location: str, name: str, known: Sequence[str] = DTYPES) -> None:
    if name not in known:
        raise BadVolume(f"{location} holds {name}, and {listed(known)} are read: convert it to one of them first")


def check_inside(location: str, box: Box, shape: Zyx) -> None:
    if not box.voxels or box.within(whole(shape)) != box:
        raise BadSetting(f"the box {box} doesn't lie in {location}, which is {whole(shape)}")


def missing_extra(package: str) -> MissingExtra:
    return MissingExtra(f"volumes need {package}, which isn't installed: pip install 'rigdyno[volume]'")


def identity_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
