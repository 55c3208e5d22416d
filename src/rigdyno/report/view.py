"""Gathers one run into the one view that every format renders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.analyse.matching import name_of
from rigdyno.analyse.verdict import SEVERITIES, worst
from rigdyno.contracts import Suite
from rigdyno.errors import UnknownName
from rigdyno.report import generic
from rigdyno.report.format_entry import entry_of
from rigdyno.schema.estimate import Estimate, Missing, Reason, Validity
from rigdyno.schema.figure import with_distinct_keys
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import RunHead
from rigdyno.schema.system import System
from rigdyno.schema.view import Column, Headline, Presentation, Sentence, Table, View
from rigdyno.suites._energy import energy_table, no_meter


def view_of(
    head: RunHead,
    measurements: Sequence[Measurement],
    saved_in: str,
    warnings: Sequence[str] = (),
    noise: Sentence | None = None,
    beside: Sequence[Measurement] = (),
) -> View:
    """`beside`: no figures of this run, and of some use to its suite."""
    presented = _presented(head.plan.suite, [*measurements, *beside])
    label = f"{head.plan.label}: " if head.plan.label else ""
    return View(
        title=presented.title,
        headline=presented.headline or first_figure(presented),
        rigs=(label + rig_line(head.machines(record for each in measurements for record in each.records)),),
        tables=(*presented.tables, *_energy(measurements)),
        figures=with_distinct_keys(presented.figures),
        validity=overall(measurements),
        noise=noise,
        standing=presented.standing,
        closing=(*presented.closing, *no_meter(measurements)),
        warnings=tuple(warnings),
        saved_in=(saved_in,),
        next_commands=next_commands(head, saved_in),
    )


def _energy(measurements: Sequence[Measurement]) -> tuple[Table, ...]:
    """Of every suite alike, where a meter could be read."""
    table = energy_table(measurements, lambda each: name_of(each.spec))
    return () if table is None else (table,)


def rig_line(machines: Sequence[System]) -> str:
    """Machines that are alike once, with how many there are."""
    counted = Counter(machine.line() for machine in machines)
    return "; ".join(f"{count} nodes, each {line}" if count > 1 else line for line, count in counted.items())


def with_columns(view: View, names: Sequence[str]) -> View:
    """The tables with extra columns: a framework's version, a driver, a kernel."""
    return all_with_columns([view], names)[0]


def all_with_columns(views: Sequence[View], names: Sequence[str]) -> list[View]:
    """One of them must know each. A table that knows nothing of the kind, such as a card, stays as it is."""
    known = {name for view in views for table in view.tables for row in table.rows for name in row.facts}
    for name in names:
        if name not in known:
            raise UnknownName("column", name, known)
    return [replace(view, tables=tuple(_widened(table, names) for table in view.tables)) for view in views]


def _widened(table: Table, names: Sequence[str]) -> Table:
    if not any(row.facts for row in table.rows):
        return table
    columns = (*table.columns, *(Column(key=name, title=name, numeric=False, identifies=True) for name in names))
    rows = (
        replace(row, entries={**row.entries, **{name: entry_of(row.facts.get(name, "")) for name in names}})
        for row in table.rows
    )
    return replace(table, columns=columns, rows=tuple(rows))


def board_of(presented: Presentation, warnings: Sequence[str]) -> View:
    """A leaderboard: rows of many runs."""
    return View(
        title=presented.title,
        tables=presented.tables,
        figures=with_distinct_keys(presented.figures),
        standing=presented.standing,
        closing=presented.closing,
        warnings=tuple(warnings),
    )


def _presented(suite: str | None, measurements: Sequence[Measurement]) -> Presentation:
    if suite is None or suite not in catalogue.names("suite"):
        return generic.presentation(measurements)
    found: Suite = catalogue.load("suite", suite)()
    return found.present(measurements)


def first_figure(presented: Presentation) -> Headline | None:
    """For what doesn't say which of its figures stands for all: the first that was measured, or is missing."""
    for table in presented.tables:
        for row in table.rows:
            if row.origin != "measured" or row.status is None:
                continue
            shown = [row.entries.get(column.key) for column in table.columns if column.metric is not None]
            entry = next((entry for entry in shown if isinstance(entry, Estimate | Missing)), None)
            if entry is not None:
                return Headline(what=table.name_of(row) or table.title, figure=entry, status=row.status)
    return None


def overall(measurements: Sequence[Measurement]) -> Validity | None:
    """The worst verdict; each reason once, in the words of the cell that it weighs most on, with the others named."""
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
        Reason(code=code, sentence=f"{sentence} ({_places(where[code])})") for code, sentence in sentences.items()
    )
    return Validity(verdict=worst(validity.verdict for _, validity in judged), reasons=reasons)


def _short_name(measurement: Measurement) -> str:
    options = ", ".join(str(value) for value in measurement.spec.options.values())
    return f"{measurement.spec.workload} {options}".strip()


def _places(names: Sequence[str]) -> str:
    first, others = names[0], names[1:]
    if not others:
        return first
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return f"{first}; also {'; '.join(others[:2])}{more}"


def next_commands(head: RunHead, saved_in: str) -> tuple[str, ...]:
    """What answers the next question; the page is among them."""
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
