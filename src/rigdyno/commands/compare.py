"""`rigdyno compare`: two stored runs, and what may be said about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno import catalogue
from rigdyno.commands._comparing import compared, described
from rigdyno.commands._shared import newest_or, out_option, rendered, suites_at
from rigdyno.errors import EXIT_DONE, EXIT_NOTHING_MEASURED, EXIT_SLOWER, BadValue, UnknownName, UsageError
from rigdyno.report.comparison import comparison_view, demand_sentence
from rigdyno.store.campaign import is_campaign
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
    paths = newest_or((baseline, candidate), out)
    pairs = _pairs(*paths)
    found = [each for pair in pairs for each in compared(*pair, allowed)]
    slower = [] if share is None else regressions(found, share)
    for name, path in targets:
        write_json(path, catalogue.load("export", name)([each for _, run in pairs for each in run.measurements]))
    demand = None if share is None else demand_sentence(found, slower, share)
    warnings = [utf8(warning) for pair in pairs for run in pair for warning in run.warnings]
    sides = _described(paths[0], pairs[0][0]), _described(paths[1], pairs[0][1])
    view = comparison_view(found, sides, demand, warnings)
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


def _pairs(baseline: Path, candidate: Path) -> list[tuple[Run, Run]]:
    """Two runs; or of a campaign those of the suites that the other side has, too."""
    if baseline.resolve() == candidate.resolve():
        raise UsageError(f"{baseline} can't be compared with itself; name two runs")
    one, two = dict(suites_at(baseline)), dict(suites_at(candidate))
    if not is_campaign(baseline) and not is_campaign(candidate):
        return list(zip(one.values(), two.values(), strict=True))
    pairs = [(run, two[suite]) for suite, run in one.items() if suite in two]
    if not pairs:
        raise UsageError(f"{baseline} and {candidate} have no suite in common that could be compared")
    return pairs


def _described(path: Path, run: Run) -> str:
    whole = f"{utf8(path.name)}: " if is_campaign(path) else ""
    return whole + described(run)
