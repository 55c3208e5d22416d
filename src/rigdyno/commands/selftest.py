"""`rigdyno selftest`: what works on this rig, in two minutes, in one file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import msgspec

from rigdyno import __version__
from rigdyno.clock import SystemClock
from rigdyno.commands._shared import probes_here, rig_progress
from rigdyno.errors import EXIT_DONE, EXIT_FAILED
from rigdyno.rig.diagnose import diagnose
from rigdyno.schema.selftest import Result, SelfTest, Tried
from rigdyno.store.files import disk_errors
from rigdyno.units import seconds_from, show_seconds

FILE = "rigdyno-selftest.json"
RESULTS: dict[Result, str] = {
    "works": "work", "fails": "fail", "can't run here": "can't run here", "not tried": "were not tried",
}  # fmt: skip


@click.command("selftest", short_help="What works on this rig: one file for a report of a fault.")
@click.option("--budget", metavar="TIME", default="2m", show_default=True, help="What isn't reached is named.")
@click.option("--file", "path", metavar="FILE", default=FILE, show_default=True, help="Where the result goes.")
def command(budget: str, path: str) -> int:
    """Takes every path that this rig's devices can take, at a small size.

    Every workload on every device, several ranks, every update, a duel, every precision and variant. The file holds
    what worked, what didn't and why, with the hardware, versions and meters; no name of the host or the user."""
    from rigdyno.selftest import Bench, trials, without_names

    seconds, clock = seconds_from(budget), SystemClock()
    with disk_errors(Path(path)):
        Path(path).open("a").close()  # not only when all is over
    with rig_progress() as say, tempfile.TemporaryDirectory(prefix="rigdyno-selftest") as folder:
        diagnosis = diagnose(probes_here(), clock, quick=True, progress=say)
        bench, found = Bench(diagnosis, Path(folder), clock, seconds), []
        try:
            for trial in trials(diagnosis):
                say(trial.name)
                found.append(bench.tried(trial))
                _show(found[-1])
        finally:  # also after Ctrl-C: what was found until then may be what is wanted
            result = SelfTest(rigdyno_version=__version__, diagnosis=diagnosis, tried=tuple(found))
            content = without_names(msgspec.to_builtins(result), Path(folder))
            with disk_errors(Path(path)):
                Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    click.echo(_closing(found, path))
    return EXIT_FAILED if result.fails else EXIT_DONE


def _show(tried: Tried) -> None:
    if tried.result != "not tried":
        reason = f": {tried.words}" if tried.words else ""
        click.echo(f"{tried.result:>14}  {tried.name} ({show_seconds(tried.seconds)}){reason}")


def _closing(found: list[Tried], path: str) -> str:
    by_result = {result: [each.name for each in found if each.result == result] for result in RESULTS}
    counts = ", ".join(f"{len(names)} {RESULTS[result]}" for result, names in by_result.items() if names)
    missed = by_result["not tried"]
    late = f"\nThe time was up before: {', '.join(missed)}; try a larger --budget" if missed else ""
    return f"{counts}; saved in {path}{late}"
