"""`rigdyno show`: show all details of one run."""

from __future__ import annotations

import click

from rigdyno.base.errors import EXIT_DONE
from rigdyno.commands.common.output import out_option, suites_at
from rigdyno.report.text import detect_page
from rigdyno.store.campaign import named_or_newest_runs


@click.command("show", short_help="Show all details of one run.")
@click.argument("run", required=False)
@out_option
def command(run: str | None, out: str | None) -> int:
    """Show all details of one run; without a RUN, of the newest.

    These are the machine, the environment, and every process with its steps over time and the end of the warm-up."""
    from rigdyno.report.show import describe_run_in_full

    for _, found in suites_at(named_or_newest_runs((run,) if run else (), out)[0]):
        click.echo(describe_run_in_full(found.head, found.cells, found.view(), detect_page()), nl=False)
    return EXIT_DONE
