"""`rigdyno selftest`: test in two minutes what works on this machine, and write the result to one file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import msgspec

from rigdyno import __version__
from rigdyno.base.clock import SystemClock
from rigdyno.base.errors import EXIT_DONE, EXIT_FAILED
from rigdyno.base.files import disk_errors
from rigdyno.base.units import seconds_from, show_seconds
from rigdyno.commands.common.output import probes_here, rig_progress
from rigdyno.features.doctor.diagnose import Result, SelfTest, TrialResult, diagnose

FILE = "rigdyno-selftest.json"

RESULTS: dict[Result, str] = {
    "works": "work", "fails": "fail", "can't run here": "can't run here", "not tried": "were not tried",
}  # fmt: skip


@click.command("selftest", short_help="Test what works on this machine; for bug reports.")
@click.option("--budget", metavar="TIME", default="2m", show_default=True, help="Time limit; the rest is skipped.")
@click.option("--file", "path", metavar="FILE", default=FILE, show_default=True, help="File to write.")
def command(budget: str, path: str) -> int:
    """Try everything that this machine's devices can run, at a small size.

    This covers every workload on every device, several ranks, every update, a duel, every precision and variant. The
    file says what worked, what didn't and why, and describes the hardware, versions and probes. It doesn't contain the
    name of the host or the user. Trials for which there is no time are listed."""
    from rigdyno import api
    from rigdyno.features.doctor.selftest import Bench, trials, without_names

    seconds, clock = seconds_from(budget), SystemClock()
    with disk_errors(Path(path)):
        Path(path).open("a").close()  # raise an error now, not at the end
    with rig_progress() as say, tempfile.TemporaryDirectory(prefix="rigdyno-selftest") as folder:
        diagnosis = diagnose(probes_here(), clock, quick=True, progress=say)
        bench, found = Bench(diagnosis, Path(folder), clock, seconds, api.measure_head), []
        try:
            for trial in trials(diagnosis, api.plan_even_duel):
                say(trial.name)
                found.append(bench.run(trial))
                _show(found[-1])
        finally:  # also after Ctrl-C: the results so far may be useful
            result = SelfTest(rigdyno_version=__version__, diagnosis=diagnosis, tried=tuple(found))
            content = without_names(msgspec.to_builtins(result), Path(folder))
            with disk_errors(Path(path)):
                Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    click.echo(_summarise(found, path))
    return EXIT_FAILED if result.fails else EXIT_DONE


def _show(tried: TrialResult) -> None:
    if tried.result != "not tried":
        reason = f": {tried.words}" if tried.words else ""
        click.echo(f"{tried.result:>14}  {tried.name} ({show_seconds(tried.seconds)}){reason}")


def _summarise(found: list[TrialResult], path: str) -> str:
    by_result = {result: [each.name for each in found if each.result == result] for result in RESULTS}
    counts = ", ".join(f"{len(names)} {RESULTS[result]}" for result, names in by_result.items() if names)
    missed = by_result["not tried"]
    late = f"\nThe time was up before: {', '.join(missed)}; try a larger --budget" if missed else ""
    return f"{counts}; saved in {path}{late}"
