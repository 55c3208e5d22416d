"""Figures as files: each as SVG and as PNG, named by its key."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rigdyno import catalogue
from rigdyno.errors import UsageError
from rigdyno.report.drawing import REQUIRES, png_of_svg, svg_of
from rigdyno.schema.figure import Figure
from rigdyno.store.files import disk_errors

_PNG_HEAD = 33  # bytes: the signature and the first chunk
_LOOKED_AT = 4096  # bytes of a file that may be ours


def write_figures(figures: Sequence[Figure], folder: Path, *, dark: bool = False) -> Iterator[Path]:
    """Files that are there already are written over only if they are such figures: nobody's own picture is lost."""
    catalogue.demand(REQUIRES, "drawing figures")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        for path in _paths(figure, folder):
            _require_ours(path, figure)
    for figure in figures:
        svg = svg_of(figure, theme="dark" if dark else "light")
        contents = (svg.encode(), _signed(png_of_svg(svg), figure))
        for path, content in zip(_paths(figure, folder), contents, strict=True):
            with disk_errors(path):
                path.write_bytes(content)
            yield path


def _paths(figure: Figure, folder: Path) -> tuple[Path, Path]:
    return folder / f"{figure.key}.svg", folder / f"{figure.key}.png"


def _mark(figure: Figure) -> str:
    return f"rigdyno figure {figure.key}"


def _require_ours(path: Path, figure: Figure) -> None:
    if not path.exists():
        return
    with disk_errors(path), path.open("rb") as file:
        beginning = file.read(_LOOKED_AT)
    marks = (_mark(figure).encode(), f'id="{figure.key}-title"'.encode())
    if not any(mark in beginning for mark in marks):
        raise UsageError(f"{path} is there already and is no figure of Rigdyno; move it, or choose another folder")


def _signed(png: bytes, figure: Figure) -> bytes:
    """With a chunk of text behind the first, by which the file is known again."""
    body = b"tEXt" + b"Comment\0" + _mark(figure).encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:_PNG_HEAD] + chunk + png[_PNG_HEAD:]
