"""`rigdyno run`: measure a suite, all suites, a plan, a workload or a user's own step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from rigdyno.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_NOTHING_MEASURED, DamagedRun, RigdynoError, UsageError
from rigdyno.commands.common.output import OutputOptions, exit_code, flags_of, out_option, outcome_text, write_page_of
from rigdyno.features.campaign.plan import ALL
from rigdyno.features.campaign.report import campaign_lines
from rigdyno.launchers.nodes.streams import read_secret
from rigdyno.plan.build import can_reach_nodes, is_inference, is_own_loop, workload_of
from rigdyno.plan.request import Request, from_flags, is_given
from rigdyno.plan.run_options import FLAGS
from rigdyno.report.plan_text import describe_plan
from rigdyno.report.progress import make_observer
from rigdyno.report.text import detect_page, join_documents, render_view, render_view_or_json
from rigdyno.schema.record import RunHead
from rigdyno.schema.spec import RunSpec
from rigdyno.store.campaign import is_campaign
from rigdyno.store.folder import RunFolder
from rigdyno.store.location import root_of

if TYPE_CHECKING:
    from rigdyno.features.campaign.run import Campaign, PreparedCampaign

EXAMPLES = """\b
Examples:
  rigdyno run all
  rigdyno run device --budget 2m
  rigdyno run device --soak 10m
  rigdyno run tensor_add --set variant=corrected --sweep size=1024,4096,12288
  rigdyno run train.py:step --set unit=image --repeat 3
  rigdyno run plan.toml --dry-run
  rigdyno run scaling --hosts 10.0.0.1,10.0.0.2
  rigdyno run scaling --launcher slurm --nodes 2 --ranks 1 --threads 8
  rigdyno run scaling --nodes 2 --node-rank 0 --rendezvous 10.0.0.1:29500
"""


@click.command("run", epilog=EXAMPLES, short_help="Measure a suite, a plan, a workload or your own step.")
@click.argument("target", required=False, metavar="SUITE|all|PLAN.toml|WORKLOAD|FILE.py:FUNCTION")
@flags_of(FLAGS)
@out_option
@click.option(
    "--resume",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Continue an interrupted run. Failed cells are not retried.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan and measure nothing.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write an HTML page at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print only the table and the verdict.")
def command(
    target: str | None,
    resume: str | None = None,
    secret_file: str | None = None,
    out: str | None = None,
    dry_run: bool = False,
    html: str | None = None,
    as_json: bool = False,
    quiet: bool = False,
    **flags: Any,
) -> int:
    """Measure a suite, all suites that can run here, a plan, a workload or your own step.

    Every configuration runs in a fresh process, and every step is stored in the run folder. `run all` takes 15 minutes
    unless --budget is given. --resume also runs cells again that lost their nodes."""
    from rigdyno import api  # imports numpy, which --help doesn't need
    from rigdyno.runner.orchestrate import create_run  # imports numpy, which --help doesn't need
    from rigdyno.runner.sessions import open_run_sessions  # imports numpy, which --help doesn't need

    folder: RunFolder | None = None
    if resume is not None:
        _require_alone(target, flags)
        if is_campaign(Path(resume)):
            return _resume_campaign(Path(resume), OutputOptions(as_json, quiet, html), dry_run=dry_run)
        folder, head = _load_resumable(resume)
    else:
        request = from_flags({"target": target, **flags})
        if request.node_rank > 0:
            return _take_part(request, read_secret(secret_file), quiet=quiet)
        if request.target == ALL:
            return run_all(request, root_of(out), OutputOptions(as_json, quiet, html), dry_run=dry_run)
        head = api.prepare(request)
    verbose = not (as_json or quiet)
    if dry_run and as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"plan": head.plan}), indent=2))
    elif verbose or dry_run:
        click.echo("\n".join(describe_plan(head, root_of(out), detect_page(), every_cell=dry_run)))
    if dry_run:
        return EXIT_DONE
    with open_run_sessions(head, folder, read_secret(secret_file), _make_printer(quiet=quiet)) as sessions:
        if folder is None:
            folder = create_run(head, root_of(out))
        finished = api.carry_out(folder, head, make_observer(quiet=quiet), sessions)
    click.echo(outcome_text(finished, as_json=as_json, quiet=quiet), nl=False)
    write_page_of(folder.path, html, quiet=as_json or quiet)
    return exit_code(finished)


def run_all(request: Request, root: Path, ending: OutputOptions, *, dry_run: bool) -> int:
    from rigdyno import api
    from rigdyno.features.campaign import run as campaign

    prepared = campaign.prepare_campaign(request)
    if dry_run and ending.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_plan_document(prepared)), indent=2))
    elif dry_run or not (ending.as_json or ending.quiet):
        lines = campaign_lines(prepared.plan, prepared.rig, root, detect_page(), every_cell=dry_run)
        click.echo("\n".join(lines))
    if dry_run:
        return EXIT_DONE
    return run_campaign(campaign.create_campaign(prepared, root, api.load), ending)


def _plan_document(prepared: PreparedCampaign) -> dict[str, object]:
    plan = prepared.plan
    return {"plans": plan.plans, "left_out": plan.left_out, "budget_seconds": plan.budget_seconds}


def run_campaign(found: Campaign, ending: OutputOptions) -> int:
    """Run all cells of a campaign that have no record yet, and print its card."""
    from rigdyno import api
    from rigdyno.features.campaign.run import CampaignRunner

    CampaignRunner(found, api.carry_out_within, lambda stage: make_observer(quiet=ending.quiet, stage=stage)).conduct()
    views = found.views()
    if ending.as_json:
        click.echo(join_documents([render_view(view, "json") for view in views], "json"), nl=False)
    else:
        click.echo(render_view_or_json(views[0], as_json=False, quiet=ending.quiet), nl=False)
    write_page_of(found.folder.path, ending.html, quiet=ending.as_json or ending.quiet)
    return campaign_exit_code(found)


def campaign_exit_code(found: Campaign) -> int:
    """Return the exit code: a suite that can't run here isn't a failure, one that was planned and didn't run is."""
    codes = [exit_code(run) for run in found.runs.values()]
    if found.troubles or EXIT_FAILED in codes:
        return EXIT_FAILED
    return EXIT_DONE if EXIT_DONE in codes else EXIT_NOTHING_MEASURED


def _make_printer(*, quiet: bool) -> Callable[[str], None]:
    return (lambda words: None) if quiet else (lambda words: click.echo(f"rigdyno: {words}", err=True))


def _take_part(request: Request, secret: bytes | None, *, quiet: bool) -> int:
    from rigdyno.runner.node import by_hand

    say = _make_printer(quiet=quiet)
    count = by_hand(request.rendezvous, request.node_rank, secret, say)
    cells = f"{count} cell{'s' if count != 1 else ''}"
    say(f"node {request.node_rank}: over after {cells}; the tables are on the first node")
    return EXIT_DONE


def _require_alone(target: str | None, flags: dict[str, Any]) -> None:
    given = ["a target"] if target is not None else []
    given += [option.flag for option in FLAGS if is_given(flags.get(option.name))]
    if given:
        raise UsageError(f"--resume uses the stored plan: leave out {', '.join(given)}")


def _resume_campaign(path: Path, ending: OutputOptions, *, dry_run: bool) -> int:
    from rigdyno import api

    found = api.load_campaign(path)
    if dry_run:
        raise UsageError(f"--dry-run shows a new plan; `rigdyno report {path}` shows what is left of this one")
    for suite, run in list(found.runs.items()):
        try:
            _require_resumable(run.folder, run.head)
        except RigdynoError as error:  # the other suites can still be resumed
            found.troubles[suite] = str(error)
            del found.runs[suite]
    return run_campaign(found, ending)


def _load_resumable(resume: str) -> tuple[RunFolder, RunHead]:
    folder = RunFolder.existing(Path(resume))
    head = folder.head()
    _require_resumable(folder, head)
    return folder, head


def _require_resumable(folder: RunFolder, head: RunHead) -> None:
    if any(is_inference(cell.spec) for cell in head.plan.cells):
        raise UsageError(f"{folder.path} is a run of `rigdyno infer`: run the same command again to continue")
    if not can_reach_nodes(head.plan.reach, head.plan.cells):
        raise DamagedRun(f"{folder.path} doesn't say how its nodes are reached")
    for cell in head.plan.runnable:
        if not folder.is_finished(cell):
            _require_runnable(cell.spec)


def _require_runnable(spec: RunSpec) -> None:
    """Check that a cell can run again, before the folder of its unfinished attempt is emptied."""
    if is_own_loop(spec):
        raise UsageError(f"'{spec.workload}' was measured inside a script of yours: run that script again")
    workload_of(spec)
