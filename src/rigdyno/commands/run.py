"""`rigdyno run`: measures a suite, a plan, a workload or a user's own step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rigdyno.commands._shared import exit_code, out_option, outcome_text, root_of
from rigdyno.errors import EXIT_DONE, DamagedRun, UsageError
from rigdyno.launchers._children import SECRET_VARIABLE
from rigdyno.launchers._nodes.secret import read_secret
from rigdyno.plan.build import is_inference, is_own_loop, workload_of
from rigdyno.plan.hosts import read_hosts
from rigdyno.plan.load import Request, assignments, from_toml, overridden, sweeps
from rigdyno.report.page import page_of
from rigdyno.report.plan_text import plan_lines
from rigdyno.report.progress import observer_for
from rigdyno.schema.record import RunHead
from rigdyno.schema.spec import RunSpec
from rigdyno.store.folder import RunFolder
from rigdyno.units import seconds_from

EXAMPLES = """\b
Examples:
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
@click.argument("target", required=False, metavar="SUITE|PLAN.toml|WORKLOAD|FILE.py:FUNCTION")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the workload.")
@click.option("--sweep", multiple=True, metavar="KEY=A,B", help="Every one of these values in turn.")
@click.option("--weights", metavar="FILE", help="A state dict to begin with, for a model that takes one.")
@click.option("--budget", metavar="TIME", help="For everything together: 30s, 5m, 1h.")
@click.option("--steps", type=int, help="At most so many steps after warm-up, in each process.")
@click.option("--soak", metavar="TIME", help="One long run: burst against sustained, throttling recognised.")
@click.option("--full", is_flag=True, help="A suite at full length.")
@click.option("--repeat", type=int, help="Processes for each configuration.")
@click.option("--device", help="cpu, cuda, cuda:1, xpu, mps; else the best that is here.")
@click.option("--threads", type=int, help="CPU threads of the framework.")
@click.option("--ranks", type=int, help="Processes that work together on a node: at most so many in a suite.")
@click.option("--nodes", type=int, help="Machines that work together; the same command on each of them.")
@click.option("--node-rank", type=int, help="Which of them this one is, from 0; tables are made on the first.")
@click.option(
    "--hosts", metavar="A,B|FILE", help="The machines by name, this one first: the others are reached by ssh."
)
@click.option("--remote-python", metavar="FILE", help="The interpreter on the other machines; else of the same path.")
@click.option("--slurm", multiple=True, metavar="KEY[=VALUE]", help="Of salloc: partition, time, account, gres, ...")
@click.option("--rendezvous", metavar="HOST:PORT", help="Where the first one is found, and a free port of it.")
@click.option(
    "--secret-file", metavar="FILE", help=f"What nodes started by hand know each other by (else ${SECRET_VARIABLE})."
)
@click.option("--seed", type=int, help="Of everything random.")
@click.option("--label", help="What to call this rig in tables.")
@click.option("--update", help="How a batch changes the parameters.")
@click.option("--arrangement", help="How parties share the work.")
@click.option("--launcher", help="How workers are started; inline for debugging.")
@out_option
@click.option(
    "--resume",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Run what an earlier run has left, and what lost its nodes; what failed stays failed.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan, and measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="Only the table and the verdict.")
def command(
    target: str | None,
    resume: str | None = None,
    secret_file: str | None = None,
    out: str | None = None,
    dry_run: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    **flags: Any,
) -> int:
    """Measures a suite, a plan, a workload or your own step.

    Every configuration runs in a fresh process; every step is kept in the run folder."""
    from rigdyno import api  # brings numpy, which --help can do without

    folder: RunFolder | None = None
    if resume is not None:
        folder, head = _resumed(resume, target, flags)
    else:
        request = _request(target, flags)
        if request.node_rank > 0:
            return _take_part(request, read_secret(secret_file), quiet=quiet)
        head = api.prepare(request)
    talk = not (as_json or quiet)
    if talk or dry_run:
        click.echo("\n".join(plan_lines(head, root_of(out), page_of(), every_cell=dry_run)))
    if dry_run:
        return EXIT_DONE
    with api.sessions(head, folder, read_secret(secret_file), _saying(quiet=quiet)) as sessions:
        if folder is None:
            folder = api.start(head, root_of(out))
        finished = api.carry_out(folder, head, observer_for(quiet=quiet), sessions)
    click.echo(outcome_text(finished, as_json=as_json, quiet=quiet), nl=False)
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


def _resumed(resume: str, target: str | None, flags: dict[str, Any]) -> tuple[RunFolder, RunHead]:
    given = [name for name, value in {"a target": target, **flags}.items() if value not in (None, (), False)]
    if given:
        raise UsageError(f"--resume goes on with its own plan: leave out {', '.join(given)}")
    folder = RunFolder.existing(Path(resume))
    head = folder.head()
    if any(is_inference(cell.spec) for cell in head.plan.cells):
        raise UsageError(f"{folder.path} is of `rigdyno infer`: run the same command as then, and it goes on")
    if head.plan.reach.lacks_something(head.plan.cells):
        raise DamagedRun(f"{folder.path} doesn't say how its nodes are reached")
    for cell in head.plan.runnable:
        if not folder.is_finished(cell):
            _require_runnable(cell.spec)
    return folder, head


def _require_runnable(spec: RunSpec) -> None:
    """Before the folder of an unfinished attempt is emptied for a new one."""
    if is_own_loop(spec):
        raise UsageError(f"'{spec.workload}' was measured inside a script of yours: run that script again")
    workload_of(spec)


def _request(target: str | None, flags: dict[str, Any]) -> Request:
    fields = {name: value for name, value in flags.items() if name not in ("settings", "sweep", "budget", "soak")}
    if fields.pop("hosts", None):
        hosts = read_hosts(flags["hosts"])
        fields["hosts"], fields["nodes"] = hosts, fields.get("nodes") or len(hosts)
    fields["options"] = dict(assignments(flags.get("settings") or (), "--set"))
    if weights := fields.pop("weights", None):
        fields["options"]["weights"] = weights
    fields["slurm"] = {key: value for key, _, value in (pair.partition("=") for pair in flags.get("slurm") or ())}
    fields["sweep"] = sweeps(flags.get("sweep") or ())
    for name in ("budget", "soak"):
        fields[f"{name}_seconds"] = seconds_from(flags[name]) if flags.get(name) else None
    if target is not None and target.endswith(".toml"):
        return overridden(from_toml(Path(target)), fields)
    return overridden(Request(target=target or ""), fields)
