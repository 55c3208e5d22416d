"""One process does all of the work."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean
from typing import Any, ClassVar

from rigdyno.contracts import CannotRun, Collective, Job, Meter, Requirement, Step, Steps, Training, Update, Workload
from rigdyno.schema.record import Quality

_LOSSES_KEPT = 5


@dataclass(frozen=True, kw_only=True)
class Single:
    """One process, on one device."""

    launcher: ClassVar[str] = "process"
    requires: ClassVar[tuple[Requirement, ...]] = ()

    def refuses(self, workload: Workload, update: Update, world_size: int) -> str | None:
        return None if world_size == 1 else f"the arrangement 'single' is for one process, not {world_size}"

    def run(self, job: Job) -> Quality:
        built = job.workload.build(job.place)
        if isinstance(built, Training):
            return _train(job, built)
        _refuse_other_updates(job.update)
        _repeat(built, job.start_meter(built, _Alone()))
        return Quality(correct=built.check() if built.check else None)


class _Alone:
    """With one rank there is nobody to agree with."""

    def sum(self, tensors: Sequence[Any]) -> None:
        pass

    def agree(self, number: int) -> int:
        return number


def _refuse_other_updates(update: Update) -> None:
    name = type(update).__module__.rpartition(".")[2]  # an entry is named for its file
    if name != "plain":
        raise CannotRun(f"the update '{name}' changes how a model is trained, and this workload trains none")


def _repeat(steps: Steps, meter: Meter) -> None:
    kinds = list(steps.kinds.values())
    if len(kinds) == 1:
        meter.repeat(kinds[0], steps.items_per_step)
    else:
        _take_turns(kinds, steps.items_per_step, meter)


# This loop is what is measured: nothing else may happen in it.
def _take_turns(kinds: Sequence[Step], items_per_step: float, meter: Meter) -> None:
    more, done = meter.more, meter.step
    turns = cycle(enumerate(kinds))
    while more():
        kind, step = next(turns)
        items = step()
        done(items_per_step if items is None else items, kind)


def _train(job: Job, training: Training) -> Quality:
    """Losses stay on the device until all is over: reading one would wait for the device in the middle of the steps."""
    alone: Collective = _Alone()
    train_step = job.update.prepare(training, job.place, alone)
    meter = job.start_meter(training, alone)
    first: list[Any] = []
    last: deque[Any] = deque(maxlen=_LOSSES_KEPT)
    batches = training.batches
    while meter.more():
        inputs, targets = next(batches)
        loss = train_step(inputs, targets)
        meter.step(len(targets))
        (first if len(first) < _LOSSES_KEPT else last).append(loss)
    return _quality([float(loss) for loss in first], [float(loss) for loss in last], training)


def _quality(first: Sequence[float], last: Sequence[float], training: Training) -> Quality:
    """A run too short to have last losses beside the first ones says nothing about them."""
    return Quality(
        loss_finite=all(map(math.isfinite, (*first, *last))) if first else None,
        first_loss=fmean(first) if last else None,
        last_loss=fmean(last) if last else None,
        accuracy=training.accuracy() if training.accuracy else None,
    )
