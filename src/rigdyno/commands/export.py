"""`rigdyno export`: write a run, with its raw rows, in a format for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno.base.errors import EXIT_DONE
from rigdyno.base.units import show_bytes
from rigdyno.commands.common.output import EXPORTS, export_run, load_export, suites_at
from rigdyno.store.campaign import named_or_newest_runs

if TYPE_CHECKING:
    from rigdyno.report.export_data import ExportedRun


@click.command("export", short_help="Export a run for other tools: Perfetto, SQLite, ...")
@click.argument("run", required=False)
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice(EXPORTS),
    help="Format; see docs/export.md.",
)
@click.option("--out", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="File to write.")
def command(run: str | None, form: str, out: str) -> int:
    """Export a run or a campaign for other tools, with every step and every reading; without a RUN, the newest.

    \b
    Examples:
      rigdyno export --to perfetto --out trace.json
      rigdyno export runs/device.20260101-120000 --to sqlite --out device.db
    """
    found = _load_runs(named_or_newest_runs((run,) if run else (), None)[0])
    path = Path(out)
    load_export(form)(found, path)
    click.echo(f"Wrote {path}, {show_bytes(path.stat().st_size)}.")
    return EXIT_DONE


def _load_runs(path: Path) -> list[ExportedRun]:
    from rigdyno.store.location import utf8

    runs = []
    for _, run in suites_at(path):
        runs.append(export_run(run))
        for warning in run.warnings:
            click.echo(f"rigdyno: warning: {utf8(warning)}", err=True)
    return runs
