"""`rigdyno doctor`: what this rig is, what can be read on it, what disturbs it, and what would go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec
from rich.console import Console

from rigdyno import catalogue
from rigdyno.clock import SystemClock
from rigdyno.contracts import Probe
from rigdyno.errors import CatalogueError
from rigdyno.report.doctor import draw
from rigdyno.rig.diagnose import Progress, diagnose


@click.command(short_help="What this rig is, its meters, its noise, its traps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Leave out the traps (half a minute, most of it torch.compile).")
def doctor(as_json: bool, quick: bool) -> None:
    """Look over this rig: hardware, limits, software, meters, noise now, and traps.

    Each trap is tried in a process of its own, so that a crash is a finding.
    """
    with _progress() as progress:
        diagnosis = diagnose(dict(_probes()), SystemClock(), quick, progress)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(diagnosis), indent=2))
    else:
        draw(diagnosis, Console(highlight=False))


def _probes() -> Iterator[tuple[str, Probe]]:
    """A broken one that some package installed must not keep the doctor from the rest."""
    for name in catalogue.names("probe"):
        try:
            yield name, catalogue.load("probe", name)()
        except CatalogueError as error:
            click.echo(f"warning: {error}", err=True)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A line on standard error that says what is being tried; nothing where nobody watches."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("looking at this rig") as status:
        yield lambda doing: status.update(doing)


command = doctor
