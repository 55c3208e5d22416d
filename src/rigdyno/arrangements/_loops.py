"""The loops that are measured: nothing else may happen in them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from statistics import fmean
from typing import Any

from rigdyno.clock import SystemClock
from rigdyno.contracts import CannotRun, Meter, Step, Steps, Training, TrainStep, Update
from rigdyno.schema.record import Quality
from rigdyno.units import seconds_of_ns

_LOSSES_KEPT = 5


class Alone:
    """With one rank there is nobody to agree with."""

    def sum(self, tensors: list[Any]) -> None:
        pass

    def agree(self, number: int) -> int:
        return number


def repeat(steps: Steps, meter: Meter) -> Quality:
    kinds = list(steps.kinds.values())
    if len(kinds) == 1:
        meter.repeat(kinds[0], steps.items_per_step)
    else:
        _take_turns(kinds, steps.items_per_step, meter)
    return Quality(
        correct=steps.check() if steps.check else None,
        shown_epsilon=steps.shown_epsilon() if steps.shown_epsilon else None,
    )


def _take_turns(kinds: Sequence[Step], items_per_step: float, meter: Meter) -> None:
    more, done = meter.more, meter.step
    turns = cycle(enumerate(kinds))
    while more():
        kind, step = next(turns)
        items = step()
        done(items_per_step if items is None else items, kind)


def train(training: Training, train_step: TrainStep, meter: Meter) -> Quality:
    """Losses stay on the device until all is over: reading one would wait for the device in the middle of the steps."""
    first: list[Any] = []
    last: deque[Any] = deque(maxlen=_LOSSES_KEPT)
    batches, mark = training.batches, training.mark
    while meter.more():
        mark("")  # the meter's own time is no phase
        inputs, targets = next(batches)
        mark("data")
        loss = train_step(inputs, targets)
        meter.step(len(targets))
        if len(targets):  # a batch that is drawn at random may be empty, and has no loss
            (first if len(first) < _LOSSES_KEPT else last).append(loss)
    return _quality([float(loss) for loss in first], [float(loss) for loss in last], training)


def _quality(first: Sequence[float], last: Sequence[float], training: Training) -> Quality:
    """A run too short to have last losses beside the first ones says nothing about them."""
    began_ns = SystemClock.now_ns()
    accuracy = training.accuracy() if training.accuracy else None
    took = None if accuracy is None else seconds_of_ns(SystemClock.now_ns() - began_ns)
    return Quality(
        loss_finite=all(map(math.isfinite, (*first, *last))) if first else None,
        first_loss=fmean(first) if last else None,
        last_loss=fmean(last) if last else None,
        accuracy=accuracy,
        evaluation_seconds=took,
        epsilon=training.epsilon() if training.epsilon else None,
        epoch_epsilon=training.epoch_epsilon() if training.epoch_epsilon else None,
    )


def refuse_other_updates(update: Update) -> None:
    name = type(update).__module__.rpartition(".")[2]  # an entry is named for its file
    if name != "plain":
        raise CannotRun(f"the update '{name}' changes how a model is trained, and this workload trains none")
