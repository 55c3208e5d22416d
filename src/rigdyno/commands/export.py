"""`rigdyno export`: a run for other tools, raw rows included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno import catalogue
from rigdyno.commands._shared import newest_or, suites_at
from rigdyno.errors import EXIT_DONE
from rigdyno.units import show_bytes

if TYPE_CHECKING:
    from rigdyno.report.conversions._material import Converted


@click.command("export", short_help="A run for other tools: a Perfetto trace, an SQLite database.")
@click.argument("run", required=False)
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice(catalogue.names("conversion")),
    help="What reads it: docs/export.md.",
)
@click.option("--out", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="Write it there.")
def command(run: str | None, form: str, out: str) -> int:
    """A run or a campaign for other tools, with every step and every reading; without a RUN, the newest.

    \b
    Examples:
      rigdyno export --to perfetto --out trace.json
      rigdyno export runs/device.20260101-120000 --to sqlite --out device.db
    """
    found = _material(newest_or((run,) if run else (), None)[0])
    path = Path(out)
    catalogue.load("conversion", form)(found, path)
    click.echo(f"Wrote {path}, {show_bytes(path.stat().st_size)}.")
    return EXIT_DONE


def _material(path: Path) -> list[Converted]:
    from rigdyno.report.conversions._material import Converted
    from rigdyno.store.location import utf8

    material = []
    for _, run in suites_at(path):
        material.append(Converted(utf8(run.folder.name), run.head, run.cells, run.measurements))
        for warning in run.warnings:
            click.echo(f"rigdyno: warning: {utf8(warning)}", err=True)
    return material
