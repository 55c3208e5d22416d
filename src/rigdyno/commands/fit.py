"""`rigdyno fit`: find the largest batch that fits into a memory limit, and measure how fast each size is."""

from __future__ import annotations

from typing import Any

import click

from rigdyno.base.errors import EXIT_DONE
from rigdyno.commands.common.output import exit_code, flags_of, out_option, outcome_text, write_page_of
from rigdyno.features.fit.plan import MOST_SIZES, USUAL_SIZES, FitRequest
from rigdyno.plan.request import from_flags
from rigdyno.plan.run_options import FLAGS
from rigdyno.plan.values import NAMES
from rigdyno.report.plan_text import describe_plan
from rigdyno.report.progress import make_observer
from rigdyno.report.text import detect_page
from rigdyno.store.location import root_of

EXAMPLES = """\b
Examples:
  rigdyno fit mnist_cnn --memory 1GB
  rigdyno fit mnist_cnn --memory 1GB --update plain,dp_fast
  rigdyno fit resnet50 --memory v100 --device cuda
  rigdyno fit train.py:step --option batch --memory 8GB
"""

OF_FIT = ("set", "sweep", "weights", "memory", "budget", "repeat", "device", "threads", "ranks", "arrangement", "seed")


@click.command("fit", epilog=EXAMPLES, short_help="Find the largest and the fastest batch that fit.")
@click.argument("workload", metavar="WORKLOAD|FILE.py:FUNCTION")
@flags_of([option for option in FLAGS if option.name in (*OF_FIT, "label")])
@click.option(
    "--update", "updates", multiple=True, metavar="A,B", help="How a batch changes the parameters; measures each."
)
@click.option("--option", metavar="NAME", help="Option to maximise. [default: the batch size]")
@click.option(
    "--sizes",
    type=click.IntRange(1, MOST_SIZES),
    default=USUAL_SIZES,
    show_default=True,
    help="Number of sizes to measure: the largest, half, a quarter, ...",
)
@out_option
@click.option("--dry-run", is_flag=True, help="Show the plan and measure nothing.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write an HTML page at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print only the table and the verdict.")
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
    """Find the largest batch that fits into a memory limit, for each update, and measure how fast each size is.

    Each attempt runs in its own process, which is ended if it far exceeds the limit. The largest batch is confirmed
    with more steps, and leaves a margin. `rigdyno run --resume DIR` continues an interrupted search."""
    from rigdyno import api  # imports numpy, which --help doesn't need
    from rigdyno.runner.orchestrate import create_run  # imports numpy, which --help doesn't need

    named = tuple(dict.fromkeys(name for given in updates for name in NAMES.from_text(given, "--update")))
    request = from_flags({"target": workload, **flags})
    head = api.prepare_fit(FitRequest(request=request, updates=named or ("plain",), option=option, sizes=sizes))
    if not (as_json or quiet) or dry_run:
        click.echo("\n".join(describe_plan(head, root_of(out), detect_page(), every_cell=dry_run)))
    if dry_run:
        return EXIT_DONE
    finished = api.carry_out(create_run(head, root_of(out)), head, make_observer(quiet=quiet))
    click.echo(outcome_text(finished, as_json=as_json, quiet=quiet), nl=False)
    write_page_of(finished.path, html, quiet=as_json or quiet)
    return exit_code(finished)
