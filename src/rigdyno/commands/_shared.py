"""What several commands have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rigdyno import catalogue
from rigdyno.contracts import Probe
from rigdyno.errors import EXIT_DONE, EXIT_FAILED, EXIT_NOTHING_MEASURED, UsageError
from rigdyno.plan.run_options import RunOption
from rigdyno.plan.values import SWITCH, WHOLE
from rigdyno.probes._meters import installed
from rigdyno.report.page import page_of
from rigdyno.schema.record import Completed, Failed
from rigdyno.schema.view import View
from rigdyno.store.campaign import is_campaign, located, stored_folders
from rigdyno.store.location import VARIABLE, runs_root

if TYPE_CHECKING:
    from rigdyno.api import Run

Command = TypeVar("Command", bound=Callable[..., Any])


def flags_of(options: Sequence[RunOption], *, in_duel: bool = False) -> Callable[[Command], Command]:
    """The flags of these run options, by the options' names, in their order."""

    def with_flags(function: Command) -> Command:
        for option in reversed(options):
            function = click.option(
                option.flag,
                option.name,
                type=int if option.kind is WHOLE else None,
                is_flag=True if option.kind is SWITCH else None,  # False: click lets it do without a value
                multiple=option.kind.repeated,
                metavar=option.metavar,
                help=(in_duel and option.duel_help) or option.help,
            )(function)
        return function

    return with_flags


def out_option(function: Command) -> Command:
    text = f"Where runs are kept (else ${VARIABLE}, the configuration file, ./runs)."
    return click.option("--out", type=click.Path(file_okay=False), help=text)(function)


def root_of(out: str | None) -> Path:
    return runs_root(Path(out) if out else None)


def rendered(view: View, form: str) -> str:
    text: str = catalogue.load("format", form)(view, page_of())
    return text


def joined(texts: list[str], form: str) -> str:
    """Several reports as one document of that format."""
    if form == "json" and len(texts) != 1:
        return "[" + ",\n".join(text.rstrip() for text in texts) + "]\n"
    if form == "csv":
        header = texts[0].partition("\n")[0] + "\n" if texts else ""
        return header + "".join(text.partition("\n")[2] for text in texts)
    return "\n".join(texts)


def outcome_text(finished: Run, *, as_json: bool, quiet: bool) -> str:
    """What a run or a duel prints when it is over."""
    return view_text(finished.view(), as_json=as_json, quiet=quiet)


def view_text(view: View, *, as_json: bool, quiet: bool) -> str:
    """Quiet: the table and the verdict, or the answer."""
    if as_json:
        return rendered(view, "json")
    if quiet:
        import msgspec

        view = msgspec.structs.replace(view, rigs=(), saved_in=(), next_commands=())
        if not view.comparisons:
            view = msgspec.structs.replace(view, standing=(), closing=())
    return rendered(view, "terminal")


def exit_code(finished: Run) -> int:
    outcomes = [record.outcome for record in finished.records if record.attempt_of is None]
    if any(isinstance(outcome, Failed) for outcome in outcomes) or (finished.duel and finished.duel.lost):
        return EXIT_FAILED
    if outcomes and finished.has_unbegun:
        return EXIT_FAILED
    if finished.head.plan.is_duel and finished.duel and finished.duel.comparison.answer == "NOT_COMPARABLE":
        return EXIT_NOTHING_MEASURED
    return EXIT_DONE if any(isinstance(outcome, Completed) for outcome in outcomes) else EXIT_NOTHING_MEASURED


def newest_or(runs: tuple[str, ...], out: str | None) -> list[Path]:
    """The runs that were named, as paths or as names in the store; else the newest."""
    root = root_of(out)
    if runs:
        return [located(root, name) for name in runs]
    folders = stored_folders(root)
    if not folders:
        raise UsageError(f"there is no run in {root} yet; `rigdyno` makes one in a minute")
    return [folders[-1].path]


def suites_at(path: Path) -> list[tuple[str, Run]]:
    """The one run that lies there, or all of a campaign, each with its suite's name."""
    from rigdyno import api, campaign

    if is_campaign(path):
        return list(campaign.load(path).runs.items())
    run = api.load(path)
    return [(run.head.plan.suite or run.head.plan.name, run)]


def views_at(path: Path) -> list[View]:
    """Of the run that lies there; of a campaign its card, and that of each suite."""
    from rigdyno import api, campaign

    return campaign.load(path).views() if is_campaign(path) else [api.load(path).view()]


def probes_here() -> dict[str, Probe]:
    """A broken one that some package installed must not keep the doctor from the rest."""
    return installed(lambda words: click.echo(f"warning: {words}", err=True))


@contextmanager
def rig_progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being tried; nothing where nobody watches."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("looking at this rig") as status:
        yield lambda doing: status.update(doing)
