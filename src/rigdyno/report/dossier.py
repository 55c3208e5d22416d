"""Collect the evidence behind a run's view: facts about machine and run, reasons, processes, and file hashes.

The lists of a long run are cut; the run folder has everything. The sha256 of every file and of their list lets a
reader check that a run folder is unchanged.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from rigdyno.analyse.matching import name_of
from rigdyno.analyse.process import CellData, steady_of
from rigdyno.analyse.streams import Rows, check_rows, check_telemetry, streams
from rigdyno.analyse.validity.tags import steps_hit, tag_counts
from rigdyno.base.errors import RigdynoError, StoreError, os_error_reason
from rigdyno.base.units import show_bytes, show_seconds
from rigdyno.report.progress import format_outcome
from rigdyno.schema.layout import CELLS, HEAD
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, RunHead, RunRecord
from rigdyno.schema.system import Environment, System
from rigdyno.schema.view import Dossier, Fact, Ground, ProcessFacts, RawFile, RawFiles
from rigdyno.store.folder import RunFolder, StoredCell
from rigdyno.store.location import utf8

CHUNK_BYTES = 1 << 20  # read at a time for hashing

MOST_GROUNDS = 100

MOST_PROCESSES = 200

MOST_FILES = 300


def make_dossier(
    head: RunHead, folder: RunFolder, cells: Sequence[StoredCell], measurements: Sequence[Measurement]
) -> Dossier:
    """Return the dossier of one run. Reads every file of the run folder."""
    records = [cell.record for cell in cells]
    by_name = {cell.record.cell: cell for cell in cells}
    grounds = sum(len(each.validity.reasons) for each in measurements if each.validity is not None)
    return Dossier(
        run=utf8(folder.name),
        measured=tuple(_list_run_facts(head, records)),
        rig=tuple(Fact(name=name, value=value) for name, value in list_rig_facts(head, records)),
        grounds=tuple(islice(_list_grounds(measurements, by_name), MOST_GROUNDS)),
        more_grounds=max(0, grounds - MOST_GROUNDS),
        processes=tuple(_describe_process(cell) for cell in cells[:MOST_PROCESSES]),
        more_processes=max(0, len(cells) - MOST_PROCESSES),
        files=hash_files(folder.path, MOST_FILES),
    )


def _list_run_facts(head: RunHead, records: Sequence[RunRecord]) -> Iterator[Fact]:
    plan = head.plan
    completed = sum(isinstance(record.outcome, Completed) for record in records)
    tries = sum(record.attempt_of is not None for record in records)
    yield Fact(name="asked for", value=plan.suite or plan.name)
    if plan.label:
        yield Fact(name="label", value=plan.label)
    yield Fact(name="started", value=head.created_at)
    yield Fact(name="measured for", value=show_seconds(sum(record.seconds for record in records)))
    yield Fact(name="process groups", value=f"{completed} of {len(records)} completed")
    if tries:
        yield Fact(name="tries", value=f"{tries} of them only to find what fits in memory")
    if plan.budget_seconds is not None:
        yield Fact(name="budget", value=show_seconds(plan.budget_seconds))
    yield Fact(name="Rigdyno", value=head.rigdyno_version)


def _list_grounds(measurements: Sequence[Measurement], cells: dict[str, StoredCell]) -> Iterator[Ground]:
    for measurement in measurements:
        if measurement.validity is None or not measurement.validity.reasons:
            continue
        kept = list(_read_steady_steps(measurement, cells))
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


def _read_steady_steps(measurement: Measurement, cells: dict[str, StoredCell]) -> Iterator[tuple[Rows, Rows | None]]:
    """Yield the steady steps of all processes, kinds and ranks, with the telemetry of their nodes."""
    for record in measurement.records:
        cell = cells.get(record.cell)
        data = read_samples(cell) if cell is not None and isinstance(record.outcome, Completed) else None
        if data is not None:
            yield from ((rows[start:], telemetry) for rows, start, telemetry in _find_steady_streams(data))


def _find_steady_streams(data: CellData) -> Iterator[tuple[Rows, int, Rows | None]]:
    for header, rows in data.steps:
        for stream in streams(header, rows).values():
            yield stream, steady_of(stream).start, data.telemetry_of(header.participant)


def _describe_process(cell: StoredCell) -> ProcessFacts:
    record, data = cell.record, read_samples(cell)
    steps, cut = _count_steps(data)
    return ProcessFacts(
        cell=record.cell,
        what=name_of(record.spec),
        ended=format_outcome(record),
        seconds=record.seconds,
        memory_bytes=record.memory_bytes,
        steps=steps,
        cut=cut,
        tagged="" if data is None else format_tags(data),
    )


def _count_steps(data: CellData | None) -> tuple[int | None, int | None]:
    """Count all steps, and those before the steady windows; None if the samples can't be read."""
    found = [] if data is None else list(_find_steady_streams(data))
    if not found:
        return None, None
    return (
        sum(int(rows["steps"].sum()) for rows, _, _ in found),
        sum(int(rows["steps"][:start].sum()) for rows, start, _ in found),
    )


def list_rig_facts(head: RunHead, records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return the known facts about the machine and its environment, as pairs of name and value."""
    machine, *_ = head.machines(records)
    facts = (*_list_system_facts(machine), *_list_environment_facts(_find_environment(head, records)))
    return [(name, value) for name, value in facts if value]


def _find_environment(head: RunHead, records: Sequence[RunRecord]) -> Environment:
    """Return the environment of a worker, which knows the framework; without one, that of the run."""
    return next((record.environment for record in records if record.environment.framework), head.environment)


def _list_system_facts(system: System) -> Iterator[tuple[str, str]]:
    cpu = system.cpu
    yield "processor", f"{cpu.model}, {cpu.physical_cores or '?'} cores, {cpu.logical_cores} threads"
    yield "usable cores", str(cpu.usable_cores)
    yield "caches", ", ".join(f"L{cache.level} {cache.kind} {show_bytes(cache.size_bytes)}" for cache in cpu.caches)
    yield "SIMD", " ".join(cpu.simd)
    yield "memory", show_bytes(system.memory_bytes)
    yield "accelerators", ", ".join(accelerator.name for accelerator in system.accelerators) or "none"
    yield "system", f"{system.operating_system}, kernel {system.kernel}, {system.architecture}"
    yield "virtualisation", system.virtualisation or ""
    yield "confidential", system.confidential or ""


def _list_environment_facts(environment: Environment) -> Iterator[tuple[str, str]]:
    yield "python", environment.python
    yield "packages", ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    yield "framework", ", ".join(f"{name} {value}" for name, value in environment.framework.items())
    yield "threads", str(environment.threads or "")
    yield "variables", ", ".join(f"{name}={value}" for name, value in environment.variables.items())
    yield "governor", environment.governor or ""
    yield "huge pages", environment.huge_pages or ""
    yield "load average", "" if environment.load_average is None else f"{environment.load_average:.2f} at the start"
    if environment.rigdyno_git is not None:
        state = " with uncommitted changes" if environment.rigdyno_git.dirty else ""
        yield "rigdyno", f"commit {environment.rigdyno_git.commit[:12]}{state}"


def read_samples(cell: StoredCell) -> CellData | None:
    """Read the samples of a cell; None if they can't be read or are damaged."""
    try:
        data = CellData(cell.record, cell.steps(), cell.telemetry())
        for _, rows in data.telemetry:
            check_telemetry(rows)
        for header, rows in data.steps:
            check_rows(header, rows)
    except RigdynoError:
        return None
    return data


def format_tags(data: CellData) -> str:
    """Count the disturbances that the steps of all ranks are tagged with, as text."""
    found: Counter[str] = Counter()
    for header, rows in data.steps:
        found.update(tag_counts(rows, data.telemetry_of(header.participant)))
    whole = sum(int(rows["steps"].sum()) for _, rows in data.steps)
    return ", ".join(f"{count:,} {tag}" for tag, count in found.items()) + f", of {whole:,} steps" if found else ""


def hash_files(folder: Path, most_listed: int) -> RawFiles:
    """Hash the head and the files of all cells, in the order of their names.

    Symbolic links are skipped: their targets are not part of the run.
    """
    count, size_bytes, listed, list_digest = 0, 0, [], hashlib.sha256()
    for name in sorted(_list_files(folder)):
        size, digest = _hash_file(folder / os.fsdecode(name))
        list_digest.update(_format_hash_line(digest, name))
        count, size_bytes = count + 1, size_bytes + size
        if count <= most_listed:
            listed.append(RawFile(name=utf8(os.fsdecode(name)), size_bytes=size, sha256=digest))
    return RawFiles(count=count, size_bytes=size_bytes, digest=list_digest.hexdigest(), listed=tuple(listed))


def _list_files(folder: Path) -> Iterator[bytes]:
    """Yield the relative paths of the files as bytes, which sort as in `LC_ALL=C sort`."""
    if (folder / HEAD).is_file() and not (folder / HEAD).is_symlink():
        yield os.fsencode(HEAD)
    for above, _, files in os.walk(folder / CELLS):
        for file in files:
            path = Path(above, file)
            if path.is_file() and not path.is_symlink():
                yield os.fsencode(path.relative_to(folder))


def _hash_file(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise StoreError(f"can't read {path}: {os_error_reason(error)}") from error
    return size, digest.hexdigest()


def _format_hash_line(digest: str, name: bytes) -> bytes:
    """Return a line as sha256sum prints it: a name with line breaks or backslashes is escaped, after a backslash."""
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"" if escaped == name else b"\\") + digest.encode() + b"  " + escaped + b"\n"
