"""What training steps were spent on, from the marks that each rank made on its way through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from rigdyno.analyse.statistics import across_processes, across_ranks, throughput_estimate
from rigdyno.analyse.streams import Floats, Rows, items, row_seconds
from rigdyno.analyse.thresholds import UNEXPLAINED
from rigdyno.analyse.verdict import Finding
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Phases
from rigdyno.schema.metric import THROUGHPUT
from rigdyno.schema.samples import COMPUTING
from rigdyno.units import show_percent

FORWARD = ("scatter", "broadcast", "forward", "gather")
BACKWARD = ("backward", "communication", "optimizer")


def phases_of(steady: Mapping[int, Rows], timed: Mapping[int, Mapping[str, Rows]], unit: str) -> Phases | None:
    """By rank: its steady steps, and what it marked, warm-up included."""
    ranks = list(steady.values())
    spent = [_by_row(rows, timed[rank]) for rank, rows in steady.items()]
    if not all(len(rows) and {"forward", "backward"} <= set(each) for rows, each in zip(ranks, spent, strict=True)):
        return None
    return Phases(
        forward=_rate(ranks, spent, FORWARD, unit),
        backward=_rate(ranks, spent, BACKWARD, unit),
        by_rank={
            rank: {phase: float(seconds.sum() / rows["steps"].sum()) for phase, seconds in each.items()}
            for (rank, rows), each in zip(steady.items(), spent, strict=True)
        },
        longest_computing=_longest(ranks, spent),
        explained=max(map(_explained, ranks, spent), key=lambda share: abs(share - 1)),
    )


def _by_row(rows: Rows, phases: Mapping[str, Rows]) -> dict[str, Floats]:
    """The seconds of each phase in each row of steps."""
    return {phase: _added_up(rows, marked) for phase, marked in phases.items()}


def _added_up(rows: Rows, marked: Rows) -> Floats:
    """A phase belongs to the row that it began in."""
    index = np.searchsorted(rows["start_ns"], marked["start_ns"], side="right") - 1
    inside = (index >= 0) & (marked["end_ns"] <= rows["end_ns"][-1]) if len(rows) else np.zeros(len(marked), bool)
    seconds = np.zeros(len(rows))
    np.add.at(seconds, index[inside], row_seconds(marked)[inside])
    return seconds


def _rate(ranks: Sequence[Rows], spent: Sequence[Mapping[str, Floats]], names: Sequence[str], unit: str) -> Estimate:
    rates = []
    for rows, each in zip(ranks, spent, strict=True):
        seconds = np.sum([each[name] for name in names if name in each], axis=0)
        taken = (seconds > 0) | (items(rows) > 0)  # a step whose batch was drawn empty has no such phase
        rates.append(throughput_estimate(items(rows)[taken], seconds[taken], unit))
    return across_ranks(THROUGHPUT, rates)


def _longest(ranks: Sequence[Rows], spent: Sequence[Mapping[str, Floats]]) -> float:
    """Ranks take the same steps together, and end with the same one; they may have settled at different ones."""
    last = min(len(rows) for rows in ranks)
    computed = [
        np.sum([each[name] for name in COMPUTING if name in each], axis=0)[-last:] / rows["steps"][-last:]
        for rows, each in zip(ranks, spent, strict=True)
    ]
    return float(np.max(computed, axis=0).mean())


def _explained(rows: Rows, spent: Mapping[str, Floats]) -> float:
    return float(np.sum(list(spent.values())) / row_seconds(rows).sum())


def unexplained(phases: Phases | None) -> list[Finding]:
    if phases is None or abs(phases.explained - 1) <= UNEXPLAINED:
        return []
    sentence = f"the phases add up to {show_percent(phases.explained)} of the steps' time"
    return [Finding("SUSPECT", "unexplained", sentence)]


def phases_over_processes(found: Sequence[Phases]) -> Phases | None:
    if len(found) < 2:
        return found[0] if found else None
    return Phases(
        forward=_mean([each.forward for each in found]),
        backward=_mean([each.backward for each in found]),
        by_rank={
            rank: {phase: fmean(each.by_rank[rank].get(phase, 0.0) for each in found) for phase in phases}
            for rank, phases in found[0].by_rank.items()
            if all(rank in each.by_rank for each in found)
        },
        longest_computing=fmean(each.longest_computing for each in found),
        explained=max((each.explained for each in found), key=lambda share: abs(share - 1)),
    )


def _mean(rates: Sequence[Estimate]) -> Estimate:
    return across_processes([rate.value for rate in rates], rates[0].unit, of="processes' throughputs")
