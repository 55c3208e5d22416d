"""What stands at the head: what was asked, the figure, the verdict, in a sentence."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rigdyno.report.comparison import headline_of
from rigdyno.report.format_entry import entry_text
from rigdyno.report.formats._html.markup import Markup, tag
from rigdyno.report.formats._html.tables import badge, table_block
from rigdyno.schema.dossier import Dossier
from rigdyno.schema.figure import Figure
from rigdyno.schema.view import Headline, View


@dataclass(frozen=True)
class Chapter:
    """What the page says of one run."""

    view: View
    dossier: Dossier | None = None  # None: of what has no run folder, such as a comparison
    processes: Sequence[Figure] = ()  # figures of single processes


def answer(view: View, why: str) -> list[Markup | None]:
    """`why`: the place on the page that gives the reasons."""
    return [
        _lead(found) if (found := headline_of(view)) is not None else None,
        tag("ul", [tag("li", sentence) for sentence in view.closing], class_="says") if view.closing else None,
        _verdict(view, why),
        _warned("Doubtful", view.doubts),
        _warned("Warning", view.warnings),
    ]


def runs_card(chapters: Sequence[tuple[str, Chapter]]) -> Markup:
    """A line for each run: its figure, its verdict, where it stands. Each leads to its chapter, by its anchor."""
    lines = [_card_line(anchor, each) for anchor, each in chapters]
    return tag("nav", tag("ol", lines), class_="card", aria_label="Runs")


def campaign_card(card: View, chapters: Sequence[tuple[str, Chapter]]) -> Markup:
    """What the campaign says of each suite, and where its chapter is."""
    links = [tag("li", tag("a", each.view.title, href=f"#{anchor}")) for anchor, each in chapters]
    return tag(
        "div",
        [table_block(table, report_command(card, "--format csv")) for table in card.tables],
        _warned("Doubtful", card.doubts),
        _warned("Warning", card.warnings),
        tag("nav", tag("ol", links), aria_label="Suites"),
        class_="card",
    )


def report_command(view: View, *more: str) -> str:
    return " ".join(("rigdyno report", *map(shlex.quote, view.saved_in), *more))


def _card_line(anchor: str, content: Chapter) -> Markup:
    view, found = content.view, headline_of(content.view)
    return tag(
        "li",
        tag("a", view.title, href=f"#{anchor}"),
        tag("span", content.dossier.run, class_="run") if content.dossier is not None else None,
        _lead(found) if found is not None else None,
        tag("p", found.place, class_="place") if found is not None and found.place else None,
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
