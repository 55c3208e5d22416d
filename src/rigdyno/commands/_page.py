"""The page of one or several loaded runs: written by `report --html`, and by whatever else ends in a page."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rigdyno.analyse.answers import MARGIN
from rigdyno.commands._comparing import compared, described
from rigdyno.report.comparison import comparison_view
from rigdyno.report.view import all_with_columns
from rigdyno.schema.view import View
from rigdyno.store.campaign import is_campaign
from rigdyno.store.files import disk_errors
from rigdyno.store.location import utf8
from rigdyno.units import show_bytes

if TYPE_CHECKING:
    from rigdyno.api import Run


@dataclass(frozen=True)
class Material:
    """What a page is made of: one run, or a campaign's with its card."""

    runs: tuple[Run, ...]
    card: View | None = None


def material_at(path: Path) -> Material:
    from rigdyno import api, campaign

    if not is_campaign(path):
        return Material((api.load(path),))
    found = campaign.load(path)
    return Material(tuple(found.runs.values()), found.views()[0])


def page_text(material: Sequence[Material], columns: Sequence[str] = ()) -> str:
    from rigdyno.report.formats._html.answer import Chapter
    from rigdyno.report.formats._html.whole import page_of_chapters

    runs = [run for each in material for run in each.runs]
    views = all_with_columns([run.view() for run in runs], columns)
    chapters = [Chapter(v, r.dossier(), r.figures()[len(v.figures) :]) for v, r in zip(views, runs, strict=True)]
    comparisons = [Chapter(view) for view in _comparisons(runs)] if len(material) > 1 else []
    return page_of_chapters(chapters, comparisons, material[0].card if len(material) == 1 else None)


def _comparisons(runs: Sequence[Run]) -> Iterator[View]:
    """Each but the first, beside the first of the same suite or name; where they have something in common."""
    for number, run in enumerate(runs[1:], 1):
        baseline = next((each for each in runs[:number] if _name(each) == _name(run)), runs[0])
        found = compared(baseline, run, MARGIN)
        if any(reason.code != "only_in_one" for each in found for reason in each.reasons):
            view = comparison_view(found, (described(baseline), described(run)))
            yield replace(view, title=f"{utf8(run.folder.name)} beside {utf8(baseline.folder.name)}")


def _name(run: Run) -> str:
    return run.head.plan.suite or run.head.plan.name


def write_page(text: str, path: Path) -> str:
    """What was written, in a sentence."""
    encoded = text.encode("utf-8")
    with disk_errors(path):
        path.write_bytes(encoded)
    return f"Wrote {path}, {show_bytes(len(encoded))}: one file, which opens without a network."


def not_drawn(text: str) -> str | None:
    """That the page has tables and no drawings, where it would have some."""
    from rigdyno.report.formats._html.figures import UNDRAWN, undrawn

    lacking = undrawn()
    return f"figures are not drawn: {lacking}" if lacking is not None and f'class="{UNDRAWN}"' in text else None


def open_page(path: Path) -> str | None:
    """In a browser; what to do where none can be started."""
    if webbrowser.open(path.resolve().as_uri()):
        return None
    return f"no browser could be started; open {path} in one"
