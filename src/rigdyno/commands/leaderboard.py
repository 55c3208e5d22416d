"""`rigdyno leaderboard`: stored and published rows together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rigdyno import catalogue
from rigdyno.commands._shared import out_option, rendered, root_of
from rigdyno.errors import EXIT_DONE, RigdynoError, UnknownName
from rigdyno.report.view import board_of
from rigdyno.schema.measured import Measurement
from rigdyno.store.index import find


@click.command("leaderboard", short_help="Stored runs among the published machines.")
@click.argument("suite")
@click.option("--all", "every_run", is_flag=True, help="Every stored run, not only the newest of each rig.")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@out_option
def command(suite: str, every_run: bool, form: str, out: str | None) -> int:
    """Stored runs among the published machines; published rows are marked, with their source and note.

    \b
    Example:
      rigdyno leaderboard device
    """
    ranked = [name for name in catalogue.names("suite") if hasattr(catalogue.load("suite", name), "leaderboard")]
    if suite not in ranked:
        raise UnknownName("suite with a leaderboard", suite, ranked)
    board = catalogue.load("suite", suite)()
    found, warnings = _stored(root_of(out), board.ranked_workload)
    shown = found if every_run else _newest_of_each(found)
    click.echo(rendered(board_of(board.leaderboard(shown), warnings), form), nl=False)
    return EXIT_DONE


def _stored(root: Path, workload: str) -> tuple[list[Measurement], list[str]]:
    """Each run by itself and as a whole: processes of two runs are no repeats of each other, and a run's own limits
    belong to its verdicts."""
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
