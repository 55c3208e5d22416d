"""Build the chapter of one run on the page.

It begins with the answer: the headline, sentences and the verdict. Tables and figures follow, then the evidence: how
it was measured, the machine, the reasons of verdicts, and every raw file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rigdyno.base.units import show_bytes, show_seconds
from rigdyno.report.comparison import choose_headline
from rigdyno.report.html.figures import render_figure
from rigdyno.report.html.markup import Child, Markup, tag
from rigdyno.report.html.tables import render_badge, render_plain_table, render_table
from rigdyno.report.text import format_entry
from rigdyno.schema.estimate import Validity
from rigdyno.schema.figure import Figure
from rigdyno.schema.view import Dossier, Fact, Ground, Headline, ProcessFacts, RawFiles, View

MOST_PROCESS_FIGURES = 6  # figures of single processes; a timeline has hundreds of points
MOST_PROCESS_FIGURES_OF_SEVERAL = 2  # the same, for each run on a page of several


@dataclass(frozen=True)
class Chapter:
    """The content of the page for one run."""

    view: View
    dossier: Dossier | None = None  # None without a run folder, as for a comparison
    processes: Sequence[Figure] = ()  # figures of single processes


@dataclass(frozen=True)
class ChapterPosition:
    """The position of a chapter on the page: the prefix of its anchors, and the level of its headings."""

    anchor: str = "run"
    level: int = 1

    def section(self, name: str, title: str, content: Iterable[Child]) -> Markup | None:
        """Return a section; None without content."""
        inside = [each for each in content if each is not None]
        if not inside:
            return None
        anchor = f"{self.anchor}-{name}"
        heading = tag(f"h{self.level + 1}", title, id=f"{anchor}-title")
        # Landmarks need distinct names: those of several runs would have the same.
        label = f"{anchor}-title" if self.level == 1 else None
        return tag("section", heading, inside, id=anchor, aria_labelledby=label, class_=name)

    def folded(self, name: str, title: str, content: Iterable[Child]) -> Markup | None:
        """Return a section that is closed at first; None without content."""
        inside = [each for each in content if each is not None]
        if not inside:
            return None
        heading = tag(f"h{self.level + 1}", title)
        return tag("details", tag("summary", heading), inside, id=f"{self.anchor}-{name}", class_=f"folded {name}")


def render_chapter(content: Chapter, position: ChapterPosition) -> Markup:
    """Return the whole chapter of one run."""
    view, dossier = content.view, content.dossier
    csv_command = report_command(view, "--format csv")
    first, *others = [render_figure(figure, position.anchor) for figure in view.figures] or [None]
    title = tag(f"h{position.level}", view.title, id=f"{position.anchor}-title")
    return tag(
        "article",
        tag("header", title, [tag("p", rig, class_="rig-line") for rig in view.rigs]),
        tag("div", render_answer(view, f"{position.anchor}-reasons"), class_="answer"),
        first,
        position.section("tables", "Tables", [render_table(table, csv_command) for table in view.tables]),
        position.section("figures", "Figures", others),
        position.section("standing", _standing_title(view), [tag("p", words) for words in view.standing]),
        *(_render_evidence(content, dossier, position) if dossier is not None else ()),
        position.section("reasons", "Reasons behind the verdicts", render_reasons(dossier, view.validity)),
        _render_files(view, dossier, position) if dossier is not None else None,
        _render_next_commands(view),
        id=position.anchor,
        aria_labelledby=f"{position.anchor}-title",
    )


def _render_evidence(content: Chapter, dossier: Dossier, position: ChapterPosition) -> Iterable[Markup | None]:
    noise = content.view.noise.text if content.view.noise is not None else None
    most = MOST_PROCESS_FIGURES if position.level == 1 else MOST_PROCESS_FIGURES_OF_SEVERAL
    drawn = [render_figure(figure, position.anchor, small=True) for figure in content.processes[:most]]
    left_out = render_left_out(
        len(content.processes) - len(drawn), "figures of processes", report_command(content.view, "--figures figures")
    )
    inside = [*render_method(dossier, noise), tag("div", drawn, class_="small-figures"), left_out]
    yield position.folded("measured", "How it was measured", inside)
    yield position.section("rig", "The machine", [render_facts(dossier.rig)])


def _render_files(view: View, dossier: Dossier, position: ChapterPosition) -> Markup | None:
    where = view.saved_in[0] if view.saved_in else dossier.run
    return position.folded("files", "Every raw file", render_raw_files(dossier.files, where))


def _standing_title(view: View) -> str:
    return "The two sides" if view.comparisons else "Compared with published results"


def _render_next_commands(view: View) -> Markup | None:
    others = [command for command in view.next_commands if "--html" not in command]  # the reader has that page
    if not others:
        return None
    commands = tag("pre", "\n".join(others))
    return tag("div", tag("p", "Worth trying next:"), commands, class_="next")


def render_runs_card(chapters: Sequence[tuple[str, Chapter]]) -> Markup:
    """Return an entry per run with headline, verdict and rank. Each links to its chapter by its anchor."""
    lines = [_render_card_line(anchor, each) for anchor, each in chapters]
    return tag("nav", tag("ol", lines), class_="card", aria_label="Runs")


def render_campaign_card(card: View, chapters: Sequence[tuple[str, Chapter]]) -> Markup:
    """Return the summary of a campaign, with links to the chapters of its suites."""
    links = [tag("li", tag("a", each.view.title, href=f"#{anchor}")) for anchor, each in chapters]
    return tag(
        "div",
        [render_table(table, report_command(card, "--format csv")) for table in card.tables],
        _render_warnings("Doubtful", card.doubts),
        _render_warnings("Warning", card.warnings),
        tag("nav", tag("ol", links), aria_label="Suites"),
        class_="card",
    )


def report_command(view: View, *options: str) -> str:
    return " ".join(("rigdyno report", *map(shlex.quote, view.saved_in), *options))


def _render_card_line(anchor: str, content: Chapter) -> Markup:
    view, headline = content.view, choose_headline(content.view)
    return tag(
        "li",
        tag("a", view.title, href=f"#{anchor}"),
        tag("span", content.dossier.run, class_="run") if content.dossier is not None else None,
        _render_headline(headline) if headline is not None else None,
        tag("p", headline.place, class_="place") if headline is not None and headline.place else None,
    )


def render_answer(view: View, why: str) -> list[Markup | None]:
    """Return headline, sentences, verdict and warnings. `why` is the anchor of the reasons."""
    return [
        _render_headline(headline) if (headline := choose_headline(view)) is not None else None,
        tag("ul", [tag("li", sentence) for sentence in view.closing], class_="says") if view.closing else None,
        _render_verdict(view, why),
        _render_warnings("Doubtful", view.doubts),
        _render_warnings("Warning", view.warnings),
    ]


def _render_headline(headline: Headline) -> Markup:
    value, _, interval = format_entry(headline.figure).partition(" [")
    return tag(
        "p",
        tag("span", headline.what, class_="what"),
        " ",
        tag("strong", value, class_="figure"),
        " ",
        tag("span", f"[{interval}", class_="interval") if interval else None,
        " ",
        render_badge(headline.status) if headline.status else None,
        class_="lead",
    )


def _render_verdict(view: View, why: str) -> Markup | None:
    validity = view.validity
    if validity is None:
        return None
    if not validity.reasons:
        words = " Nothing was found that would spoil the figures."
        return tag("p", "Overall verdict: ", render_badge(validity.verdict), words, class_="verdict")
    link = tag("a", "Reasons and affected steps", href=f"#{why}")
    codes = ", ".join(reason.code.replace("_", " ") for reason in validity.reasons)
    return tag("p", "Overall verdict: ", render_badge(validity.verdict), f" {codes}. ", link, ".", class_="verdict")


def _render_warnings(word: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return tag("ul", [tag("li", tag("b", f"{word}: "), sentence) for sentence in sentences], class_="warned")


def render_method(dossier: Dossier, noise: str | None) -> list[Markup | None]:
    """Return facts, noise and processes of a run, for a folded section."""
    return [
        render_facts(dossier.measured),
        tag("p", noise) if noise else None,
        render_plain_table(
            "Every process",
            ("process", "what", "took", "steps", "warm-up cut", "memory", "disturbances"),
            [_process_cells(process) for process in dossier.processes],
            numeric=(2, 3, 4, 5),
        )
        if dossier.processes
        else None,
        render_left_out(dossier.more_processes, "processes", f"rigdyno show {shlex.quote(dossier.run)}"),
    ]


def _process_cells(process: ProcessFacts) -> tuple[Child, ...]:
    took = show_seconds(process.seconds) if process.ended.startswith("done") else process.ended
    counted = ["" if count is None else f"{count:,}" for count in (process.steps, process.cut)]
    memory = "" if process.memory_bytes is None else show_bytes(process.memory_bytes)
    return process.cell, process.what, took, *counted, memory, process.tagged


def render_facts(known: Sequence[Fact]) -> Markup:
    return tag("dl", [[tag("dt", fact.name), tag("dd", fact.value)] for fact in known])


def render_reasons(dossier: Dossier | None, validity: Validity | None) -> list[Markup | None]:
    """Return a table of the reasons of verdicts, with the affected steps if there is a run folder."""
    if dossier is not None and dossier.grounds:
        titles = ("configuration", "verdict", "reason", "what was found", "steady steps")
        rows = [_ground_cells(ground) for ground in dossier.grounds]
        table = render_plain_table("Why the figures are doubted", titles, rows, numeric=(4,))
        return [table, render_left_out(dossier.more_grounds, "reasons", f"rigdyno show {shlex.quote(dossier.run)}")]
    if validity is None or not validity.reasons:
        return []
    rows = [(reason.code.replace("_", " "), reason.sentence) for reason in validity.reasons]
    return [render_plain_table("Why the figures are doubted", ("reason", "what was found"), rows)]


def _ground_cells(ground: Ground) -> tuple[Child, ...]:
    fell_on = f"{ground.hit:,} of {ground.steps:,}" if ground.hit is not None else f"all {ground.steps:,} together"
    return ground.what, render_badge(ground.verdict), ground.code.replace("_", " "), ground.sentence, fell_on


def render_raw_files(files: RawFiles, folder: str) -> list[Markup | None]:
    """List the raw files with their hashes, and one hash over all with the command that reproduces it."""
    listing = (
        f"cd {shlex.quote(folder)} && find head.json cells -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"
    )
    lines = [f"{file.sha256}  {file.name}" for file in files.listed]
    return [
        tag(
            "p",
            f"{files.count:,} files, {show_bytes(files.size_bytes)}. The sha256 of their list is ",
            tag("code", files.digest, class_="hash"),
            ". This command computes it:",
        ),
        tag("pre", f"({listing}) | sha256sum"),
        tag("p", "Each file, in the format of ", tag("code", "sha256sum --check"), ":") if lines else None,
        tag("pre", "\n".join(lines), class_="hash") if lines else None,
        render_left_out(files.count - len(files.listed), "files", listing),
    ]


def render_left_out(count: int, what: str, command: str) -> Markup | None:
    return tag("p", f"And {count:,} more {what}: ", tag("code", command), class_="cut") if count > 0 else None
