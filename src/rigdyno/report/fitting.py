"""Fits words into a picture, whose fonts are those of whoever draws it."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """XML has no control characters, and half a surrogate pair is no text."""
    return "".join("?" if unicodedata.category(each) in ("Cc", "Cs", "Cn") else each for each in text)


def fitted(text: str, room: float, size: int, *, bold: bool = False) -> str:
    """As much as there is room for."""
    plain = printable(" ".join(text.split()))
    if width_of(plain, size, bold=bold) <= room:
        return plain
    while plain and width_of(plain + "…", size, bold=bold) > room:
        plain = plain[:-1]
    return plain.rstrip() + "…"


def wrapped(text: str, room: float, size: int, most: int) -> list[str]:
    rows: list[str] = [""]
    for word in text.split():
        longer = f"{rows[-1]} {word}".strip()
        if rows[-1] and width_of(longer, size) > room:
            rows.append(word)
        else:
            rows[-1] = longer
    kept = rows[:most]
    if len(rows) > most:
        kept[-1] += " …"
    return [fitted(row, room, size) for row in kept]


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Roughly, and rather too wide: the fonts of whoever draws it aren't known."""
    return size * sum(map(_share_of_em, text)) * (1.06 if bold else 1.0)


def _share_of_em(character: str) -> float:
    if unicodedata.east_asian_width(character) in ("W", "F"):
        return 1.0
    if unicodedata.combining(character):
        return 0.0
    if character in "iljtfrI.,:;'|!()[]/- ":
        return 0.32
    if character in "mwMW%@…—":
        return 0.95
    return 0.70 if character.isupper() else 0.56
