"""Options, exit codes and output that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from rigdyno import catalogue
from rigdyno.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_NOTHING_MEASURED, BadValue
from rigdyno.contracts import Probe
from rigdyno.plan.run_options import RunOption
from rigdyno.plan.values import SWITCH, WHOLE
from rigdyno.probes.common.probe_set import load_probes
from rigdyno.report.text import render_view_or_json
from rigdyno.schema.record import Completed, Failed
from rigdyno.schema.view import View
from rigdyno.store.campaign import is_campaign
from rigdyno.store.location import VARIABLE, utf8

if TYPE_CHECKING:
    from rigdyno.api import Run
    from rigdyno.report.export_data import ExportedRun

Command = TypeVar("Command", bound=Callable[..., Any])

MOST_DEVICES = 1_000_000

EXPORTS = tuple(name.replace("_", "-") for name in catalogue.names("export"))


def flags_of(options: Sequence[RunOption], *, in_duel: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that adds the flags of these run options to a command, in their order."""

    def add_flags(function: Command) -> Command:
        for option in reversed(options):
            function = click.option(
                option.flag,
                option.name,
                type=int if option.kind is WHOLE else None,
                is_flag=True if option.kind is SWITCH else None,  # with False, click would accept a missing value
                multiple=option.kind.repeated,
                metavar=option.metavar,
                help=(in_duel and option.duel_help) or option.help,
            )(function)
        return function

    return add_flags


def out_option(function: Command) -> Command:
    text = f"Folder of the runs (else ${VARIABLE}, the configuration file, ./runs)."
    return click.option("--out", type=click.Path(file_okay=False), help=text)(function)


def outcome_text(finished: Run, *, as_json: bool, quiet: bool) -> str:
    """Return the text that a run or a duel prints when it is over."""
    return render_view_or_json(finished.view(), as_json=as_json, quiet=quiet)


def exit_code(finished: Run) -> int:
    outcomes = [record.outcome for record in finished.records if record.attempt_of is None]
    if any(isinstance(outcome, Failed) for outcome in outcomes) or (finished.duel and finished.duel.lost):
        return EXIT_FAILED
    if outcomes and finished.has_unbegun:
        return EXIT_FAILED
    if finished.head.plan.is_duel and finished.duel and finished.duel.comparison.answer == "NOT_COMPARABLE":
        return EXIT_NOTHING_MEASURED
    return EXIT_DONE if any(isinstance(outcome, Completed) for outcome in outcomes) else EXIT_NOTHING_MEASURED


def suites_at(path: Path) -> list[tuple[str, Run]]:
    """Load the run at a path, or all runs of a campaign, each with the name of its suite."""
    from rigdyno import api

    if is_campaign(path):
        return list(api.load_campaign(path).runs.items())
    run = api.load(path)
    return [(run.head.plan.suite or run.head.plan.name, run)]


def device_counts(text: str) -> list[int]:
    """Parse the value of --devices: whole numbers, sorted, each once."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BadValue(f"--devices takes whole numbers, not '{text}'; try 16,32,64") from None
    if not 1 <= sizes[0] <= sizes[-1] <= MOST_DEVICES:
        raise BadValue(f"--devices must be between 1 and {MOST_DEVICES:,}, not '{text}'")
    return sizes


def load_export(name: str) -> Callable[[Sequence[ExportedRun], Path], None]:
    write: Callable[[Sequence[ExportedRun], Path], None] = catalogue.load("export", name.replace("-", "_"))
    return write


def export_run(run: Run) -> ExportedRun:
    """Return the data of one run that exports read."""
    from rigdyno.report.export_data import ExportedRun

    return ExportedRun(utf8(run.folder.name), run.head, run.cells, run.measurements)


def views_at(path: Path) -> list[View]:
    """Return the view of the run at a path; for a campaign, its card and the view of each suite."""
    from rigdyno import api

    return api.load_campaign(path).views() if is_campaign(path) else [api.load(path).view()]


def probes_here() -> dict[str, Probe]:
    """Load all probes. A broken one of an installed package gives a warning, so that the others still work."""
    return load_probes(lambda words: click.echo(f"warning: {words}", err=True))


@contextmanager
def rig_progress() -> Iterator[Callable[[str], None]]:
    """Show a line on standard error that says what is being tried; nothing if it isn't a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("looking at this machine") as status:
        yield lambda doing: status.update(doing)


class OutputOptions(NamedTuple):
    """How a command prints its result."""

    as_json: bool = False
    quiet: bool = False
    html: str | None = None  # path of the HTML page, if one is to be written


def write_page_of(path: Path, html: str | None, *, quiet: bool) -> None:
    """Write the HTML page of a run or a campaign, if one was requested."""
    if html is None:
        return
    from rigdyno.commands.common.page import material_at, page_text, write_page

    message = write_page(page_text([material_at(path)]), Path(html))
    if not quiet:
        click.echo(message)
