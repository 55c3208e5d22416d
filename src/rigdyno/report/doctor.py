"""Draws a diagnosis: sections of short lines that can be read at 80 columns and in a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from rigdyno.schema.diagnosis import Diagnosis, Finding, MeterState
from rigdyno.schema.system import Accelerator, Cache, Cpu, Environment, Limits, System
from rigdyno.units import show_binary_bytes, show_bytes, show_number

STYLES = {"fine": "green", "trap": "bold red", "noisy": "bold yellow", "unknown": "dim"}
INDENT = 19
WIDEST = 100
NOT_TOLD = "not told by this system"


class Line(NamedTuple):
    title: str
    content: str
    style: str = ""
    styled: str = ""  # the part of the content that has the style; all of it unless told


def draw(diagnosis: Diagnosis, console: Console) -> None:
    sections = {
        "The rig": _rig(diagnosis.system, diagnosis.accelerators_reason),
        "Limits of the container": _limits(diagnosis.system.limits, diagnosis.system.cpu),
        "Software": _software(diagnosis.environment),
        "Meters and noise detectors": chain.from_iterable(map(_meter, diagnosis.meters)),
        "Noise now": chain.from_iterable(_finding(finding, "noisy") for finding in diagnosis.noise),
        "Traps": _traps(diagnosis.traps),
    }
    for title, lines in sections.items():
        _section(console, title, lines)


def _section(console: Console, title: str, lines: Iterable[Line]) -> None:
    console.print(Text(title, style="bold"))
    for line in lines:
        console.print(_wrapped(line, min(console.width, WIDEST)), soft_wrap=True)
    console.print()


def _wrapped(line: Line, width: int) -> Text:
    """Wrapped here and not by rich, which would fill every line with blanks up to the margin."""
    head = f"  {line.title}".ljust(INDENT - 1) + " "
    rest = " " * INDENT
    plain = textwrap.fill(
        line.content, width, initial_indent=head, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )
    text = Text(plain)
    text.stylize(line.style, len(head), len(head) + len(line.styled) if line.styled else None)
    return text


def _rig(system: System, accelerators_reason: str | None) -> Iterator[Line]:
    cpu = system.cpu
    yield Line("processor", cpu.model)
    yield Line("cores", _cores(cpu))
    yield Line("caches", ", ".join(map(_cache, cpu.caches)) or NOT_TOLD)
    yield Line("SIMD", " ".join(cpu.simd) or "none known")
    yield Line("highest clock", f"{show_number(cpu.max_mhz)} MHz" if cpu.max_mhz else NOT_TOLD)
    yield Line("memory", show_bytes(system.memory_bytes))
    yield from _accelerators(system.accelerators, accelerators_reason)
    yield Line("system", f"{system.operating_system}, kernel {system.kernel}, {system.architecture}")
    yield Line("virtualisation", system.virtualisation or "none seen")
    yield Line("confidential", f"{system.confidential} virtual machine" if system.confidential else "no sign of it")


def _cores(cpu: Cpu) -> str:
    physical = f"{cpu.physical_cores} physical, " if cpu.physical_cores else ""
    nodes = f", NUMA nodes: {cpu.numa_nodes}" if cpu.numa_nodes else ""
    return f"{physical}{cpu.logical_cores} logical, {cpu.usable_cores} usable{nodes}"


def _cache(cache: Cache) -> str:
    kind = {"data": "d", "instruction": "i"}.get(cache.kind, "")
    shared = f" for {cache.shared_by} cores" if cache.shared_by > 1 else ""
    return f"L{cache.level}{kind} {show_binary_bytes(cache.size_bytes)}{shared}"


def _accelerators(accelerators: tuple[Accelerator, ...], reason: str | None) -> Iterator[Line]:
    if not accelerators:
        yield Line("accelerators", f"unknown: {reason}" if reason else "none that an installed framework can use")
    for index, card in enumerate(accelerators):
        memory = f", {show_bytes(card.memory_bytes)}" if card.memory_bytes else ""
        capability = f", {card.capability}" if card.capability else ""
        yield Line(f"{card.kind} {index}", f"{card.name}{memory}{capability}")


def _limits(limits: Limits, cpu: Cpu) -> Iterator[Line]:
    yield Line("processor", "no quota" if limits.cpu_quota is None else f"{show_number(limits.cpu_quota)} cores' time")
    yield Line("usable cores", f"{cpu.usable_cores} of {cpu.logical_cores}, by affinity and quota")
    yield Line("memory", "no limit" if limits.memory_bytes is None else show_bytes(limits.memory_bytes))


def _software(environment: Environment) -> Iterator[Line]:
    yield Line("python", environment.python)
    yield from (Line(name, version) for name, version in environment.packages.items())
    if environment.framework:
        yield Line("framework", ", ".join(f"{name} {value}" for name, value in environment.framework.items()))
    yield Line("its threads", str(environment.threads) if environment.threads else "unknown")
    yield Line("governor", environment.governor or NOT_TOLD)
    yield Line("huge pages", environment.huge_pages or NOT_TOLD)
    yield from (Line("variable", f"{name}={value}") for name, value in environment.variables.items())
    if environment.rigdyno_git is not None:
        state = environment.rigdyno_git
        yield Line("checkout", state.commit[:12] + (" with local changes" if state.dirty else ""))


def _meter(meter: MeterState) -> Iterator[Line]:
    yield Line(meter.name, meter.summary)
    if meter.reason is not None:
        yield Line("", f"can't be read: {meter.reason}", STYLES["unknown"])
        yield from _fix(meter.fix)
        return
    yield Line("", f"reads {', '.join(meter.readable)}", STYLES["fine"], "reads")
    for channel, fix in meter.unreadable.items():
        yield Line("", f"not {channel}" + (f": {fix}" if fix else ""), STYLES["unknown"])


def _traps(traps: tuple[Finding, ...] | None) -> Iterator[Line]:
    if traps is None:
        return iter([Line("not tried", "leave out --quick to try them")])
    return chain.from_iterable(_finding(finding, "trap") for finding in traps)


def _finding(finding: Finding, bad: str) -> Iterator[Line]:
    status = bad if finding.status == "trap" else finding.status
    yield Line(finding.name, f"{status}: {finding.sentence}", STYLES[status], status)
    yield from _fix(finding.fix)


def _fix(fix: str | None) -> Iterator[Line]:
    if fix is not None:
        yield Line("", f"try: {fix}", "cyan")
