"""`rigdyno duel`: compare two configurations, A and B, that take turns."""

from __future__ import annotations

from typing import Any

import click

from rigdyno.base.errors import EXIT_DONE
from rigdyno.base.units import seconds_from, share_from
from rigdyno.commands.common.output import exit_code, flags_of, out_option, outcome_text
from rigdyno.features.duel.plan import DuelRequest, arm_request
from rigdyno.plan.request import from_flags
from rigdyno.plan.run_options import OF_ARM, OF_DUEL
from rigdyno.plan.values import assignments
from rigdyno.report.plan_text import describe_plan
from rigdyno.report.progress import make_observer
from rigdyno.report.text import detect_page
from rigdyno.store.location import root_of

EXAMPLES = """\b
Examples:
  rigdyno duel tensor_add --a variant=as_intended --b variant=corrected
  rigdyno duel mnist_cnn --a threads=1 --b threads=2 --budget 5m
  rigdyno duel train.py:old train.py:new
  rigdyno duel resnet50 --a threads=1 --b threads=2 --by joules --budget 10m
  rigdyno duel matmul_peak --b python=other/bin/python
"""

*_OTHERS, _LAST = OF_ARM

OF_ONE_ARM = f"Setting of A: an option, {', '.join(_OTHERS)} or {_LAST}."


@click.command("duel", epilog=EXAMPLES, short_help="Compare two configurations, A and B, that take turns.")
@click.argument("target", metavar="WORKLOAD|FILE.py:FUNCTION|PLAN.toml")
@click.argument("other", required=False, metavar="[FOR B]")
@click.option("--a", "a_settings", multiple=True, metavar="KEY=VALUE", help=OF_ONE_ARM)
@click.option("--b", "b_settings", multiple=True, metavar="KEY=VALUE", help="Setting of B, likewise.")
@flags_of(OF_DUEL, in_duel=True)
@click.option(
    "--budget", metavar="TIME", default="2m", show_default=True, help="Time limit; it ends earlier once decided."
)
@click.option("--margin", default="1%", show_default=True, help="Differences up to this count as none.")
@click.option(
    "--by",
    type=click.Choice(["time", "joules"]),
    default="time",
    show_default=True,
    help="What to compare. Joules need a power meter.",
)
@out_option
@click.option("--dry-run", is_flag=True, help="Show the plan and measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print only the table and the answer.")
def command(
    target: str,
    other: str | None,
    out: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Compare two configurations, A and B, of anything that `run` takes.

    Both are in memory at the same time and take turns, in random order, in several pairs of processes. So a disturbance
    affects both. The answer is 'faster', 'slower', 'the same', or 'undecided' with how much longer it would take.

    With --by joules, a turn lasts for at least 20 readings of the power meter.
    """
    from rigdyno import api
    from rigdyno.runner.orchestrate import create_run

    head = api.prepare_duel(duel_request(target, other or target, flags))
    if not (as_json or quiet) or dry_run:
        click.echo("\n".join(describe_plan(head, root_of(out), detect_page())))
    if dry_run:
        return EXIT_DONE
    finished = api.carry_out(create_run(head, root_of(out)), head, make_observer(quiet=quiet))
    click.echo(outcome_text(finished, as_json=as_json, quiet=quiet), nl=False)
    return exit_code(finished)


def duel_request(target: str, other: str, flags: dict[str, Any]) -> DuelRequest:
    common = {option.name: flags.get(option.name) for option in OF_DUEL}
    arms = []
    for name, given in (("a", target), ("b", other)):
        settings = assignments(flags.get(f"{name}_settings") or (), f"--{name}")
        arms.append(arm_request(from_flags({"target": given, **common}), settings, f"--{name}", text=True))
    return DuelRequest(
        a=arms[0],
        b=arms[1],
        budget_seconds=seconds_from(flags["budget"]),
        margin=share_from(flags["margin"]),
        by=flags.get("by", "time"),
        label=flags.get("label"),
    )
