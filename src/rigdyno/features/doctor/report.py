"""Draw a diagnosis as sections of short lines that fit into 80 columns and read well in a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from rigdyno.base.units import show_binary_bytes, show_bytes, show_number
from rigdyno.features.doctor.diagnose import Diagnosis, MeterState
from rigdyno.rig.traps import TrapResult
from rigdyno.schema.system import Accelerator, Cache, Cpu, Environment, Limits, System

STYLES = {"fine": "green", "trap": "bold red", "noisy": "bold yellow", "unknown": "dim"}

INDENT = 19

WIDEST = 100

NOT_TOLD = "not told by this system"


class DiagnosisLine(NamedTuple):
    title: str
    content: str
    style: str = ""
    styled: str = ""  # the beginning of the content that has the style; empty: all of it


def draw(diagnosis: Diagnosis, console: Console) -> None:
    sections = {
        "The machine": _rig(diagnosis.system, diagnosis.accelerators_reason),
        "Limits of the container": _limits(diagnosis.system.limits, diagnosis.system.cpu),
        "Software": _software(diagnosis.environment),
        "Meters and noise detectors": chain.from_iterable(map(_meter, diagnosis.meters)),
        "Noise now": chain.from_iterable(_finding(finding, "noisy") for finding in diagnosis.noise),
        "Traps": _traps(diagnosis.traps),
    }
    for title, lines in sections.items():
        _section(console, title, lines)


def _section(console: Console, title: str, lines: Iterable[DiagnosisLine]) -> None:
    console.print(Text(title, style="bold"))
    for line in lines:
        console.print(_wrap(line, min(console.width, WIDEST)), soft_wrap=True)
    console.print()


def _wrap(line: DiagnosisLine, width: int) -> Text:
    """Wrap a line. rich would fill every line with blanks up to the margin."""
    head = f"  {line.title}".ljust(INDENT - 1) + " "
    rest = " " * INDENT
    plain = textwrap.fill(
        line.content, width, initial_indent=head, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )
    text = Text(plain)
    text.stylize(line.style, len(head), len(head) + len(line.styled) if line.styled else None)
    return text


def _rig(system: System, accelerators_reason: str | None) -> Iterator[DiagnosisLine]:
    cpu = system.cpu
    yield DiagnosisLine("processor", cpu.model)
    yield DiagnosisLine("cores", _cores(cpu))
    yield DiagnosisLine("caches", ", ".join(map(_cache, cpu.caches)) or NOT_TOLD)
    yield DiagnosisLine("SIMD", " ".join(cpu.simd) or "none known")
    yield DiagnosisLine("highest clock", f"{show_number(cpu.max_mhz)} MHz" if cpu.max_mhz else NOT_TOLD)
    yield DiagnosisLine("memory", show_bytes(system.memory_bytes))
    yield from _accelerators(system.accelerators, accelerators_reason)
    yield DiagnosisLine("system", f"{system.operating_system}, kernel {system.kernel}, {system.architecture}")
    yield DiagnosisLine("virtualisation", system.virtualisation or "none seen")
    yield DiagnosisLine(
        "confidential", f"{system.confidential} virtual machine" if system.confidential else "no sign of it"
    )


def _cores(cpu: Cpu) -> str:
    physical = f"{cpu.physical_cores} physical, " if cpu.physical_cores else ""
    nodes = f", NUMA nodes: {cpu.numa_nodes}" if cpu.numa_nodes else ""
    return f"{physical}{cpu.logical_cores} logical, {cpu.usable_cores} usable{nodes}"


def _cache(cache: Cache) -> str:
    kind = {"data": "d", "instruction": "i"}.get(cache.kind, "")
    shared = f" for {cache.shared_by} cores" if cache.shared_by > 1 else ""
    return f"L{cache.level}{kind} {show_binary_bytes(cache.size_bytes)}{shared}"


def _accelerators(accelerators: tuple[Accelerator, ...], reason: str | None) -> Iterator[DiagnosisLine]:
    if not accelerators:
        yield DiagnosisLine(
            "accelerators", f"unknown: {reason}" if reason else "none that an installed framework can use"
        )
    for index, card in enumerate(accelerators):
        memory = f", {show_bytes(card.memory_bytes)}" if card.memory_bytes else ""
        capability = f", {card.capability}" if card.capability else ""
        yield DiagnosisLine(f"{card.kind} {index}", f"{card.name}{memory}{capability}")


def _limits(limits: Limits, cpu: Cpu) -> Iterator[DiagnosisLine]:
    yield DiagnosisLine(
        "processor", "no quota" if limits.cpu_quota is None else f"{show_number(limits.cpu_quota)} cores' time"
    )
    yield DiagnosisLine("usable cores", f"{cpu.usable_cores} of {cpu.logical_cores}, by affinity and quota")
    yield DiagnosisLine("memory", "no limit" if limits.memory_bytes is None else show_bytes(limits.memory_bytes))


def _software(environment: Environment) -> Iterator[DiagnosisLine]:
    yield DiagnosisLine("python", environment.python)
    yield from (DiagnosisLine(name, version) for name, version in environment.packages.items())
    if environment.framework:
        yield DiagnosisLine("framework", ", ".join(f"{name} {value}" for name, value in environment.framework.items()))
    yield DiagnosisLine("its threads", str(environment.threads) if environment.threads else "unknown")
    yield DiagnosisLine("governor", environment.governor or NOT_TOLD)
    yield DiagnosisLine("huge pages", environment.huge_pages or NOT_TOLD)
    yield from (DiagnosisLine("variable", f"{name}={value}") for name, value in environment.variables.items())
    if environment.rigdyno_git is not None:
        state = environment.rigdyno_git
        yield DiagnosisLine("checkout", state.commit[:12] + (" with local changes" if state.dirty else ""))


def _meter(meter: MeterState) -> Iterator[DiagnosisLine]:
    yield DiagnosisLine(meter.name, meter.summary)
    if meter.reason is not None:
        yield DiagnosisLine("", f"can't be read: {meter.reason}", STYLES["unknown"])
        yield from _fix(meter.fix)
        return
    yield DiagnosisLine("", f"reads {', '.join(meter.readable)}", STYLES["fine"], "reads")
    for channel, fix in meter.unreadable.items():
        yield DiagnosisLine("", f"not {channel}" + (f": {fix}" if fix else ""), STYLES["unknown"])


def _traps(traps: tuple[TrapResult, ...] | None) -> Iterator[DiagnosisLine]:
    if traps is None:
        return iter([DiagnosisLine("not tried", "leave out --quick to try them")])
    return chain.from_iterable(_finding(finding, "trap") for finding in traps)


def _finding(finding: TrapResult, bad: str) -> Iterator[DiagnosisLine]:
    status = bad if finding.status == "trap" else finding.status
    yield DiagnosisLine(finding.name, f"{status}: {finding.sentence}", STYLES[status], status)
    yield from _fix(finding.fix)


def _fix(fix: str | None) -> Iterator[DiagnosisLine]:
    if fix is not None:
        yield DiagnosisLine("", f"try: {fix}", "cyan")
