"""One run on the page: its answer, its tables and figures, and what stands behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rigdyno.report.formats._html.answer import Chapter, answer, report_command
from rigdyno.report.formats._html.behind import facts, how_it_was_measured, more, raw_files, reasons
from rigdyno.report.formats._html.figures import figure_block
from rigdyno.report.formats._html.markup import Child, Markup, tag
from rigdyno.report.formats._html.tables import table_block
from rigdyno.schema.dossier import Dossier
from rigdyno.schema.view import View

MOST_OF_PROCESSES = 6  # figures; a timeline has hundreds of points
MOST_OF_PROCESSES_OF_SEVERAL = 2  # for each run on a page of several


@dataclass(frozen=True)
class Place:
    """Where a chapter stands on the page: what its anchors begin with, and how deep its headings are."""

    anchor: str = "run"
    level: int = 1

    def section(self, name: str, title: str, content: Iterable[Child]) -> Markup | None:
        """Nothing where there is nothing to say."""
        inside = [each for each in content if each is not None]
        if not inside:
            return None
        anchor = f"{self.anchor}-{name}"
        heading = tag(f"h{self.level + 1}", title, id=f"{anchor}-title")
        label = f"{anchor}-title" if self.level == 1 else None  # landmarks of several runs would have the same names
        return tag("section", heading, inside, id=anchor, aria_labelledby=label, class_=name)

    def folded(self, name: str, title: str, content: Iterable[Child]) -> Markup | None:
        inside = [each for each in content if each is not None]
        if not inside:
            return None
        heading = tag(f"h{self.level + 1}", title)
        return tag("details", tag("summary", heading), inside, id=f"{self.anchor}-{name}", class_=f"folded {name}")


def chapter(content: Chapter, place: Place) -> Markup:
    view, dossier = content.view, content.dossier
    csv_command = report_command(view, "--format csv")
    first, *others = [figure_block(figure, place.anchor) for figure in view.figures] or [None]
    title = tag(f"h{place.level}", view.title, id=f"{place.anchor}-title")
    return tag(
        "article",
        tag("header", title, [tag("p", rig, class_="rig-line") for rig in view.rigs]),
        tag("div", answer(view, f"{place.anchor}-reasons"), class_="answer"),
        first,
        place.section("tables", "Tables", [table_block(table, csv_command) for table in view.tables]),
        place.section("figures", "Figures", others),
        place.section("standing", _standing_title(view), [tag("p", words) for words in view.standing]),
        *(_how(content, dossier, place) if dossier is not None else ()),
        place.section("reasons", "Reasons behind the verdicts", reasons(dossier, view.validity)),
        _files(view, dossier, place) if dossier is not None else None,
        _next(view),
        id=place.anchor,
        aria_labelledby=f"{place.anchor}-title",
    )


def _how(content: Chapter, dossier: Dossier, place: Place) -> Iterable[Markup | None]:
    noise = content.view.noise.text if content.view.noise is not None else None
    most = MOST_OF_PROCESSES if place.level == 1 else MOST_OF_PROCESSES_OF_SEVERAL
    drawn = [figure_block(figure, place.anchor, small=True) for figure in content.processes[:most]]
    left_out = more(
        len(content.processes) - len(drawn), "figures of processes", report_command(content.view, "--figures figures")
    )
    inside = [*how_it_was_measured(dossier, noise), tag("div", drawn, class_="small-figures"), left_out]
    yield place.folded("measured", "How it was measured", inside)
    yield place.section("rig", "The rig", [facts(dossier.rig)])


def _files(view: View, dossier: Dossier, place: Place) -> Markup | None:
    where = view.saved_in[0] if view.saved_in else dossier.run
    return place.folded("files", "Every raw file", raw_files(dossier.files, where))


def _standing_title(view: View) -> str:
    return "The two sides" if view.comparisons else "Among the published"


def _next(view: View) -> Markup | None:
    others = [command for command in view.next_commands if "--html" not in command]  # this is that page
    if not others:
        return None
    commands = tag("pre", "\n".join(others))
    return tag("div", tag("p", "Worth trying next:"), commands, class_="next")
