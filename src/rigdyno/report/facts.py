"""Facts about a rig and about what its steps fell into, each with its name: for `show`, and for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rigdyno.analyse.measure import CellData
from rigdyno.analyse.streams import check_rows, check_telemetry
from rigdyno.analyse.tags import tag_counts
from rigdyno.errors import RigdynoError
from rigdyno.schema.record import RunHead, RunRecord
from rigdyno.schema.system import Environment, System
from rigdyno.store.folder import StoredCell
from rigdyno.units import show_bytes


def rig_facts(head: RunHead, records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Of the machine and its environment: those that are known."""
    machine, *_ = head.machines(records)
    facts = (*_system_facts(machine), *_environment_facts(_environment(head, records)))
    return [(name, value) for name, value in facts if value]


def _environment(head: RunHead, records: Sequence[RunRecord]) -> Environment:
    """The workers' own, where there is one: it knows the framework."""
    return next((record.environment for record in records if record.environment.framework), head.environment)


def _system_facts(system: System) -> Iterator[tuple[str, str]]:
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


def _environment_facts(environment: Environment) -> Iterator[tuple[str, str]]:
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


def samples_of(cell: StoredCell) -> CellData | None:
    """None where they can't be read, or are damaged."""
    try:
        data = CellData(cell.record, cell.steps(), cell.telemetry())
        for _, rows in data.telemetry:
            check_telemetry(rows)
        for header, rows in data.steps:
            check_rows(header, rows)
    except RigdynoError:
        return None
    return data


def tagged(data: CellData) -> str:
    """What the steps of all ranks fell into."""
    found: Counter[str] = Counter()
    for header, rows in data.steps:
        found.update(tag_counts(rows, data.telemetry_of(header.participant)))
    whole = sum(int(rows["steps"].sum()) for _, rows in data.steps)
    return ", ".join(f"{count:,} {tag}" for tag, count in found.items()) + f", of {whole:,} steps" if found else ""
