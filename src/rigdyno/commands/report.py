"""`rigdyno report`: the table of stored runs, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno import catalogue
from rigdyno.commands._shared import newest_or, out_option, rendered
from rigdyno.errors import EXIT_DONE, RigdynoError
from rigdyno.report.view import with_columns
from rigdyno.store.files import disk_errors

if TYPE_CHECKING:
    from rigdyno.api import Run


@click.command("report", short_help="The table of stored runs as text, Markdown, CSV or JSON; their figures.")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write it there.")
@click.option(
    "--column", "columns", multiple=True, metavar="NAME", help="One more column: torch, cuda, kernel, threads."
)
@click.option("--figures", type=click.Path(file_okay=False), metavar="DIR", help="Write the figures there instead.")
@click.option("--dark", is_flag=True, help="Figures for a dark ground.")
@out_option
def command(
    runs: tuple[str, ...],
    form: str,
    output: str | None,
    columns: tuple[str, ...],
    figures: str | None,
    dark: bool,
    out: str | None,
) -> int:
    """The table of stored runs; without a RUN, of the newest.

    \b
    Examples:
      rigdyno report
      rigdyno report runs/device.20260101-120000 --format markdown
      rigdyno report RUN RUN --format csv --output figures.csv
      rigdyno report --column torch --column kernel
      rigdyno report RUN --figures figures
    """
    if figures is not None:
        return _write_figures(_readable(newest_or(runs, out)), Path(figures), dark=dark)
    views = [with_columns(finished.view(), columns) for finished in _readable(newest_or(runs, out))]
    texts = [rendered(view, form) for view in views]
    text = _joined(texts, form)
    if output is None:
        click.echo(text, nl=False)
    else:
        with disk_errors(Path(output)):
            Path(output).write_text(text, encoding="utf-8")
    return EXIT_DONE


def _write_figures(finished: list[Run], folder: Path, *, dark: bool) -> int:
    """Of several runs each in a folder of its own."""
    from rigdyno.report.figure_files import write_figures

    for run in finished:
        inside = folder / run.path.name if len(finished) > 1 else folder
        drawn = run.figures()
        if not drawn:
            click.echo(f"rigdyno: {run.path} has no figures", err=True)
        for path in write_figures(drawn, inside, dark=dark):
            click.echo(path)
    return EXIT_DONE


def _readable(paths: list[Path]) -> list[Run]:
    """Several runs: one that is damaged doesn't take the others with it."""
    from rigdyno import api

    if len(paths) == 1:
        return [api.load(paths[0])]
    found = []
    for path in paths:
        try:
            found.append(api.load(path))
        except RigdynoError as error:
            click.echo(f"rigdyno: warning: skipped: {error}", err=True)
    return found


def _joined(texts: list[str], form: str) -> str:
    if form == "json" and len(texts) != 1:
        return "[" + ",\n".join(text.rstrip() for text in texts) + "]\n"
    if form == "csv":
        header = texts[0].partition("\n")[0] + "\n" if texts else ""
        return header + "".join(text.partition("\n")[2] for text in texts)
    return "\n".join(texts)
