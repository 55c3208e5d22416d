"""`rigdyno compare`: compare two stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno import catalogue
from rigdyno.base.errors import EXIT_DONE, EXIT_NOTHING_MEASURED, EXIT_SLOWER, BadValue, UnknownName, UsageError
from rigdyno.base.units import share_from, show_percent
from rigdyno.commands.common.output import EXPORTS, export_run, load_export, out_option, suites_at
from rigdyno.commands.common.page import compare_runs, describe_run
from rigdyno.report.comparison import describe_fail_on, make_comparison_view
from rigdyno.report.text import render_view
from rigdyno.store.campaign import is_campaign, named_or_newest_runs
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.api import Run

EXAMPLES = """\b
Examples:
  rigdyno compare runs/device.20260101-120000 runs/device.20260102-120000
  rigdyno compare OLD NEW --fail-on slower=3%
  rigdyno compare OLD NEW --export github-action-benchmark=rates.json

Exit codes: 0 compared, 2 usage error, 3 nothing could be compared, 4 a regression by --fail-on.
"""


@click.command("compare", epilog=EXAMPLES, short_help="Compare two stored runs: faster, slower, the same?")
@click.argument("baseline")
@click.argument("candidate")
@click.option("--fail-on", metavar="slower=SHARE", help="Exit with 4 if the whole interval is slower by more.")
@click.option("--margin", default="1%", show_default=True, help="Differences up to this count as none.")
@click.option(
    "--export", "exports", multiple=True, metavar="FORM=FILE", help=f"Export the candidate: {', '.join(EXPORTS)}."
)
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
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
    """Compare two stored runs, given by path or name: is the candidate faster, slower, or the same?

    Differences in system, environment and options are listed. Configurations are matched by workload, options, update,
    arrangement and kind of device. Both runs need several processes (--repeat 3 or more).
    """
    from rigdyno.features.duel.compare import regressions

    allowed, targets = _parse_margin(margin), [_parse_export(text) for text in exports]
    share = None if fail_on is None else _parse_fail_on(fail_on, allowed)
    paths = named_or_newest_runs((baseline, candidate), out)
    pairs = _load_pairs(*paths)
    found = [each for pair in pairs for each in compare_runs(*pair, allowed)]
    slower = [] if share is None else regressions(found, share)
    for name, path in targets:
        load_export(name)([export_run(run) for _, run in pairs], path)
    demand = None if share is None else describe_fail_on(found, slower, share)
    warnings = [utf8(warning) for pair in pairs for run in pair for warning in run.warnings]
    sides = _describe(paths[0], pairs[0][0]), _describe(paths[1], pairs[0][1])
    view = make_comparison_view(found, sides, demand, warnings)
    click.echo(render_view(view, "json" if as_json else form), nl=False)
    if all(each.answer == "NOT_COMPARABLE" for each in found):
        return EXIT_NOTHING_MEASURED
    return EXIT_SLOWER if slower else EXIT_DONE


def _parse_margin(text: str) -> float:
    margin = share_from(text)
    if not 0 < margin < 1:
        raise BadValue(f"--margin must be between 0 and 100 %, not '{text}'; try 1%")
    return margin


def _parse_fail_on(text: str, margin: float) -> float:
    what, equals, share = text.partition("=")
    if what != "slower" or not equals:
        raise BadValue(f"--fail-on takes slower=SHARE, not '{text}'; try slower=3%")
    slower = share_from(share)
    if not margin <= slower < 1:
        at_least = show_percent(margin)
        raise BadValue(f"--fail-on slower={share} must be between the margin ({at_least}, --margin) and 100 %")
    return slower


def _parse_export(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if name not in EXPORTS:
        raise UnknownName("export", name, EXPORTS)
    if not equals or not path:
        raise BadValue(f"--export takes FORM=FILE, not '{text}'; try {name}=rates.json")
    return name, Path(path)


def _load_pairs(baseline: Path, candidate: Path) -> list[tuple[Run, Run]]:
    """Load two runs; if one side is a campaign, the runs of all suites that both sides have."""
    if baseline.resolve() == candidate.resolve():
        raise UsageError(f"{baseline} can't be compared with itself; name two runs")
    one, two = dict(suites_at(baseline)), dict(suites_at(candidate))
    if not is_campaign(baseline) and not is_campaign(candidate):
        return list(zip(one.values(), two.values(), strict=True))
    pairs = [(run, two[suite]) for suite, run in one.items() if suite in two]
    if not pairs:
        raise UsageError(f"{baseline} and {candidate} have no suite in common")
    return pairs


def _describe(path: Path, run: Run) -> str:
    campaign = f"{utf8(path.name)}: " if is_campaign(path) else ""
    return campaign + describe_run(run)
