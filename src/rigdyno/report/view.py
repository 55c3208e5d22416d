"""Build the view of one run, which every format renders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.analyse.matching import name_of
from rigdyno.analyse.validity.verdict import SEVERITIES, worst
from rigdyno.base.errors import UnknownName
from rigdyno.contracts import Suite
from rigdyno.report import generic
from rigdyno.report.generic import MakeSection
from rigdyno.report.sections import energy_table, explain_no_energy
from rigdyno.report.text import make_entry
from rigdyno.schema.estimate import Estimate, Missing, Reason, Validity
from rigdyno.schema.figure import with_distinct_keys
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import RunHead
from rigdyno.schema.system import System
from rigdyno.schema.view import Column, Headline, Presentation, Sentence, Table, View


def make_view(
    head: RunHead,
    measurements: Sequence[Measurement],
    saved_in: str,
    warnings: Sequence[str] = (),
    noise: Sentence | None = None,
    extra: Sequence[Measurement] = (),
    sections: Sequence[MakeSection] = (),
) -> View:
    """Return the view of a run.

    `extra` are measurements that the run's suite shows next to its own, such as the idle machine or an earlier run.
    `sections` are added by features to a run without a suite.
    """
    presented = _present(head.plan.suite, [*measurements, *extra], sections)
    label = f"{head.plan.label}: " if head.plan.label else ""
    return View(
        title=presented.title,
        headline=presented.headline or choose_default_headline(presented),
        rigs=(label + describe_machines(head.machines(record for each in measurements for record in each.records)),),
        tables=(*presented.tables, *_make_energy_table(measurements)),
        figures=with_distinct_keys(presented.figures),
        validity=judge_run(measurements),
        noise=noise,
        standing=presented.standing,
        closing=(*presented.closing, *explain_no_energy(measurements)),
        warnings=tuple(warnings),
        saved_in=(saved_in,),
        next_commands=suggest_commands(head, saved_in),
    )


def _make_energy_table(measurements: Sequence[Measurement]) -> tuple[Table, ...]:
    """Return the energy table, the same for every suite, if a power meter could be read."""
    table = energy_table(measurements, lambda each: name_of(each.spec))
    return () if table is None else (table,)


def describe_machines(machines: Sequence[System]) -> str:
    """Describe the machines in one line: identical ones once, with their number."""
    counted = Counter(machine.line() for machine in machines)
    return "; ".join(f"{count} nodes, each {line}" if count > 1 else line for line, count in counted.items())


def add_columns(view: View, names: Sequence[str]) -> View:
    """Add columns to the tables of a view, such as the version of the framework, the driver or the kernel."""
    return add_columns_to_all([view], names)[0]


def add_columns_to_all(views: Sequence[View], names: Sequence[str]) -> list[View]:
    """Add columns to the tables of several views.

    Each column must be known to at least one of them. Tables whose rows have no such facts stay unchanged.
    """
    known = {name for view in views for table in view.tables for row in table.rows for name in row.facts}
    for name in names:
        if name not in known:
            raise UnknownName("column", name, known)
    return [replace(view, tables=tuple(_add_columns(table, names) for table in view.tables)) for view in views]


def _add_columns(table: Table, names: Sequence[str]) -> Table:
    if not any(row.facts for row in table.rows):
        return table
    columns = (*table.columns, *(Column(key=name, title=name, numeric=False, identifies=True) for name in names))
    rows = (
        replace(row, entries={**row.entries, **{name: make_entry(row.facts.get(name, "")) for name in names}})
        for row in table.rows
    )
    return replace(table, columns=columns, rows=tuple(rows))


def make_leaderboard_view(presented: Presentation, warnings: Sequence[str]) -> View:
    """Return the view of a leaderboard, whose rows come from many runs."""
    return View(
        title=presented.title,
        tables=presented.tables,
        figures=with_distinct_keys(presented.figures),
        standing=presented.standing,
        closing=presented.closing,
        warnings=tuple(warnings),
    )


def _present(suite: str | None, measurements: Sequence[Measurement], sections: Sequence[MakeSection]) -> Presentation:
    if suite is None or suite not in catalogue.names("suite"):
        return generic.presentation(measurements, sections)
    found: Suite = catalogue.load("suite", suite)()
    return found.present(measurements)


def choose_default_headline(presented: Presentation) -> Headline | None:
    """Return the default headline: the first figure that was measured or is missing."""
    for table in presented.tables:
        for row in table.rows:
            if row.origin != "measured" or row.status is None:
                continue
            shown = [row.entries.get(column.key) for column in table.columns if column.metric is not None]
            entry = next((entry for entry in shown if isinstance(entry, Estimate | Missing)), None)
            if entry is not None:
                return Headline(what=table.name_of(row) or table.title, figure=entry, status=row.status)
    return None


def judge_run(measurements: Sequence[Measurement]) -> Validity | None:
    """Return the worst verdict, with each reason once.

    A reason is worded as for the configuration with the worst verdict, and names the other configurations.
    """
    judged = [(measurement, measurement.validity) for measurement in measurements if measurement.validity is not None]
    if not judged:
        return None
    judged.sort(key=lambda pair: -SEVERITIES.index(pair[1].verdict))
    sentences: dict[str, str] = {}
    where: dict[str, list[str]] = {}
    for measurement, validity in judged:
        for reason in validity.reasons:
            sentences.setdefault(reason.code, reason.sentence)
            where.setdefault(reason.code, []).append(_short_name(measurement))
    reasons = tuple(
        Reason(code=code, sentence=f"{sentence} ({_join_names(where[code])})") for code, sentence in sentences.items()
    )
    return Validity(verdict=worst(validity.verdict for _, validity in judged), reasons=reasons)


def _short_name(measurement: Measurement) -> str:
    options = ", ".join(str(value) for value in measurement.spec.options.values())
    return f"{measurement.spec.workload} {options}".strip()


def _join_names(names: Sequence[str]) -> str:
    first, others = names[0], names[1:]
    if not others:
        return first
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return f"{first}; also {'; '.join(others[:2])}{more}"


def suggest_commands(head: RunHead, saved_in: str) -> tuple[str, ...]:
    """Suggest commands to run next, among them the one that writes the HTML page."""
    if head.plan.suite == "quick":
        return (
            "rigdyno run all               every suite that can run here, in 15 minutes",
            "rigdyno run train.py:step     your own training step, measured the same way",
            "rigdyno doctor                what this machine can measure, and its traps",
            f"rigdyno report {saved_in} --html report.html --open",
        )
    return (
        f"rigdyno show {saved_in}",
        f"rigdyno report {saved_in} --html report.html --open",
        *(("rigdyno leaderboard device",) if head.plan.suite == "device" else ("rigdyno list",)),
    )
