"""The plan before it runs: what, how long, how much memory and disk, and what can't run here."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rigdyno.plan.preflight import disk_bytes, free_disk_bytes
from rigdyno.report.page import Page
from rigdyno.schema.record import RunHead
from rigdyno.schema.spec import Cell, Plan
from rigdyno.units import show_bytes, show_seconds


def plan_lines(head: RunHead, root: Path, page: Page, *, every_cell: bool = False) -> list[str]:
    lines = textwrap.wrap(f"This rig: {head.system.line()}", page.width, subsequent_indent="  ")
    lines += textwrap.wrap(summary(head.plan), page.width, subsequent_indent="  ")
    if every_cell:
        lines += [cell_line(cell) for cell in head.plan.runnable if cell.pair is None]
    lines += _duel_lines(head.plan)
    refused = [cell for cell in head.plan.cells if cell.refusal is not None and cell.repeat == 1]
    for cell in refused:
        lines += textwrap.wrap(f"  not run: {_name(cell)}: {cell.refusal}", page.width, subsequent_indent="    ")
    if every_cell:
        need = disk_bytes(head.plan.seconds, len(head.plan.cells))
        lines.append(f"  disk: about {show_bytes(need)}, {show_bytes(free_disk_bytes(root))} are free in {root}")
    return lines


def summary(plan: Plan) -> str:
    parts = [_count(plan), f"{'at most' if plan.is_duel else 'about'} {show_seconds(plan.seconds)}"]
    if plan.memory_bytes is not None:
        parts.append(f"up to {show_bytes(plan.memory_bytes)} of memory")
    return f"Plan: {plan.name}, {', '.join(parts)}"


def _count(plan: Plan) -> str:
    cells = [cell for cell in plan.runnable if cell.pair is None]
    pairs = len(plan.runnable) - len(cells)
    words = [f"{len(cells)} cell{'s' if len(cells) != 1 else ''}"] if cells or not pairs else []
    if plan.duel is not None and pairs:
        least = "" if plan.duel.self_duel or plan.duel.least_pairs == pairs // 2 else f"{plan.duel.least_pairs} to "
        against = f" of {plan.duel.what} against itself" if plan.duel.self_duel else ""
        words.append(f"{least}{pairs // 2} pairs of processes{against}")
    return " and ".join(words)


def _duel_lines(plan: Plan) -> list[str]:
    """Who fights; the pairs themselves are all alike."""
    if plan.duel is None or plan.duel.self_duel:
        return []
    return [f"  {arm}: {name}" for arm, name in zip("AB", plan.duel.names, strict=True)]


def cell_line(cell: Cell) -> str:
    memory = show_bytes(cell.memory_bytes) if cell.memory_bytes is not None else "memory unknown"
    return f"  {cell.name:<44} {show_seconds(cell.seconds):>10}  {memory:>12}"


def _name(cell: Cell) -> str:
    options = ", ".join(f"{key}={value}" for key, value in cell.spec.options.items())
    return f"{cell.spec.workload} {options}".strip()
