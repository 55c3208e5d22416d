"""`rigdyno run all`: the plan, the display, what is printed at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from rigdyno.commands._shared import exit_code, joined, rendered, view_text
from rigdyno.errors import EXIT_DONE, EXIT_FAILED, EXIT_NOTHING_MEASURED
from rigdyno.plan.load import Request
from rigdyno.report.campaign import campaign_lines
from rigdyno.report.page import page_of
from rigdyno.report.progress import observer_for

if TYPE_CHECKING:
    from rigdyno.campaign import Campaign, Prepared


class Ending(NamedTuple):
    """How it is told what came out."""

    as_json: bool = False
    quiet: bool = False
    html: str | None = None  # a file for the page


def run_all(request: Request, root: Path, ending: Ending, *, dry_run: bool) -> int:
    from rigdyno import campaign

    prepared = campaign.prepare(request)
    if dry_run and ending.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_plan_document(prepared)), indent=2))
    elif dry_run or not (ending.as_json or ending.quiet):
        lines = campaign_lines(prepared.plan, prepared.rig, root, page_of(), every_cell=dry_run)
        click.echo("\n".join(lines))
    if dry_run:
        return EXIT_DONE
    return conducted(campaign.start(prepared, root), ending)


def _plan_document(prepared: Prepared) -> dict[str, object]:
    plan = prepared.plan
    return {"plans": plan.plans, "left_out": plan.left_out, "budget_seconds": plan.budget_seconds}


def conducted(found: Campaign, ending: Ending) -> int:
    """What has no record yet, and the card of all."""
    from rigdyno.campaign import Conductor

    Conductor(found, lambda stage: observer_for(quiet=ending.quiet, stage=stage)).conduct()
    views = found.views()
    if ending.as_json:
        click.echo(joined([rendered(view, "json") for view in views], "json"), nl=False)
    else:
        click.echo(view_text(views[0], as_json=False, quiet=ending.quiet), nl=False)
    write_page_of(found.folder.path, ending.html, quiet=ending.as_json or ending.quiet)
    return campaign_exit_code(found)


def write_page_of(path: Path, html: str | None, *, quiet: bool) -> None:
    """Where one was asked for."""
    if html is None:
        return
    from rigdyno.commands._page import material_at, page_text, write_page

    said = write_page(page_text([material_at(path)]), Path(html))
    if not quiet:
        click.echo(said)


def campaign_exit_code(found: Campaign) -> int:
    """A suite that can't run here is no failure; one that was to run and didn't is."""
    codes = [exit_code(run) for run in found.runs.values()]
    if found.troubles or EXIT_FAILED in codes:
        return EXIT_FAILED
    return EXIT_DONE if EXIT_DONE in codes else EXIT_NOTHING_MEASURED
