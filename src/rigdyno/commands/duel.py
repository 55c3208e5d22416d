"""`rigdyno duel`: A or B?"""

from __future__ import annotations

from typing import Any

import click

from rigdyno.commands._shared import exit_code, flags_of, out_option, outcome_text, root_of
from rigdyno.errors import EXIT_DONE
from rigdyno.plan.duel import DuelRequest, arm_request
from rigdyno.plan.load import from_flags
from rigdyno.plan.run_options import OF_ARM, OF_DUEL
from rigdyno.plan.values import assignments
from rigdyno.report.page import page_of
from rigdyno.report.plan_text import plan_lines
from rigdyno.report.progress import observer_for
from rigdyno.units import seconds_from, share_from

EXAMPLES = """\b
Examples:
  rigdyno duel tensor_add --a variant=as_intended --b variant=corrected
  rigdyno duel mnist_cnn --a threads=1 --b threads=2 --budget 5m
  rigdyno duel train.py:old train.py:new
  rigdyno duel resnet50 --a threads=1 --b threads=2 --by joules --budget 10m
  rigdyno duel matmul_peak --b python=other/bin/python
"""

*_OTHERS, _LAST = OF_ARM
OF_ONE_ARM = f"Of A alone: an option, {', '.join(_OTHERS)} or {_LAST}."


@click.command("duel", epilog=EXAMPLES, short_help="A or B? Two configurations, taking turns.")
@click.argument("target", metavar="WORKLOAD|FILE.py:FUNCTION|PLAN.toml")
@click.argument("other", required=False, metavar="[FOR B]")
@click.option("--a", "a_settings", multiple=True, metavar="KEY=VALUE", help=OF_ONE_ARM)
@click.option("--b", "b_settings", multiple=True, metavar="KEY=VALUE", help="The same of B.")
@flags_of(OF_DUEL, in_duel=True)
@click.option("--budget", metavar="TIME", default="2m", show_default=True, help="It ends earlier once it is decided.")
@click.option("--margin", default="1%", show_default=True, help="Differences up to this count as none.")
@click.option(
    "--by",
    type=click.Choice(["time", "joules"]),
    default="time",
    show_default=True,
    help="What decides; joules need a meter, and turns of at least 20 of its readings.",
)
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
