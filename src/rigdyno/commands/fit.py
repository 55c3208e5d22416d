"""`rigdyno fit`: the largest batch that trains within a memory, and how fast each size is."""

from __future__ import annotations

from typing import Any

import click

from rigdyno.commands._campaign import write_page_of
from rigdyno.commands._shared import exit_code, flags_of, out_option, outcome_text, root_of
from rigdyno.errors import EXIT_DONE
from rigdyno.plan.fit import MOST_SIZES, USUAL_SIZES, FitRequest
from rigdyno.plan.load import from_flags
from rigdyno.plan.run_options import FLAGS
from rigdyno.plan.values import NAMES
from rigdyno.report.page import page_of
from rigdyno.report.plan_text import plan_lines
from rigdyno.report.progress import observer_for

EXAMPLES = """\b
Examples:
  rigdyno fit mnist_cnn --memory 1GB
  rigdyno fit mnist_cnn --memory 1GB --update plain,dp_fast
  rigdyno fit resnet50 --memory v100 --device cuda
  rigdyno fit train.py:step --option batch --memory 8GB
"""
OF_FIT = ("set", "sweep", "weights", "memory", "budget", "repeat", "device", "threads", "ranks", "arrangement", "seed")


@click.command("fit", epilog=EXAMPLES, short_help="The largest batch that fits a memory, and the quickest.")
@click.argument("workload", metavar="WORKLOAD|FILE.py:FUNCTION")
@flags_of([option for option in FLAGS if option.name in (*OF_FIT, "label")])
@click.option(
    "--update", "updates", multiple=True, metavar="A,B", help="How a batch changes the parameters: each in turn."
)
@click.option("--option", metavar="NAME", help="What is to be as large as fits. [default: the batch]")
@click.option(
    "--sizes",
    type=click.IntRange(1, MOST_SIZES),
    default=USUAL_SIZES,
    show_default=True,
    help="How many are measured: the largest, half of it, a quarter, ...",
)
@out_option
@click.option("--dry-run", is_flag=True, help="Show the plan, and measure nothing.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write the page of it when it is over.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="Only the table and the verdict.")
def command(
    workload: str,
    updates: tuple[str, ...],
    option: str | None,
    sizes: int,
    out: str | None,
    dry_run: bool,
    html: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """The largest batch that trains within a memory, for each update, and how fast each size is.

    Each try is a process of its own, which ends if it takes far more than it may. The largest is confirmed with more
    steps, and leaves a margin. `rigdyno run --resume DIR` goes on with one that was interrupted."""
    from rigdyno import api  # brings numpy, which --help can do without

    named = tuple(dict.fromkeys(name for given in updates for name in NAMES.from_text(given, "--update")))
    request = from_flags({"target": workload, **flags})
    head = api.prepare_fit(FitRequest(request=request, updates=named or ("plain",), option=option, sizes=sizes))
    if not (as_json or quiet) or dry_run:
        click.echo("\n".join(plan_lines(head, root_of(out), page_of(), every_cell=dry_run)))
    if dry_run:
        return EXIT_DONE
    finished = api.carry_out(api.start(head, root_of(out)), head, observer_for(quiet=quiet))
    click.echo(outcome_text(finished, as_json=as_json, quiet=quiet), nl=False)
    write_page_of(finished.path, html, quiet=as_json or quiet)
    return exit_code(finished)
