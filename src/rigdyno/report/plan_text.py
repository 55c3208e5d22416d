"""Describe a plan before it runs: cells, time, memory, disk, and what can't run here."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from rigdyno.base.units import show_bytes, show_seconds
from rigdyno.plan.resources import disk_bytes, free_disk_bytes
from rigdyno.report.text import Page
from rigdyno.schema.record import RunHead, RunRecord
from rigdyno.schema.spec import Cell, RunPlan

LATE = 1.05  # times the budget; smaller overruns are not mentioned

NOTICED_SECONDS = 2.0  # shorter times are not mentioned


def describe_plan(head: RunHead, root: Path, page: Page, *, every_cell: bool = False) -> list[str]:
    lines = textwrap.wrap(f"This machine: {head.system.line()}", page.width, subsequent_indent="  ")
    lines += textwrap.wrap(summarise_plan(head.plan), page.width, subsequent_indent="  ")
    if every_cell:
        lines += [describe_planned_cell(cell) for cell in head.plan.runnable if cell.is_planned]
    lines += _duel_lines(head.plan)
    if head.plan.foreseen is not None:
        lines += textwrap.wrap(f"  {head.plan.foreseen}", page.width, subsequent_indent="    ")
    lines += describe_refusals(head.plan, page.width)
    if every_cell:
        need = disk_bytes(head.plan.seconds, len(head.plan.cells))
        lines.append(f"  disk: about {show_bytes(need)}, {show_bytes(free_disk_bytes(root))} are free in {root}")
    return lines


def describe_refusals(plan: RunPlan, width: int, indent: str = "  ") -> list[str]:
    """List the cells that can't run here, and why."""
    lines = []
    for cell in plan.cells:
        if cell.refusal is not None and cell.repeat == 1:
            words = f"{indent}not run: {_describe_cell(cell)}: {cell.refusal}"
            lines += textwrap.wrap(words, width, subsequent_indent=f"{indent}  ")
    return lines


def summarise_plan(plan: RunPlan) -> str:
    seconds = f"{'at most' if plan.is_duel else 'about'} {show_seconds(plan.seconds)}"
    return f"Plan: {plan.name}, {', '.join([_count_cells(plan), seconds, *_describe_memory(plan)])}"


def summarise_campaign_part(plan: RunPlan) -> str:
    """Summarise the plan of a suite that is part of a campaign."""
    seconds = show_seconds(plan.budget_seconds or plan.seconds)
    return f"{plan.name}, {', '.join([seconds, _count_cells(plan), *_describe_memory(plan)])}"


def _describe_memory(plan: RunPlan) -> list[str]:
    return [] if plan.memory_bytes is None else [f"up to {show_bytes(plan.memory_bytes)} of memory"]


def _count_cells(plan: RunPlan) -> str:
    cells = [cell for cell in plan.runnable if cell.is_planned]
    pairs = sum(cell.pair is not None for cell in plan.runnable)
    words = [f"{len(cells)} cell{'s' if len(cells) != 1 else ''}"] if cells or not pairs else []
    if any(cell.spare for cell in plan.runnable) and plan.spare_seconds >= NOTICED_SECONDS:
        words[-1] += f" (and {show_seconds(plan.spare_seconds)} for more where intervals are wide)"
    if plan.duel is not None and pairs:
        least = "" if plan.duel.self_duel or plan.duel.least_pairs == pairs // 2 else f"{plan.duel.least_pairs} to "
        against = f" of {plan.duel.what} against itself" if plan.duel.self_duel else ""
        words.append(f"{least}{pairs // 2} pairs of processes{against}")
    return " and ".join(words)


def _duel_lines(plan: RunPlan) -> list[str]:
    """Name the two arms of a duel. The pairs are not listed: they are all alike."""
    if plan.duel is None or plan.duel.self_duel:
        return []
    return [f"  {arm}: {name}" for arm, name in zip("AB", plan.duel.names, strict=True)]


def describe_planned_cell(cell: Cell) -> str:
    memory = show_bytes(cell.memory_bytes) if cell.memory_bytes is not None else "memory unknown"
    return f"  {cell.name:<44} {show_seconds(cell.seconds):>10}  {memory:>12}"


def _describe_cell(cell: Cell) -> str:
    options = ", ".join(f"{key}={value}" for key, value in cell.spec.named_options().items())
    return f"{cell.spec.workload} {options}".strip()


def explain_overrun(plan: RunPlan, records: Sequence[RunRecord]) -> str | None:
    """Say what exceeded the time budget, and by how much; None if it was kept, or if there is none."""
    if plan.budget_seconds is None or plan.is_duel:
        return None
    took = sum(record.seconds for record in records if record.arm != "b")  # the arms of a pair run at the same time
    cells = {cell.name: cell for cell in plan.cells}
    over = _explain_overrun(cells, records)
    ran = {record.cell for record in records}
    unrun = any(cell.is_planned and cell.name not in ran for cell in plan.runnable)
    if took <= LATE * plan.budget_seconds and not (unrun and over):
        return None
    whole = f"the run took {show_seconds(took)} of a budget of {show_seconds(plan.budget_seconds)}"
    return f"{whole}: {'; '.join(over)}" if over else whole


def _explain_overrun(cells: Mapping[str, Cell], records: Sequence[RunRecord]) -> list[str]:
    """List what took longer than planned.

    That is the search for an option's value, starting processes, and what came after their planned time: a first step
    that compiles, or single steps that take longer than the time planned for all steps.
    """
    known = [(cells[record.cell], record) for record in records if record.pair is None and record.cell in cells]
    timed = [(cell, record, record.start_seconds) for cell, record in known if record.start_seconds is not None]
    planned = [cell.seconds - cell.spec.budget.seconds for cell, _, _ in timed]
    taken = [start for _, _, start in timed]
    later = sum(record.seconds - start - record.spec.budget.seconds for _, record, start in timed)
    tried = [record.seconds for record in records if record.attempt_of is not None]
    reasons = (
        [f"{len(tried)} attempts to find the largest value of an option took {show_seconds(sum(tried))}"]
        if tried
        else []
    )
    if sum(taken) - sum(planned) > NOTICED_SECONDS:
        mean, expected = (show_seconds(sum(seconds) / len(timed)) for seconds in (taken, planned))
        longer = show_seconds(sum(taken) - sum(planned))
        reasons.append(f"starting took {longer} longer ({mean} per process instead of {expected})")
    if later > NOTICED_SECONDS:
        reasons.append(f"steps that ran past their time, and what follows them, took {show_seconds(later)} longer")
    return reasons
