"""Format the output of `rigdyno show`: the facts behind a report, process by process."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rigdyno.analyse.process import CellData, analyse_process
from rigdyno.analyse.validity.tags import probe_states
from rigdyno.base.errors import RigdynoError
from rigdyno.base.units import seconds_of_ns, show_bytes, show_percent
from rigdyno.report.dossier import format_tags, list_rig_facts, read_samples
from rigdyno.report.formats import terminal
from rigdyno.report.over_time import draw_steps_over_time
from rigdyno.report.progress import format_outcome
from rigdyno.report.text import Page, format_scaled
from rigdyno.schema.record import RunHead, RunRecord
from rigdyno.schema.spec import ranks_among
from rigdyno.schema.view import View
from rigdyno.store.folder import StoredCell


def describe_run_in_full(head: RunHead, cells: Sequence[StoredCell], view: View, page: Page) -> str:
    facts = list_rig_facts(head, [cell.record for cell in cells])
    lines = [terminal.render(view, page).rstrip(), "", "The machine and its environment"]
    lines += [line for name, value in facts for line in _fact(name, value, page)]
    for cell in cells:
        lines += ["", *_cell_lines(cell, page)]
    return "\n".join(lines) + "\n"


def _fact(name: str, value: str, page: Page) -> list[str]:
    return textwrap.wrap(f"  {name:<16}{value}", page.width, subsequent_indent=" " * 18, drop_whitespace=True)


def _cell_lines(cell: StoredCell, page: Page) -> Iterator[str]:
    record = cell.record
    took = f", {show_bytes(record.memory_bytes)}" if record.attempt_of and record.memory_bytes is not None else ""
    yield from textwrap.wrap(f"{record.cell}: {format_outcome(record)}{took}", page.width, subsequent_indent="  ")
    if record.attempt_of is not None:  # an attempt of a search only says whether it fits
        return
    options = ", ".join(f"{key}={value}" for key, value in {**record.spec.options, **record.facts.settled}.items())
    facts = [
        ("configuration", f"{record.spec.workload} {options}".strip()),
        ("how", f"{record.spec.update}, {record.spec.arrangement}, {record.spec.launcher}, {record.spec.device}"),
        ("key", record.spec.key()),
        (
            "one item costs",
            ", ".join(
                format_scaled(cost, "B" if name == "byte" else name) for name, cost in record.facts.per_item.items()
            ),
        ),
        ("notes", "; ".join(record.facts.notes)),
        ("peak memory", show_bytes(record.peak_memory_bytes) if record.peak_memory_bytes is not None else ""),
        ("device memory", _device_memory(record)),
        ("took part", _took_part(record)),
        ("exit codes", ", ".join(f"{name} {code}" for name, code in record.exit_codes.items())),
        ("clocks", _clocks(record)),
        ("tagged", "" if (samples := read_samples(cell)) is None else format_tags(samples)),
        *(("energy", line) for line in _energy(cell)),
        ("probes", _troubles(cell)),
        ("files", str(cell.folder)),
    ]
    for name, value in facts:
        if value:
            yield from _fact(name, value, page)
    if record.pair is None:  # the rate of one arm of a duel means nothing alone
        yield from draw_steps_over_time(cell, page)


def _device_memory(record: RunRecord) -> str:
    memory = record.device_memory
    if memory is None:
        return ""
    peak = "unknown" if memory.peak_bytes is None else show_bytes(memory.peak_bytes)
    return f"peak {peak}" + (f" of {show_bytes(memory.limit_bytes)}" if memory.limit_bytes is not None else "")


def _took_part(record: RunRecord) -> str:
    """List the participants by node; empty for a single process."""
    if len(ranks_among(record.participants)) < 2:
        return ""
    by_node: dict[int, list[str]] = {}
    for each in record.participants:
        by_node.setdefault(each.node, []).append(each.id)
    return "; ".join(f"on node {node}: {', '.join(names)}" for node, names in sorted(by_node.items()))


def _clocks(record: RunRecord) -> str:
    """Say how far the clocks of other nodes were ahead, within the uncertainty of the round trip."""
    return "; ".join(
        f"{pair.clock} {seconds_of_ns(pair.offset_ns):+.6f} s at the {pair.when}, "
        f"within {format_scaled(seconds_of_ns(pair.uncertainty_ns), 's')}"
        for pair in record.clocks
    )


def _energy(cell: StoredCell) -> Iterator[str]:
    """Yield the energy by each power meter over the steady window of this process, also those outside the total."""
    try:
        found = analyse_process(CellData(cell.record, cell.steps(), cell.telemetry())).energy
    except RigdynoError:
        return
    several = found is not None and len(found.totals) > 1
    for meter in found.meters if found is not None else ():
        where = f"node {meter.node}: " if several else ""
        peak = "" if meter.peak_watts is None else f", peak {format_scaled(meter.peak_watts, 'W')}"
        other = (
            "" if meter.check_watts is None else f", {format_scaled(meter.check_watts, 'W')} by readings of its power"
        )
        how = "counted" if meter.method == "counter" else "integrated"
        yield (
            f"{where}{meter.title} ({meter.sensor}): {format_scaled(meter.joules, 'J')} {how} over "
            f"{format_scaled(meter.seconds, 's')}, {show_percent(meter.coverage)} of the steady window; "
            f"mean {format_scaled(meter.watts, 'W')}{peak}{other}"
        )


def _troubles(cell: StoredCell) -> str:
    """List the probes that were blocked, failed, gave invalid values or disappeared, and in how many readings."""
    try:
        telemetry = cell.telemetry()
    except RigdynoError:
        return ""
    return "; ".join(
        f"{channel.sensor} {state} in {count:,} of {len(rows):,} readings"
        for header, rows in telemetry
        for channel in header.channels
        if channel.quantity == "state"
        for state, count in probe_states(rows, channel.name).items()
    )
