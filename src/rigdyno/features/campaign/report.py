"""The report of a campaign: its plan before it runs, and its card with one line per suite."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rigdyno.base.units import show_bytes, show_seconds
from rigdyno.features.campaign.plan import CampaignPlan
from rigdyno.plan.resources import disk_bytes, free_disk_bytes
from rigdyno.report.plan_text import describe_planned_cell, describe_refusals, summarise_campaign_part
from rigdyno.report.text import Page
from rigdyno.schema.estimate import Missing
from rigdyno.schema.metric import THROUGHPUT
from rigdyno.schema.view import Column, Entry, Headline, Row, Table, Text, View
from rigdyno.store.campaign import CampaignHead

COLUMNS = (
    Column(key="suite", title="suite", numeric=False),
    Column(key="what", title="what", numeric=False, identifies=True),
    Column(key="figure", title="figure", metric=THROUGHPUT),
    Column(key="place", title="among the published", numeric=False),
)

CARD_TITLE = "Every suite in a line"


class SuiteReport(NamedTuple):
    suite: str
    view: View | None  # None: it can't be read
    remarks: Sequence[str] = ()
    unfinished: str | None = None
    trouble: str | None = None  # why it wasn't run to its end


def campaign_lines(plan: CampaignPlan, rig: str, root: Path, page: Page, *, every_cell: bool = False) -> list[str]:
    lines = textwrap.wrap(f"This machine: {rig}", page.width, subsequent_indent="  ")
    count, seconds = len(plan.plans), show_seconds(plan.budget_seconds)
    lines.append(f"Plan: {count} suite{'s' if count != 1 else ''} in {seconds} (--budget)")
    for each in plan.plans:
        lines += textwrap.wrap(f"  {summarise_campaign_part(each)}", page.width, subsequent_indent="    ")
        if every_cell:
            lines += [f"  {describe_planned_cell(cell)}" for cell in each.runnable if cell.is_planned]
        if each.foreseen is not None:
            lines += textwrap.wrap(f"    {each.foreseen}", page.width, subsequent_indent="      ")
        lines += describe_refusals(each, page.width, indent="    ")
    for left_out in plan.left_out:
        words = f"  not run: {left_out.suite}: {left_out.reason}"
        lines += textwrap.wrap(words, page.width, subsequent_indent="    ")
    if every_cell:
        need = disk_bytes(sum(each.seconds for each in plan.plans), sum(len(each.cells) for each in plan.plans))
        lines.append(f"  disk: about {show_bytes(need)}, {show_bytes(free_disk_bytes(root))} are free in {root}")
    return lines


def card_view(head: CampaignHead, reports: Sequence[SuiteReport], saved_in: str, *, running: bool = False) -> View:
    """Return the card of a campaign: measured, published and left-out rows, distinguished by the last column."""
    label = f"{head.label}: " if head.label else ""
    rows = [row for report in reports for row in suite_rows(report.suite, report.view, report.trouble)]
    rows += [_left_out_row(each.suite, each.reason) for each in head.left_out]
    return View(
        title="All suites",
        rigs=(label + head.rig,),
        tables=(Table(title=CARD_TITLE, columns=COLUMNS, rows=tuple(rows), notes=_sources(reports)),),
        warnings=tuple(_warnings(reports, saved_in, running=running)),
        saved_in=(saved_in,),
        next_commands=(
            f"rigdyno report {saved_in}",
            f"rigdyno report {saved_in} --html report.html",
            f"rigdyno share {saved_in} --out card.png",
        ),
    )


def _sources(reports: Sequence[SuiteReport]) -> tuple[str, ...]:
    headlines = [report.view.headline for report in reports if report.view is not None and report.view.headline]
    sources = sorted({each.figure.source for headline in headlines for each in headline.neighbours})
    return (f"published: {', '.join(sources)}",) if sources else ()


def _warnings(reports: Sequence[SuiteReport], saved_in: str, *, running: bool) -> Iterator[str]:
    for report in reports:
        said = (*report.remarks, *filter(None, (report.trouble, report.unfinished)))
        yield from (f"{report.suite}: {words}" for words in said)
    if any(report.unfinished or report.trouble for report in reports):
        yield "it is still running" if running else f"go on with: rigdyno run --resume {saved_in}"


def is_card(view: View) -> bool:
    return bool(view.tables) and view.tables[0].title == CARD_TITLE


def suite_rows(suite: str, view: View | None, trouble: str | None = None) -> list[Row]:
    """Return the headline of a suite, followed by the nearest published figures."""
    headline = view.headline if view is not None else None
    if headline is None:
        return [_failed_row(suite, trouble or "it gave no figure")]
    entries: dict[str, Entry] = {"suite": Text(text=suite), "what": Text(text=headline.what)}
    entries |= {"figure": headline.figure, "place": Text(text=headline.place)}
    return [Row(entries=entries, status=headline.status), *published_rows(suite, headline)]


def published_rows(suite: str, headline: Headline) -> list[Row]:
    return [
        Row(
            entries={"suite": Text(text=suite), "what": Text(text=each.name), "figure": each.figure},
            origin="published",
        )
        for each in headline.neighbours
    ]


def _failed_row(suite: str, reason: str) -> Row:
    return Row(entries={"suite": Text(text=suite), "figure": Missing(reason=reason)}, status="FAILED")


def _left_out_row(suite: str, reason: str) -> Row:
    return Row(entries={"suite": Text(text=suite), "figure": Missing(reason=reason)}, status="SKIPPED")
