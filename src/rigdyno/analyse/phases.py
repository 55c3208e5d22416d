"""Compute where the time of training steps and of whole jobs went, from the phases that each rank marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from rigdyno.analyse.statistics import across_processes, across_ranks, throughput_estimate
from rigdyno.analyse.streams import Floats, Rows, items, row_seconds, streams
from rigdyno.analyse.validity.thresholds import UNEXPLAINED
from rigdyno.analyse.validity.verdict import Finding
from rigdyno.base.units import seconds_of_ns, show_percent
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import JobTime, Phases
from rigdyno.schema.metric import THROUGHPUT
from rigdyno.schema.record import Completed, RunRecord
from rigdyno.schema.samples import COMPUTING, Header

DATA, COMMUNICATION = ("data",), ("scatter", "broadcast", "gather", "communication")

Samples = tuple[Header, Rows]

FORWARD = ("scatter", "broadcast", "forward", "gather")

BACKWARD = ("backward", "communication", "optimizer")


class JobSeconds(NamedTuple):
    """The parts of the time of one job, in seconds."""

    whole: float
    loop: float
    data: float | None
    communication: float | None
    evaluation: float
    steps: int
    items: float


def phases_of(steady: Mapping[int, Rows], timed: Mapping[int, Mapping[str, Rows]], unit: str) -> Phases | None:
    """Return the phases of a step, from the steady steps and all marked phases of each rank."""
    ranks = list(steady.values())
    spent = [_phase_seconds(rows, timed[rank]) for rank, rows in steady.items()]
    if not all(len(rows) and {"forward", "backward"} <= set(each) for rows, each in zip(ranks, spent, strict=True)):
        return None
    return Phases(
        forward=_rate(ranks, spent, FORWARD, unit),
        backward=_rate(ranks, spent, BACKWARD, unit),
        by_rank={
            rank: {phase: float(seconds.sum() / rows["steps"].sum()) for phase, seconds in each.items()}
            for (rank, rows), each in zip(steady.items(), spent, strict=True)
        },
        longest_computing=_longest_computing(ranks, spent),
        explained=max(map(_explained_share, ranks, spent), key=lambda share: abs(share - 1)),
    )


def _phase_seconds(rows: Rows, phases: Mapping[str, Rows]) -> dict[str, Floats]:
    """Return the seconds of each phase in each row of steps."""
    return {phase: _sum_by_row(rows, marked) for phase, marked in phases.items()}


def _sum_by_row(rows: Rows, marked: Rows) -> Floats:
    """Add up phases by the row of steps in which they began."""
    index = np.searchsorted(rows["start_ns"], marked["start_ns"], side="right") - 1
    inside = (index >= 0) & (marked["end_ns"] <= rows["end_ns"][-1]) if len(rows) else np.zeros(len(marked), bool)
    seconds = np.zeros(len(rows))
    np.add.at(seconds, index[inside], row_seconds(marked)[inside])
    return seconds


def _rate(ranks: Sequence[Rows], spent: Sequence[Mapping[str, Floats]], names: Sequence[str], unit: str) -> Estimate:
    rates = []
    for rows, each in zip(ranks, spent, strict=True):
        seconds = np.sum([each[name] for name in names if name in each], axis=0)
        taken = (seconds > 0) | (items(rows) > 0)  # a step with an empty batch has no such phase
        rates.append(throughput_estimate(items(rows)[taken], seconds[taken], unit))
    return across_ranks(THROUGHPUT, rates)


def _longest_computing(ranks: Sequence[Rows], spent: Sequence[Mapping[str, Floats]]) -> float:
    """Return the mean, over steps, of the time that the slowest rank computed.

    Ranks take the same steps and end with the same one, but their steady windows may begin at different steps.
    """
    last = min(len(rows) for rows in ranks)
    computed = [
        np.sum([each[name] for name in COMPUTING if name in each], axis=0)[-last:] / rows["steps"][-last:]
        for rows, each in zip(ranks, spent, strict=True)
    ]
    return float(np.max(computed, axis=0).mean())


def _explained_share(rows: Rows, spent: Mapping[str, Floats]) -> float:
    return float(np.sum(list(spent.values())) / row_seconds(rows).sum())


def check_explained(phases: Phases | None) -> list[Finding]:
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


def job_seconds(record: RunRecord, steps: Sequence[Samples], phases: Sequence[Samples]) -> JobSeconds | None:
    """Return the times of a job; None if the cell was no job or didn't complete."""
    sound = [rows for _, rows in steps if len(rows)]
    if not record.spec.budget.is_job or not isinstance(record.outcome, Completed) or not sound:
        return None
    loop = max(seconds_of_ns(int(rows["end_ns"][-1] - rows["start_ns"][0])) for rows in sound)
    last_ns = {header.participant.id: int(rows["end_ns"][-1]) for header, rows in steps if len(rows)}
    timed = [
        streams(header, _rows_until(rows, last_ns.get(header.participant.id, 0)))
        for header, rows in phases
        if len(rows)
    ]
    return JobSeconds(
        whole=record.seconds,
        loop=loop,
        data=_mean_seconds(timed, DATA),
        communication=_mean_seconds(timed, COMMUNICATION),
        evaluation=record.outcome.quality.evaluation_seconds or 0.0,
        steps=int(sound[0]["steps"].sum()),
        items=float(sum(items(rows).sum() for rows in sound)),
    )


def _rows_until(rows: Rows, end_ns: int) -> Rows:
    """Return the rows up to the last step; an evaluation after that marks phases too."""
    inside: Rows = rows[rows["end_ns"] <= end_ns]
    return inside


def _mean_seconds(ranks: Sequence[dict[str, Rows]], names: Iterable[str]) -> float | None:
    """Return the total seconds of the named phases, averaged over the ranks; None if no phases were timed."""
    totals = [sum(float(row_seconds(rank[name]).sum()) for name in names if name in rank) for rank in ranks]
    return fmean(totals) if totals else None


def job_time(processes: Sequence[JobSeconds]) -> JobTime | None:
    """Return the means over the processes of one configuration."""
    if not processes:
        return None
    data, communication = (
        _mean_if_complete(each.data for each in processes),
        _mean_if_complete(each.communication for each in processes),
    )
    loop, evaluation = fmean(each.loop for each in processes), fmean(each.evaluation for each in processes)
    whole = _whole_seconds([each.whole for each in processes])
    return JobTime(
        seconds=whole,
        start=whole.value - loop - evaluation,
        data=data,
        training=loop - (data or 0.0) - (communication or 0.0),
        communication=communication,
        evaluation=evaluation,
        steps=processes[0].steps,
        items=processes[0].items,
    )


def _mean_if_complete(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return fmean(known) if len(known) == len(found) else None


def _whole_seconds(seconds: Sequence[float]) -> Estimate:
    if len(seconds) > 1:
        return across_processes(seconds, "s", of="processes' times")
    return Estimate(value=seconds[0], n=1, unit="s", method="one process, no interval")
