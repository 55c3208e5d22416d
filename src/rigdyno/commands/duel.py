"""`rigdyno duel`: A or B?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rigdyno.commands._shared import exit_code, out_option, outcome_text, root_of
from rigdyno.errors import EXIT_DONE
from rigdyno.plan.duel import DuelRequest, arm_request
from rigdyno.plan.load import Request, assignments, from_toml, overridden
from rigdyno.report.page import page_of
from rigdyno.report.plan_text import plan_lines
from rigdyno.report.progress import observer_for
from rigdyno.units import seconds_from, share_from

EXAMPLES = """\b
Examples:
  rigdyno duel tensor_add --a variant=as_intended --b variant=corrected
  rigdyno duel mnist_cnn --a threads=1 --b threads=2 --budget 5m
  rigdyno duel train.py:old train.py:new
  rigdyno duel matmul_peak --b python=other/bin/python
"""


OF_ONE_ARM = "Of A alone: an option, threads, seed, device, update, arrangement or python."


@click.command("duel", epilog=EXAMPLES, short_help="A or B? Two configurations, taking turns.")
@click.argument("target", metavar="WORKLOAD|FILE.py:FUNCTION|PLAN.toml")
@click.argument("other", required=False, metavar="[FOR B]")
@click.option("--a", "a_settings", multiple=True, metavar="KEY=VALUE", help=OF_ONE_ARM)
@click.option("--b", "b_settings", multiple=True, metavar="KEY=VALUE", help="The same of B.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of both.")
@click.option("--budget", metavar="TIME", default="2m", show_default=True, help="It ends earlier once it is decided.")
@click.option("--margin", default="1%", show_default=True, help="Differences up to this count as none.")
@click.option("--device", help="cpu, cuda, cuda:1, xpu, mps; else the best that is here.")
@click.option("--threads", type=int, help="CPU threads of the framework.")
@click.option("--seed", type=int, help="Of everything random.")
@click.option("--update", help="How a batch changes the parameters.")
@click.option("--label", help="What to call this rig in tables.")
@out_option
@click.option("--dry-run", is_flag=True, help="Show the plan, and measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="Only the table and the answer.")
def command(
    target: str,
    other: str | None,
    out: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """A or B? Two configurations of anything that `run` takes.

    Both are in memory at the same time and take turns, in random order, in several pairs of processes: what disturbs
    one disturbs the other. The answer is 'faster', 'slower', 'the same', or 'undecided' with how much longer it takes.
    """
    from rigdyno import api

    head = api.prepare_duel(duel_request(target, other or target, flags))
    if not (as_json or quiet) or dry_run:
        click.echo("\n".join(plan_lines(head, root_of(out), page_of())))
    if dry_run:
        return EXIT_DONE
    finished = api.carry_out(api.start(head, root_of(out)), head, observer_for(quiet=quiet))
    click.echo(outcome_text(finished, as_json=as_json, quiet=quiet), nl=False)
    return exit_code(finished)


def duel_request(target: str, other: str, flags: dict[str, Any]) -> DuelRequest:
    arms = []
    for name, given in (("a", target), ("b", other)):
        settings = assignments(flags.get(f"{name}_settings") or (), f"--{name}")
        arms.append(arm_request(_common(given, flags), settings, f"--{name}", text=True))
    return DuelRequest(
        a=arms[0],
        b=arms[1],
        budget_seconds=seconds_from(flags["budget"]),
        margin=share_from(flags["margin"]),
        label=flags.get("label"),
    )


def _common(target: str, flags: dict[str, Any]) -> Request:
    fields = {name: flags.get(name) for name in ("device", "threads", "seed", "update")}
    fields["options"] = dict(assignments(flags.get("settings") or (), "--set"))
    plan = from_toml(Path(target)) if target.endswith(".toml") else Request(target=target)
    return overridden(plan, fields)
