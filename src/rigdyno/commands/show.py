"""`rigdyno show`: everything about one run."""

from __future__ import annotations

import click

from rigdyno.commands._shared import newest_or, out_option, suites_at
from rigdyno.errors import EXIT_DONE
from rigdyno.report.page import page_of


@click.command("show", short_help="Everything about one run.")
@click.argument("run", required=False)
@out_option
def command(run: str | None, out: str | None) -> int:
    """Everything about one run: the rig, the environment, every process with its steps over time and where the warm-up
    was cut; without a RUN, of the newest."""
    from rigdyno.report.show import run_text

    for _, shown in suites_at(newest_or((run,) if run else (), out)[0]):
        click.echo(run_text(shown.head, shown.cells, shown.view(), page_of()), nl=False)
    return EXIT_DONE
