"""The measured loops. They contain nothing but what is measured."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from statistics import fmean
from typing import Any

import msgspec

from rigdyno.base.clock import Stopwatch, SystemClock
from rigdyno.base.units import seconds_of_ns
from rigdyno.contracts import CannotRun, Meter, Step, Steps, Training, TrainStep, Update, Validation
from rigdyno.schema.record import Quality

_LOSSES_KEPT = 5


class SingleRank:
    """The collective of a single rank."""

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
    """Train until the meter or the validation ends it. Losses stay on the device until the end: reading one would
    synchronise with the device between steps."""
    first: list[Any] = []
    last: deque[Any] = deque(maxlen=_LOSSES_KEPT)
    batches, mark = training.batches, training.mark
    watch = ValidationWatch(training)
    while meter.more() and not watch.has_reached_target():
        mark("")  # the meter's own time belongs to no phase
        inputs, targets = next(batches)
        mark("data")
        loss = train_step(inputs, targets)
        meter.step(len(targets))
        if len(targets):  # a Poisson batch may be empty, and has no loss
            (first if len(first) < _LOSSES_KEPT else last).append(loss)
        watch.steps += 1
    watch.end()
    quality = _assess([float(loss) for loss in first], [float(loss) for loss in last], training)
    if training.finish is not None:
        training.finish()
    return quality if training.validation is None else watch.add_result(quality)


class ValidationWatch:
    """Validates regularly if the training is to end at an accuracy. The time of validation isn't training time."""

    def __init__(self, training: Training) -> None:
        self._validation = training.validation
        self.steps, self._reached, self._validation_ns = 0, False, 0
        self._began_ns = self._ended_ns = SystemClock.now_ns()

    def has_reached_target(self) -> bool:
        if self._validation is None or self.steps == 0 or self.steps % self._validation.every:
            return False
        self._validate(self._validation)
        return self._reached

    def _validate(self, validation: Validation) -> None:
        began_ns = SystemClock.now_ns()
        self._reached = validation.accuracy() >= validation.wanted
        self._validation_ns += SystemClock.now_ns() - began_ns

    def end(self) -> None:
        if self._validation is not None and not self._reached:
            self._validate(self._validation)
        self._ended_ns = SystemClock.now_ns()

    def add_result(self, quality: Quality) -> Quality:
        seconds = seconds_of_ns(self._ended_ns - self._began_ns - self._validation_ns)
        return msgspec.structs.replace(
            quality, reached=self._reached, trained_seconds=seconds, trained_steps=self.steps
        )


def _assess(first: Sequence[float], last: Sequence[float], training: Training) -> Quality:
    """Return the quality of the training. A run too short to have both first and last losses gets neither."""
    stopwatch = Stopwatch(SystemClock())
    accuracy = training.accuracy() if training.accuracy else None
    seconds = None if accuracy is None else stopwatch.seconds
    return Quality(
        loss_finite=all(map(math.isfinite, (*first, *last))) if first else None,
        first_loss=fmean(first) if last else None,
        last_loss=fmean(last) if last else None,
        accuracy=accuracy,
        evaluation_seconds=seconds,
        epsilon=training.epsilon() if training.epsilon else None,
        epoch_epsilon=training.epoch_epsilon() if training.epoch_epsilon else None,
    )


def refuse_other_updates(update: Update) -> None:
    name = type(update).__module__.rpartition(".")[2]  # an entry is named for its file
    if name != "plain":
        raise CannotRun(f"the update '{name}' changes how a model is trained, and this workload doesn't train")
