"""`rigdyno report`: the table of stored runs, in any format; or one page of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from rigdyno import catalogue
from rigdyno.commands._page import material_at, not_drawn, open_page, page_text, write_page
from rigdyno.commands._shared import joined, newest_or, out_option, rendered, views_at
from rigdyno.errors import EXIT_DONE, RigdynoError, UsageError
from rigdyno.report.view import all_with_columns
from rigdyno.store.files import disk_errors

T = TypeVar("T")


@click.command("report", short_help="The table of stored runs, in any format; their figures; one page of all.")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option(
    "--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write one page that opens without a network."
)
@click.option("--open", "open_it", is_flag=True, help="Open that page in a browser.")
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
    html: str | None,
    open_it: bool,
    output: str | None,
    columns: tuple[str, ...],
    figures: str | None,
    dark: bool,
    out: str | None,
) -> int:
    """The table of stored runs; without a RUN, of the newest. The page of several holds each against the first.

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
    paths = newest_or(runs, out)
    if figures is not None:
        return _write_figures(paths, Path(figures), dark=dark)
    if html is not None:
        return _page(paths, Path(html), columns, open_it=open_it)
    text = _page_text(paths, columns) if form == "html" else _texts(paths, form, columns)
    if output is None:
        click.echo(text, nl=False)
    else:
        with disk_errors(Path(output)):
            Path(output).write_text(text, encoding="utf-8")
    return EXIT_DONE


def _write_figures(paths: list[Path], folder: Path, *, dark: bool) -> int:
    """Of several runs each in a folder of its own."""
    from rigdyno.report.figure_files import write_figures

    finished = [run for material in _readable(paths, material_at) for run in material.runs]
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
        raise UsageError("--open opens a page that is written: add --html report.html")
    if html is not None and (output is not None or form not in ("terminal", "html")):
        raise UsageError("--html FILE says form and file already: leave out --format and --output")


def _page(paths: list[Path], file: Path, columns: Sequence[str], *, open_it: bool) -> int:
    text = _page_text(paths, columns)
    click.echo(write_page(text, file))
    for trouble in (not_drawn(text), open_page(file) if open_it else None):
        if trouble is not None:
            click.echo(f"rigdyno: warning: {trouble}", err=True)
    return EXIT_DONE


def _page_text(paths: list[Path], columns: Sequence[str]) -> str:
    found = _readable(paths, material_at)
    if not any(each.runs for each in found):
        raise UsageError("none of these runs can be read, so there is no page")
    return page_text(found, columns)


def _texts(paths: list[Path], form: str, columns: Sequence[str]) -> str:
    views = [view for views in _readable(paths, views_at) for view in views]
    return joined([rendered(view, form) for view in all_with_columns(views, columns)], form)


def _readable(paths: list[Path], read: Callable[[Path], T]) -> list[T]:
    """Several runs: one that is damaged doesn't take the others with it."""
    if len(paths) == 1:
        return [read(paths[0])]
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except RigdynoError as error:
            click.echo(f"rigdyno: warning: skipped: {error}", err=True)
    return found
