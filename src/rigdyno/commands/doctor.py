"""`rigdyno doctor`: what this rig is, what can be read on it, what disturbs it, and what would go wrong."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console

from rigdyno.clock import SystemClock
from rigdyno.commands._shared import probes_here, rig_progress
from rigdyno.report.doctor import draw
from rigdyno.rig.diagnose import diagnose


@click.command(short_help="What this rig is, its meters, its noise, its traps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Leave out the traps (half a minute, most of it torch.compile).")
def doctor(as_json: bool, quick: bool) -> None:
    """Look over this rig: hardware, limits, software, meters, noise now, and traps.

    Each trap is tried in a process of its own, so that a crash is a finding.
    """
    with rig_progress() as progress:
        diagnosis = diagnose(probes_here(), SystemClock(), quick, progress)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(diagnosis), indent=2))
    else:
        draw(diagnosis, Console(highlight=False))


command = doctor
