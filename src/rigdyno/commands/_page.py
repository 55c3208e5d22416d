"""The page of one or several loaded runs: written by `report --html`, and by whatever else ends in a page."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rigdyno.analyse.answers import MARGIN
from rigdyno.commands._comparing import compared, described
from rigdyno.report.comparison import comparison_view
from rigdyno.report.view import with_columns
from rigdyno.schema.view import View
from rigdyno.store.files import disk_errors
from rigdyno.store.location import utf8
from rigdyno.units import show_bytes

if TYPE_CHECKING:
    from rigdyno.api import Run


def page_text(runs: Sequence[Run], title: str | None = None, columns: Sequence[str] = ()) -> str:
    """Of several runs each later one is held against the first, where they have something in common."""
    from rigdyno.report.formats._html.answer import Chapter
    from rigdyno.report.formats._html.whole import page_of_chapters

    chapters = [Chapter(with_columns(run.view(), columns), run.dossier()) for run in runs]
    return page_of_chapters(chapters, [Chapter(view) for view in _comparisons(runs)], title)


def _comparisons(runs: Sequence[Run]) -> Iterator[View]:
    first, *others = runs
    for other in others:
        found = compared(first, other, MARGIN)
        if any(each.answer != "NOT_COMPARABLE" or each.rates is not None for each in found):
            view = comparison_view(found, (described(first), described(other)))
            yield replace(view, title=f"{utf8(other.folder.name)} beside {utf8(first.folder.name)}")


def write_page(text: str, path: Path) -> str:
    """What was written, in a sentence."""
    encoded = text.encode("utf-8")
    with disk_errors(path):
        path.write_bytes(encoded)
    return f"Wrote {path}, {show_bytes(len(encoded))}: one file, which opens without a network."


def open_page(path: Path) -> str | None:
    """In a browser; what to do where none can be started."""
    if webbrowser.open(path.resolve().as_uri()):
        return None
    return f"no browser could be started; open {path} in one"
