"""Make the HTML page of one or several loaded runs, and compare two loaded runs.

The page is for `--html` of several verbs. The comparison is for `compare` and for a page of several runs.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rigdyno.analyse.comparison import MARGIN
from rigdyno.base.files import disk_errors
from rigdyno.base.units import show_bytes
from rigdyno.report.comparison import make_comparison_view
from rigdyno.report.view import add_columns_to_all
from rigdyno.schema.comparison import Comparison
from rigdyno.schema.estimate import Reason
from rigdyno.schema.view import View
from rigdyno.store.campaign import is_campaign
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.api import Run


def compare_runs(baseline: Run, candidate: Run, margin: float) -> list[Comparison]:
    from rigdyno.features.duel.compare import Sides, compare, refuse_comparison

    runs = (baseline, candidate)
    same_name = baseline.folder.name == candidate.folder.name
    names = [utf8(str(run.path) if same_name else run.folder.name) for run in runs]
    sides = Sides(names[0], names[1], margin, _noise_floor(runs))
    for name, run in zip(names, runs, strict=True):
        if run.head.plan.is_duel:
            reason = Reason(code="duel", sentence=f"{name} is a duel, which gives ratios and no rates")
            return [refuse_comparison(run.head.plan.name, sides, reason)]
    return compare(baseline.measurements, candidate.measurements, sides)


def _noise_floor(runs: tuple[Run, Run]) -> float | None:
    """Return the larger noise floor of the two runs; None if neither measured it."""
    from rigdyno.analyse.pairs import meaningless_below

    bounds = [meaningless_below(run.duel) for run in runs if run.duel is not None and not run.head.plan.is_duel]
    return max((bound for bound in bounds if bound is not None), default=None)


def describe_run(run: Run) -> str:
    label = f"{run.head.plan.label}: " if run.head.plan.label else ""
    return f"{utf8(run.folder.name)}, {label}{run.head.system.line()}"


@dataclass(frozen=True)
class Material:
    """The content of a page: one run, or the runs of a campaign with its card."""

    runs: tuple[Run, ...]
    card: View | None = None


def material_at(path: Path) -> Material:
    from rigdyno import api

    if not is_campaign(path):
        return Material((api.load(path),))
    found = api.load_campaign(path)
    return Material(tuple(found.runs.values()), found.views()[0])


def page_text(material: Sequence[Material], columns: Sequence[str] = ()) -> str:
    from rigdyno.report.html.chapter import Chapter
    from rigdyno.report.html.page import render_page

    runs = [run for each in material for run in each.runs]
    views = add_columns_to_all([run.view() for run in runs], columns)
    chapters = [Chapter(v, r.dossier(), r.figures()[len(v.figures) :]) for v, r in zip(views, runs, strict=True)]
    comparisons = [Chapter(view) for view in _comparisons(runs)] if len(material) > 1 else []
    return render_page(chapters, comparisons, material[0].card if len(material) == 1 else None)


def _comparisons(runs: Sequence[Run]) -> Iterator[View]:
    """Compare each run with the first one of the same suite or name, if they have configurations in common."""
    for number, run in enumerate(runs[1:], 1):
        baseline = next((each for each in runs[:number] if _suite_name(each) == _suite_name(run)), runs[0])
        found = compare_runs(baseline, run, MARGIN)
        if any(reason.code != "only_in_one" for each in found for reason in each.reasons):
            view = make_comparison_view(found, (describe_run(baseline), describe_run(run)))
            yield replace(view, title=f"{utf8(run.folder.name)} compared with {utf8(baseline.folder.name)}")


def _suite_name(run: Run) -> str:
    return run.head.plan.suite or run.head.plan.name


def write_page(text: str, path: Path) -> str:
    """Write the page, and return a sentence that says so."""
    encoded = text.encode("utf-8")
    with disk_errors(path):
        path.write_bytes(encoded)
    return f"Wrote {path}, {show_bytes(len(encoded))}: one file, which opens without a network."


def not_drawn(text: str) -> str | None:
    """Return why the figures of a page aren't drawn; None if they are, or if it has none."""
    from rigdyno.report.html.figures import UNDRAWN, why_not_drawn

    lacking = why_not_drawn()
    return f"figures are not drawn: {lacking}" if lacking is not None and f'class="{UNDRAWN}"' in text else None


def open_page(path: Path) -> str | None:
    """Open the page in a browser; return what to do if none can be started."""
    if webbrowser.open(path.resolve().as_uri()):
        return None
    return f"no browser could be started; open {path} in one"
