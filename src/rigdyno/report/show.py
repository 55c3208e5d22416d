"""What `rigdyno show` prints: the facts behind a report, process by process."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rigdyno.analyse.measure import steady_of
from rigdyno.analyse.slices import rate_over_time
from rigdyno.analyse.streams import streams
from rigdyno.errors import RigdynoError
from rigdyno.report.format_entry import scaled_text
from rigdyno.report.formats import terminal
from rigdyno.report.page import Page
from rigdyno.report.plot import plot_lines
from rigdyno.report.progress import ending
from rigdyno.schema.record import RunHead
from rigdyno.schema.system import Environment, System
from rigdyno.schema.view import Plot, View
from rigdyno.store.folder import StoredCell
from rigdyno.units import rate_unit, seconds_of_ns, show_bytes


def run_text(head: RunHead, cells: Sequence[StoredCell], view: View, page: Page) -> str:
    facts = [*_system_facts(head.system), *_environment_facts(_environment(head, cells))]
    lines = [terminal.render(view, page).rstrip(), "", "The rig and its environment"]
    lines += [line for name, value in facts if value for line in _fact(name, value, page)]
    for cell in cells:
        lines += ["", *_cell_lines(cell, page)]
    return "\n".join(lines) + "\n"


def _environment(head: RunHead, cells: Sequence[StoredCell]) -> Environment:
    """The workers' own, where there is one: it knows the framework."""
    return next((cell.record.environment for cell in cells if cell.record.environment.framework), head.environment)


def _fact(name: str, value: str, page: Page) -> list[str]:
    return textwrap.wrap(f"  {name:<16}{value}", page.width, subsequent_indent=" " * 18, drop_whitespace=True)


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


def _cell_lines(cell: StoredCell, page: Page) -> Iterator[str]:
    record = cell.record
    yield from textwrap.wrap(f"{record.cell}: {ending(record)}", page.width, subsequent_indent="  ")
    options = ", ".join(f"{key}={value}" for key, value in {**record.spec.options, **record.facts.settled}.items())
    facts = [
        ("configuration", f"{record.spec.workload} {options}".strip()),
        ("how", f"{record.spec.update}, {record.spec.arrangement}, {record.spec.launcher}, {record.spec.device}"),
        ("key", record.spec.key()),
        (
            "one item costs",
            ", ".join(
                scaled_text(cost, "B" if name == "byte" else name) for name, cost in record.facts.per_item.items()
            ),
        ),
        ("notes", "; ".join(record.facts.notes)),
        ("peak memory", show_bytes(record.peak_memory_bytes) if record.peak_memory_bytes is not None else ""),
        ("exit codes", ", ".join(str(code) for code in record.exit_codes)),
        ("files", str(cell.folder)),
    ]
    for name, value in facts:
        if value:
            yield from _fact(name, value, page)
    yield from _plot_lines(cell, page)


def _plot_lines(cell: StoredCell, page: Page) -> Iterator[str]:
    """The first kind of the first rank's steps over time, with the cut of the warm-up."""
    try:
        header, rows = cell.steps()[0]
        name, stream = next(iter(streams(header, rows).items()))
    except (RigdynoError, IndexError, StopIteration):
        return
    steady = steady_of(stream)
    began_ns = int(stream["start_ns"][0])
    seconds, rates = rate_over_time(stream)
    cut = seconds_of_ns(int(stream["start_ns"][min(steady.start, len(stream) - 1)]) - began_ns)
    title = "rate over time" + (f", {name}" if name != "step" else "")
    mark = "steady from here" if steady.settled else "never settled"
    plot = Plot(
        title=title, unit=rate_unit(cell.record.facts.unit), seconds=tuple(seconds), values=tuple(rates),
        mark_seconds=cut, mark_title=mark,
    )  # fmt: skip
    yield from plot_lines(plot, page.width)
