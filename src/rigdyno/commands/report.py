"""`rigdyno report`: show the tables of stored runs in any format, draw their figures, or write one page of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from rigdyno import catalogue
from rigdyno.base.errors import EXIT_DONE, RigdynoError, UsageError
from rigdyno.base.files import disk_errors
from rigdyno.commands.common.output import out_option, views_at
from rigdyno.commands.common.page import material_at, not_drawn, open_page, page_text, write_page
from rigdyno.report.text import join_documents, render_view
from rigdyno.report.view import add_columns_to_all
from rigdyno.store.campaign import named_or_newest_runs

T = TypeVar("T")


@click.command("report", short_help="Show stored runs as tables, figures or one HTML page.")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write one HTML page that works offline.")
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
@click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to this file, not to stdout.")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Add a column: torch, cuda, kernel, threads.")
@click.option("--figures", type=click.Path(file_okay=False), metavar="DIR", help="Write the figures to this folder.")
@click.option("--dark", is_flag=True, help="Draw the figures for a dark background.")
@out_option
def command(
    runs: tuple[str, ...],
    form: str,
    html: str | None,
    open_it: bool,
    output: str | None,
    columns: tuple[str, ...],
    figures: str | None,
    dark: bool,
    out: str | None,
) -> int:
    """Show the table of stored runs; without a RUN, of the newest. A page of several runs compares each with the first.

    \b
    Examples:
      rigdyno report
      rigdyno report --html report.html --open
      rigdyno report OLD NEW --html both.html
      rigdyno report runs/device.20260101-120000 --format markdown
      rigdyno report RUN RUN --format csv --output figures.csv
      rigdyno report --column torch --column kernel
      rigdyno report RUN --figures figures
    """
    _require_one_way(html, open_it, output, form)
    paths = named_or_newest_runs(runs, out)
    if figures is not None:
        return _write_figures(paths, Path(figures), dark=dark)
    if html is not None:
        return _write_html(paths, Path(html), columns, open_it=open_it)
    text = _page_text(paths, columns) if form == "html" else _render_views(paths, form, columns)
    if output is None:
        click.echo(text, nl=False)
    else:
        with disk_errors(Path(output)):
            Path(output).write_text(text, encoding="utf-8")
    return EXIT_DONE


def _write_figures(paths: list[Path], folder: Path, *, dark: bool) -> int:
    """Write the figures; if there are several runs, each into its own folder."""
    from rigdyno.report.drawing.draw import write_figures

    finished = [run for material in _read_all(paths, material_at) for run in material.runs]
    for run in finished:
        inside = folder / run.path.name if len(finished) > 1 else folder
        drawn = run.figures()
        if not drawn:
            click.echo(f"rigdyno: {run.path} has no figures", err=True)
        for path in write_figures(drawn, inside, dark=dark):
            click.echo(path)
    return EXIT_DONE


def _require_one_way(html: str | None, open_it: bool, output: str | None, form: str) -> None:
    if html is None and open_it:
        raise UsageError("--open needs a page to open: add --html report.html")
    if html is not None and (output is not None or form not in ("terminal", "html")):
        raise UsageError("--html FILE sets format and file already: leave out --format and --output")


def _write_html(paths: list[Path], file: Path, columns: Sequence[str], *, open_it: bool) -> int:
    text = _page_text(paths, columns)
    click.echo(write_page(text, file))
    for trouble in (not_drawn(text), open_page(file) if open_it else None):
        if trouble is not None:
            click.echo(f"rigdyno: warning: {trouble}", err=True)
    return EXIT_DONE


def _page_text(paths: list[Path], columns: Sequence[str]) -> str:
    found = _read_all(paths, material_at)
    if not any(each.runs for each in found):
        raise UsageError("none of these runs can be read, so there is no page")
    return page_text(found, columns)


def _render_views(paths: list[Path], form: str, columns: Sequence[str]) -> str:
    views = [view for views in _read_all(paths, views_at) for view in views]
    return join_documents([render_view(view, form) for view in add_columns_to_all(views, columns)], form)


def _read_all(paths: list[Path], read: Callable[[Path], T]) -> list[T]:
    """Read all runs. If there are several, a damaged one is skipped with a warning."""
    if len(paths) == 1:
        return [read(paths[0])]
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except RigdynoError as error:
            click.echo(f"rigdyno: warning: skipped: {error}", err=True)
    return found
