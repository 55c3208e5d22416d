"""`rigdyno compare`: two stored runs, and what may be said about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno import catalogue
from rigdyno.commands._comparing import compared, described
from rigdyno.commands._shared import newest_or, out_option, rendered
from rigdyno.errors import EXIT_DONE, EXIT_NOTHING_MEASURED, EXIT_SLOWER, BadValue, UnknownName, UsageError
from rigdyno.report.comparison import comparison_view, demand_sentence
from rigdyno.store.files import write_json
from rigdyno.store.location import utf8
from rigdyno.units import share_from, show_percent

if TYPE_CHECKING:
    from rigdyno.api import Run

EXPORTS = tuple(name.replace("_", "-") for name in catalogue.names("export"))
EXAMPLES = """\b
Examples:
  rigdyno compare runs/device.20260101-120000 runs/device.20260102-120000
  rigdyno compare OLD NEW --fail-on slower=3%
  rigdyno compare OLD NEW --export github-action-benchmark=rates.json

Exit codes: 0 compared, 2 wrong use, 3 nothing could be compared, 4 a regression by --fail-on.
"""


@click.command("compare", epilog=EXAMPLES, short_help="Two stored runs: faster, slower, the same?")
@click.argument("baseline")
@click.argument("candidate")
@click.option("--fail-on", metavar="slower=SHARE", help="Exit code 4 if the whole interval is slower by more.")
@click.option("--margin", default="1%", show_default=True, help="Differences up to this count as none.")
@click.option(
    "--export", "exports", multiple=True, metavar="FORM=FILE", help=f"The candidate's figures: {', '.join(EXPORTS)}."
)
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@out_option
def command(
    baseline: str,
    candidate: str,
    fail_on: str | None,
    margin: str,
    exports: tuple[str, ...],
    form: str,
    as_json: bool,
    out: str | None,
) -> int:
    """Two stored runs, by their paths or their names: is the candidate faster, slower, or the same?

    Says what differs in system, environment and options. Configurations are matched by what they are: workload,
    options, update, arrangement, kind of device. Needs several processes on both sides (--repeat 3 or more).
    """
    from rigdyno.analyse.compare import regressions

    allowed, targets = _margin(margin), [_target(text) for text in exports]
    share = None if fail_on is None else _slower_share(fail_on, allowed)
    runs = _two_runs(baseline, candidate, out)
    found = compared(*runs, allowed)
    slower = [] if share is None else regressions(found, share)
    for name, path in targets:
        write_json(path, catalogue.load("export", name)(runs[1].measurements))
    demand = None if share is None else demand_sentence(found, slower, share)
    warnings = [utf8(warning) for run in runs for warning in run.warnings]
    view = comparison_view(found, (described(runs[0]), described(runs[1])), demand, warnings)
    click.echo(rendered(view, "json" if as_json else form), nl=False)
    if all(each.answer == "NOT_COMPARABLE" for each in found):
        return EXIT_NOTHING_MEASURED
    return EXIT_SLOWER if slower else EXIT_DONE


def _margin(text: str) -> float:
    margin = share_from(text)
    if not 0 < margin < 1:
        raise BadValue(f"--margin lies between 0 and 100 %, not at '{text}'; try 1%")
    return margin


def _slower_share(text: str, margin: float) -> float:
    what, equals, share = text.partition("=")
    if what != "slower" or not equals:
        raise BadValue(f"--fail-on takes slower=SHARE, not '{text}'; try slower=3%")
    slower = share_from(share)
    if not margin <= slower < 1:
        at_least = show_percent(margin)
        raise BadValue(f"--fail-on slower={share} must lie between the margin ({at_least}, --margin) and 100 %")
    return slower


def _target(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if name not in EXPORTS:
        raise UnknownName("export", name, EXPORTS)
    if not equals or not path:
        raise BadValue(f"--export takes FORM=FILE, not '{text}'; try {name}=rates.json")
    return name.replace("-", "_"), Path(path)


def _two_runs(baseline: str, candidate: str, out: str | None) -> tuple[Run, Run]:
    from rigdyno import api

    one, two = (api.load(path) for path in newest_or((baseline, candidate), out))
    if one.path.resolve() == two.path.resolve():
        raise UsageError(f"{one.path} can't be compared with itself; name two runs")
    return one, two
