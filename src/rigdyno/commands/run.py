"""`rigdyno run`: measures a suite, a plan, a workload or a user's own step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from rigdyno.commands._campaign import Ending, conducted, run_all, write_page_of
from rigdyno.commands._shared import exit_code, flags_of, out_option, outcome_text, root_of
from rigdyno.errors import EXIT_DONE, DamagedRun, RigdynoError, UsageError
from rigdyno.launchers._nodes.secret import read_secret
from rigdyno.plan.build import is_inference, is_own_loop, workload_of
from rigdyno.plan.campaign import ALL
from rigdyno.plan.load import Request, from_flags, is_given
from rigdyno.plan.run_options import FLAGS
from rigdyno.report.page import page_of
from rigdyno.report.plan_text import plan_lines
from rigdyno.report.progress import observer_for
from rigdyno.schema.record import RunHead
from rigdyno.schema.spec import RunSpec
from rigdyno.store.campaign import is_campaign
from rigdyno.store.folder import RunFolder

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
    help="Run what an earlier run has left, and what lost its nodes; what failed stays failed.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan, and measure nothing.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write the page of it when it is over.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="Only the table and the verdict.")
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
    """Measures a suite, all suites that can run here, a plan, a workload or your own step.

    Every configuration runs in a fresh process; every step is kept in the run folder. All suites together take 15
    minutes unless --budget says otherwise."""
    from rigdyno import api  # brings numpy, which --help can do without

    folder: RunFolder | None = None
    if resume is not None:
        _require_alone(target, flags)
        if is_campaign(Path(resume)):
            return _resumed_campaign(Path(resume), Ending(as_json, quiet, html), dry_run=dry_run)
        folder, head = _resumed(resume)
    else:
        request = from_flags({"target": target, **flags})
        if request.node_rank > 0:
            return _take_part(request, read_secret(secret_file), quiet=quiet)
        if request.target == ALL:
            return run_all(request, root_of(out), Ending(as_json, quiet, html), dry_run=dry_run)
        head = api.prepare(request)
    talk = not (as_json or quiet)
    if dry_run and as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"plan": head.plan}), indent=2))
    elif talk or dry_run:
        click.echo("\n".join(plan_lines(head, root_of(out), page_of(), every_cell=dry_run)))
    if dry_run:
        return EXIT_DONE
    with api.sessions(head, folder, read_secret(secret_file), _saying(quiet=quiet)) as sessions:
        if folder is None:
            folder = api.start(head, root_of(out))
        finished = api.carry_out(folder, head, observer_for(quiet=quiet), sessions)
    click.echo(outcome_text(finished, as_json=as_json, quiet=quiet), nl=False)
    write_page_of(folder.path, html, quiet=as_json or quiet)
    return exit_code(finished)


def _saying(*, quiet: bool) -> Callable[[str], None]:
    return (lambda words: None) if quiet else (lambda words: click.echo(f"rigdyno: {words}", err=True))


def _take_part(request: Request, secret: bytes | None, *, quiet: bool) -> int:
    from rigdyno.runner.node import by_hand

    say = _saying(quiet=quiet)
    count = by_hand(request.rendezvous, request.node_rank, secret, say)
    cells = f"{count} cell{'s' if count != 1 else ''}"
    say(f"node {request.node_rank}: over after {cells}; the tables are on the first node")
    return EXIT_DONE


def _require_alone(target: str | None, flags: dict[str, Any]) -> None:
    given = ["a target"] if target is not None else []
    given += [option.flag for option in FLAGS if is_given(flags.get(option.name))]
    if given:
        raise UsageError(f"--resume goes on with its own plan: leave out {', '.join(given)}")


def _resumed_campaign(path: Path, ending: Ending, *, dry_run: bool) -> int:
    from rigdyno import campaign

    found = campaign.load(path)
    if dry_run:
        raise UsageError(f"--dry-run shows a new plan; `rigdyno report {path}` shows what is left of this one")
    for suite, run in list(found.runs.items()):
        try:
            _require_resumable(run.folder, run.head)
        except RigdynoError as error:  # the others can go on
            found.troubles[suite] = str(error)
            del found.runs[suite]
    return conducted(found, ending)


def _resumed(resume: str) -> tuple[RunFolder, RunHead]:
    folder = RunFolder.existing(Path(resume))
    head = folder.head()
    _require_resumable(folder, head)
    return folder, head


def _require_resumable(folder: RunFolder, head: RunHead) -> None:
    if any(is_inference(cell.spec) for cell in head.plan.cells):
        raise UsageError(f"{folder.path} is of `rigdyno infer`: run the same command as then, and it goes on")
    if head.plan.reach.lacks_something(head.plan.cells):
        raise DamagedRun(f"{folder.path} doesn't say how its nodes are reached")
    for cell in head.plan.runnable:
        if not folder.is_finished(cell):
            _require_runnable(cell.spec)


def _require_runnable(spec: RunSpec) -> None:
    """Before the folder of an unfinished attempt is emptied for a new one."""
    if is_own_loop(spec):
        raise UsageError(f"'{spec.workload}' was measured inside a script of yours: run that script again")
    workload_of(spec)
