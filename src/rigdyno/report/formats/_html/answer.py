"""What stands at the head: what was asked, the figure, the verdict, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rigdyno.report.format_entry import entry_text
from rigdyno.report.formats._html.markup import Markup, tag
from rigdyno.report.formats._html.tables import badge
from rigdyno.schema.dossier import Dossier
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.measured import Status
from rigdyno.schema.view import Entry, View


@dataclass(frozen=True)
class Chapter:
    """What the page says of one run."""

    view: View
    dossier: Dossier | None = None  # None: of what has no run folder, such as a comparison


@dataclass(frozen=True)
class Headline:
    """The one figure that stands for all others."""

    what: str
    figure: Entry
    status: Status | None


def answer(view: View, why: str) -> list[Markup | None]:
    """`why`: the place on the page that gives the reasons."""
    return [
        _lead(found) if (found := headline_of(view)) is not None else None,
        tag("ul", [tag("li", sentence) for sentence in view.closing], class_="says") if view.closing else None,
        _verdict(view, why),
        _warned("Doubtful", view.doubts),
        _warned("Warning", view.warnings),
    ]


def card(chapters: Sequence[tuple[str, Chapter]]) -> Markup:
    """A line for each run: its figure, its verdict, where it stands. Each leads to its chapter, by its anchor."""
    return tag(
        "nav", tag("ol", [_card_line(anchor, each) for anchor, each in chapters]), class_="card", aria_label="Runs"
    )


def _card_line(anchor: str, content: Chapter) -> Markup:
    view, found = content.view, headline_of(content.view)
    place = view.standing[0] if view.standing and not view.comparisons else ""
    return tag(
        "li",
        tag("a", view.title, href=f"#{anchor}"),
        tag("span", content.dossier.run, class_="run") if content.dossier is not None else None,
        _lead(found) if found is not None else None,
        tag("p", place, class_="place") if place else None,
    )


def _lead(found: Headline) -> Markup:
    value, _, interval = entry_text(found.figure).partition(" [")
    return tag(
        "p",
        tag("span", found.what, class_="what"),
        " ",
        tag("strong", value, class_="figure"),
        " ",
        tag("span", f"[{interval}", class_="interval") if interval else None,
        " ",
        badge(found.status) if found.status else None,
        class_="lead",
    )


def headline_of(view: View) -> Headline | None:
    """The first figure that was measured, or is missing; of a comparison its ratio."""
    for table in view.tables:
        for row in table.rows:
            shown = [row.entries.get(column.key) for column in table.columns if column.metric is not None]
            entry = next((each for each in shown if isinstance(each, Estimate | Missing)), None)
            if row.origin == "measured" and entry is not None:
                return Headline(table.name_of(row) or table.title, entry, row.status)
    return None


def _verdict(view: View, why: str) -> Markup | None:
    validity = view.validity
    if validity is None:
        return None
    if not validity.reasons:
        words = " Nothing was found that would spoil the figures."
        return tag("p", "Verdict of the whole: ", badge(validity.verdict), words, class_="verdict")
    link = tag("a", "Reasons, and the steps that they fell on", href=f"#{why}")
    codes = ", ".join(reason.code.replace("_", " ") for reason in validity.reasons)
    return tag("p", "Verdict of the whole: ", badge(validity.verdict), f" {codes}. ", link, ".", class_="verdict")


def _warned(word: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return tag("ul", [tag("li", tag("b", f"{word}: "), sentence) for sentence in sentences], class_="warned")
