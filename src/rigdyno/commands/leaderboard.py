"""`rigdyno leaderboard`: rank stored runs among the published machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rigdyno import catalogue
from rigdyno.base.errors import EXIT_DONE, RigdynoError, UnknownName
from rigdyno.commands.common.output import out_option
from rigdyno.report.text import render_view
from rigdyno.report.view import make_leaderboard_view
from rigdyno.schema.measured import Measurement
from rigdyno.store.index import find
from rigdyno.store.location import root_of


@click.command("leaderboard", short_help="Rank stored runs among the published machines.")
@click.argument("suite")
@click.option("--all", "every_run", is_flag=True, help="Show all stored runs, not only the newest of each machine.")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@out_option
def command(suite: str, every_run: bool, form: str, out: str | None) -> int:
    """Rank stored runs among the published machines. Published rows are marked, with their source and a note.

    \b
    Example:
      rigdyno leaderboard device
    """
    ranked = [name for name in catalogue.names("suite") if hasattr(catalogue.load("suite", name), "leaderboard")]
    if suite not in ranked:
        raise UnknownName("suite with a leaderboard", suite, ranked)
    board = catalogue.load("suite", suite)()
    found, warnings = _load_measurements(root_of(out), board.ranked_workload)
    ranked_runs = found if every_run else _newest_of_each(found)
    click.echo(render_view(make_leaderboard_view(board.leaderboard(ranked_runs), warnings), form), nl=False)
    return EXIT_DONE


def _load_measurements(root: Path, workload: str) -> tuple[list[Measurement], list[str]]:
    """Load each run separately and completely.

    Processes of two runs aren't repeats of each other, and verdicts depend on the limits measured in the same run.
    """
    from rigdyno import api

    entries, warnings = find(root, workload=workload) if root.is_dir() else ([], [])
    found: list[Measurement] = []
    for path in dict.fromkeys(entry.path.parent.parent for entry in entries):
        try:
            run = api.load(path)
            found += [figure for figure in run.measurements if figure.spec.workload == workload]
            warnings += [warning for warning in run.warnings if warning not in warnings]
        except RigdynoError as error:
            warnings.append(f"skipped: {error}")
    return found, warnings


def _newest_of_each(found: Sequence[Measurement]) -> list[Measurement]:
    newest: dict[tuple[object, ...], Measurement] = {}
    for measurement in found:
        record = measurement.records[-1]
        options = tuple(sorted(measurement.spec.options.items()))
        newest[(record.label, record.system.line(), measurement.spec.device, options)] = measurement
    return list(newest.values())
