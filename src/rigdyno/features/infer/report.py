"""The parts of the plan and report that only `rigdyno infer` has."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from rigdyno.base.units import show_bytes, show_number, show_scaled
from rigdyno.report.generic import make_totals_table
from rigdyno.report.text import Page, format_scaled
from rigdyno.schema.record import Facts, Total
from rigdyno.schema.view import View

if TYPE_CHECKING:
    from rigdyno.engines.blockwise import Done, Plan
    from rigdyno.engines.blockwise.boxes import Zyx
    from rigdyno.engines.blockwise.journal import BlockCounts
    from rigdyno.engines.blockwise.watching import Summary

MOST_FAILURES = 5  # that are named; the journal has all of them

NOTHING_LEFT = "Nothing was left to do."


def detail_lines(plan: Plan, name: str, output: str, page: Page, *, resumed: bool) -> list[str]:
    """Return the lines that follow those of every plan."""
    rows = [
        ("volume", f"{format_shape(plan.shape)} voxels ({show_scaled(prod(plan.shape), 'voxel')})"),
        ("values", f"normalised: {_normalisation_words(plan)}"),
        ("network", f"{name}, {_plural(plan.channels, 'channel')}, backend {plan.backend}"),
        (
            "blocks",
            f"{plan.blocks} of {format_shape(plan.block)}, about {format_scaled(plan.voxels_per_second, 'voxel/s')}",
        ),
        ("halo", _halo_words(plan)),
        ("computed", f"{show_number(plan.recomputation)} times what the whole volume at once would need"),
        ("disk", f"up to {show_bytes(plan.output_bytes)} in {output}"),
    ]
    lines = [f"  going on with what was begun in {output}; this is the plan of the whole"] if resumed else []
    lines += [f"  {title:<9} {text}" for title, text in rows]
    wrapped = [textwrap.wrap(line, page.width, subsequent_indent=" " * 12) for line in lines]
    wrapped += [textwrap.wrap(f"  note: {remark}", page.width, subsequent_indent="    ") for remark in plan.remarks]
    return [line for part in wrapped for line in part]


def facts_of(before: BlockCounts, summary: Summary, done: Done | None) -> Facts:
    """Return the facts for the record, without paths, which may name a person. `done`: None if it was stopped."""
    counted = {
        "blocks": Total(value=summary.done),
        "voxels": Total(value=summary.voxels, unit="voxel"),
        "time": _seconds_total(summary.wall_seconds),
        "predicting": _seconds_total(summary.predict_seconds),
        "waiting for input": _seconds_total(summary.input_wait_seconds),
        "waiting for writers": _seconds_total(summary.writer_wait_seconds),
    }
    rare = {
        "blocks skipped": summary.skipped,
        "blocks that couldn't be read": summary.failed,
        "blocks with chunks never stored": summary.missing,
        "values clipped": 0 if done is None else done.clipped,
        "answers that weren't numbers": 0 if done is None else done.not_numbers,
    }
    totals = {**counted, **{name: Total(value=number) for name, number in rare.items() if number}}
    return Facts(unit="voxel", totals=totals, notes=tuple(_notes(before, summary, done)))


def _notes(before: BlockCounts, summary: Summary, done: Done | None) -> Iterator[str]:
    already = before.done + before.skipped
    if already:
        all_blocks = already + before.to_do + before.failed
        yield f"went on with what was begun before: {already:,} of {_plural(all_blocks, 'block')} were there already"
    if summary.skipped:
        yield f"{_plural(summary.skipped, 'block')} skipped: the mask is empty there"
    if summary.missing:
        yield f"{_plural(summary.missing, 'block')} with chunks that were never stored, read as the fill value"
    if done is None:
        return
    others = done.counts.done + done.counts.skipped - already - summary.done - summary.skipped
    if others > 0:
        yield f"{_plural(others, 'block')} done by other processes meanwhile: the figures are of this one alone"
    if done.clipped:
        yield f"{done.clipped:,} values lay outside of the output's range and were clipped; see --range"
    if done.not_numbers:
        yield f"{done.not_numbers:,} answers of the network weren't numbers; look at its weights and at the input"
    if done.counts.failed:
        yield f"{_plural(done.counts.failed, 'block')} couldn't be read; mend the input and run the same command again"


def failures_of(done: Done) -> tuple[str, ...]:
    """Return the blocks that couldn't be read, with reasons; those of other processes are only counted."""
    named = done.summary.failures[:MOST_FAILURES]
    more = done.counts.failed - len(named)
    sentences = [f"{failure.box}: {failure.reason}" for failure in named]
    return (*sentences, *((f"and {_plural(more, 'block')} more",) if more > 0 else ()))


def view_without_record(facts: Facts, *, nothing_left: bool) -> View:
    """Return the view if there was nothing to do, or the record couldn't be kept."""
    if nothing_left:
        return View(title="infer", closing=(NOTHING_LEFT,))
    return View(title="infer", tables=(make_totals_table(facts.totals),), closing=facts.notes)


def format_shape(shape: Zyx) -> str:
    return " x ".join(map(str, shape))


def _seconds_total(seconds: float) -> Total:
    return Total(value=seconds, unit="s")


def _halo_words(plan: Plan) -> str:
    exact = f"exact is {format_shape(plan.exact_halo)}" if plan.exact_halo else "no halo is exact for this network"
    if plan.halo == plan.exact_halo:
        return f"{format_shape(plan.halo)}, which is exact"
    if plan.halo_error is None:
        return f"{format_shape(plan.halo)} as asked for ({exact})"
    error = f"{plan.halo_error:.2%} of the output's range at most, {plan.halo_mean_error:.2g} in the mean"
    return f"{format_shape(plan.halo)} ({exact}): off by {error}, seen at {plan.halo_places} places"


def _normalisation_words(plan: Plan) -> str:
    figures = plan.normalisation
    if set(figures.subtract) == {0.0} and set(figures.divide) == {1.0}:
        return "no"
    pairs = ", ".join(
        f"(value - {show_number(subtract)}) / {show_number(divide)}"
        for subtract, divide in zip(figures.subtract, figures.divide, strict=True)
    )
    return f"{pairs}, from {figures.source}"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
