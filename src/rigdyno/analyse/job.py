"""Where the time of a whole job went: from the cell's record, its steps and what they were spent on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from rigdyno.analyse.statistics import across_processes
from rigdyno.analyse.streams import Rows, items, row_seconds, streams
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import JobTime
from rigdyno.schema.record import Completed, RunRecord
from rigdyno.schema.samples import Header
from rigdyno.units import seconds_of_ns

DATA, COMMUNICATION = ("data",), ("scatter", "broadcast", "gather", "communication")

Samples = tuple[Header, Rows]


class Spent(NamedTuple):
    """Of one process group, in seconds."""

    whole: float
    loop: float
    data: float | None
    communication: float | None
    evaluation: float
    steps: int
    items: float


def spent(record: RunRecord, steps: Sequence[Samples], phases: Sequence[Samples]) -> Spent | None:
    """None: it was no job, or didn't come to its end."""
    sound = [rows for _, rows in steps if len(rows)]
    if not record.spec.budget.is_job or not isinstance(record.outcome, Completed) or not sound:
        return None
    loop = max(seconds_of_ns(int(rows["end_ns"][-1] - rows["start_ns"][0])) for rows in sound)
    last_ns = {header.participant.id: int(rows["end_ns"][-1]) for header, rows in steps if len(rows)}
    timed = [
        streams(header, _until(rows, last_ns.get(header.participant.id, 0))) for header, rows in phases if len(rows)
    ]
    return Spent(
        whole=record.seconds,
        loop=loop,
        data=_mean_of(timed, DATA),
        communication=_mean_of(timed, COMMUNICATION),
        evaluation=record.outcome.quality.evaluation_seconds or 0.0,
        steps=int(sound[0]["steps"].sum()),
        items=float(sum(items(rows).sum() for rows in sound)),
    )


def _until(rows: Rows, end_ns: int) -> Rows:
    """What is marked behind the last step is no part of the loop: an evaluation calls the same model."""
    inside: Rows = rows[rows["end_ns"] <= end_ns]
    return inside


def _mean_of(ranks: Sequence[dict[str, Rows]], names: Iterable[str]) -> float | None:
    """Over the ranks, all of their steps together; None: nobody timed them."""
    totals = [sum(float(row_seconds(rank[name]).sum()) for name in names if name in rank) for rank in ranks]
    return fmean(totals) if totals else None


def job_time(processes: Sequence[Spent]) -> JobTime | None:
    """Means over the processes of one configuration."""
    if not processes:
        return None
    data, communication = _known(each.data for each in processes), _known(each.communication for each in processes)
    loop, evaluation = fmean(each.loop for each in processes), fmean(each.evaluation for each in processes)
    whole = _whole([each.whole for each in processes])
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


def _known(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return fmean(known) if len(known) == len(found) else None


def _whole(seconds: Sequence[float]) -> Estimate:
    if len(seconds) > 1:
        return across_processes(seconds, "s", of="processes' times")
    return Estimate(value=seconds[0], n=1, unit="s", method="one process, no interval")
