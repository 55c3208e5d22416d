"""Gathers what stands behind a run's view. A long run's lists are cut: the run folder has everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from rigdyno.analyse.matching import name_of
from rigdyno.analyse.measure import CellData, steady_of
from rigdyno.analyse.streams import Rows, streams
from rigdyno.analyse.tags import steps_hit
from rigdyno.report.facts import rig_facts, samples_of, tagged
from rigdyno.report.progress import ending
from rigdyno.schema.dossier import Dossier, Fact, Ground, ProcessFacts
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, RunHead, RunRecord
from rigdyno.store.fingerprint import raw_files
from rigdyno.store.folder import RunFolder, StoredCell
from rigdyno.store.location import utf8
from rigdyno.units import show_seconds

MOST_GROUNDS = 100
MOST_PROCESSES = 200
MOST_FILES = 300


def dossier_of(
    head: RunHead, folder: RunFolder, cells: Sequence[StoredCell], measurements: Sequence[Measurement]
) -> Dossier:
    records = [cell.record for cell in cells]
    by_name = {cell.record.cell: cell for cell in cells}
    grounds = sum(len(each.validity.reasons) for each in measurements if each.validity is not None)
    return Dossier(
        run=utf8(folder.name),
        measured=tuple(_measured(head, records)),
        rig=tuple(Fact(name=name, value=value) for name, value in rig_facts(head, records)),
        grounds=tuple(islice(_grounds(measurements, by_name), MOST_GROUNDS)),
        more_grounds=max(0, grounds - MOST_GROUNDS),
        processes=tuple(_process(cell) for cell in cells[:MOST_PROCESSES]),
        more_processes=max(0, len(cells) - MOST_PROCESSES),
        files=raw_files(folder.path, MOST_FILES),
    )


def _measured(head: RunHead, records: Sequence[RunRecord]) -> Iterator[Fact]:
    plan = head.plan
    completed = sum(isinstance(record.outcome, Completed) for record in records)
    tries = sum(record.attempt_of is not None for record in records)
    yield Fact(name="asked for", value=plan.suite or plan.name)
    if plan.label:
        yield Fact(name="label", value=plan.label)
    yield Fact(name="begun", value=head.created_at)
    yield Fact(name="measured for", value=show_seconds(sum(record.seconds for record in records)))
    yield Fact(name="process groups", value=f"{completed} completed, of {len(records)} begun")
    if tries:
        yield Fact(name="tries", value=f"{tries} of them only to find what fits into memory")
    if plan.budget_seconds is not None:
        yield Fact(name="budget", value=show_seconds(plan.budget_seconds))
    yield Fact(name="Rigdyno", value=head.rigdyno_version)


def _grounds(measurements: Sequence[Measurement], cells: dict[str, StoredCell]) -> Iterator[Ground]:
    for measurement in measurements:
        if measurement.validity is None or not measurement.validity.reasons:
            continue
        kept = list(_kept(measurement, cells))
        whole = sum(int(rows["steps"].sum()) for rows, _ in kept)
        for reason in measurement.validity.reasons:
            hit = sum(steps_hit(rows, telemetry, reason.code) for rows, telemetry in kept)
            yield Ground(
                what=name_of(measurement.spec),
                verdict=measurement.validity.verdict,
                code=reason.code,
                sentence=reason.sentence,
                hit=hit or None,
                steps=whole,
            )


def _kept(measurement: Measurement, cells: dict[str, StoredCell]) -> Iterator[tuple[Rows, Rows | None]]:
    """The steady steps of all its processes, kinds and ranks, with the telemetry of their nodes."""
    for record in measurement.records:
        cell = cells.get(record.cell)
        data = samples_of(cell) if cell is not None and isinstance(record.outcome, Completed) else None
        if data is not None:
            yield from ((rows[start:], telemetry) for rows, start, telemetry in _steady_streams(data))


def _steady_streams(data: CellData) -> Iterator[tuple[Rows, int, Rows | None]]:
    for header, rows in data.steps:
        for stream in streams(header, rows).values():
            yield stream, steady_of(stream).start, data.telemetry_of(header.participant)


def _process(cell: StoredCell) -> ProcessFacts:
    record, data = cell.record, samples_of(cell)
    steps, cut = _counted(data)
    return ProcessFacts(
        cell=record.cell,
        what=name_of(record.spec),
        ended=ending(record),
        seconds=record.seconds,
        memory_bytes=record.memory_bytes,
        steps=steps,
        cut=cut,
        tagged="" if data is None else tagged(data),
    )


def _counted(data: CellData | None) -> tuple[int | None, int | None]:
    """All steps, and those before the steady windows."""
    found = [] if data is None else list(_steady_streams(data))
    if not found:
        return None, None
    return (
        sum(int(rows["steps"].sum()) for rows, _, _ in found),
        sum(int(rows["steps"][:start].sum()) for rows, start, _ in found),
    )
