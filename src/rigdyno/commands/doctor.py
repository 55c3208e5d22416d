"""`rigdyno doctor`: show this machine's hardware, probes and noise, and the traps that could spoil a run."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console

from rigdyno.base.clock import SystemClock
from rigdyno.commands.common.output import probes_here, rig_progress
from rigdyno.features.doctor.diagnose import diagnose
from rigdyno.features.doctor.report import draw


@click.command(short_help="Check this machine: hardware, probes, noise, traps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Skip the traps (half a minute, most of it torch.compile).")
def doctor(as_json: bool, quick: bool) -> None:
    """Check this machine: hardware, limits, software, probes, current noise, and traps.

    Each trap is tried in its own process, so that a crash is a finding.
    """
    with rig_progress() as progress:
        diagnosis = diagnose(probes_here(), SystemClock(), quick, progress)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(diagnosis), indent=2))
    else:
        draw(diagnosis, Console(highlight=False))


command = doctor
