"""Tests of the single arrangement with a scripted meter."""

import math
from dataclasses import dataclass

import pytest

from rigdyno.arrangements.single import Single
from rigdyno.contracts import CannotRun, Steps, Training, TrainingJob, WorkerPlace
from rigdyno.schema.spec import RunSpec
from rigdyno.updates.plain import Plain

HERE = WorkerPlace(device="cpu")


class ScriptedMeter:
    """Wants a number of steps, and records them."""

    def __init__(self, wanted):
        self.wanted, self.steps = wanted, []

    def more(self):
        return len(self.steps) < self.wanted

    def step(self, items=1.0, kind=0):
        self.steps.append((kind, items))

    def repeat(self, step, items_per_step):
        while self.more():
            items = step()
            self.step(items_per_step if items is None else items)


@dataclass
class Fake:
    """A workload that returns a given object."""

    built: object

    def build(self, place):
        assert place is HERE
        return self.built


class ScriptedUpdate:
    """Returns losses from a list."""

    def __init__(self, losses):
        self.losses = iter(losses)

    def prepare(self, training, place, collective):
        assert collective.agree(17) == 17
        return lambda inputs, targets: next(self.losses)


def run(built, wanted, update=None):
    meter = ScriptedMeter(wanted)
    quality = Single().run(TrainingJob(Fake(built), update or Plain(), HERE, lambda steps, collective: meter))
    return meter.steps, quality


def test_a_single_kind_is_repeated_as_often_as_the_meter_wants():
    calls = []
    steps, quality = run(Steps(kinds={"step": lambda: calls.append(1)}, items_per_step=3.0), 4)
    assert steps == [(0, 3.0)] * 4
    assert len(calls) == 4
    assert quality.correct is None


def test_a_step_may_return_its_number_of_items():
    amounts = iter([5, 0, None])
    steps, _ = run(Steps(kinds={"step": lambda: next(amounts)}, items_per_step=2.0), 3)
    assert steps == [(0, 5), (0, 0), (0, 2.0)]


def test_kinds_take_turns_in_order():
    kinds = {"add": lambda: 2.0, "copy": lambda: None, "read": lambda: 4.0}
    steps, _ = run(Steps(kinds=kinds, items_per_step=3.0), 7)
    assert steps == [(0, 2.0), (1, 3.0), (2, 4.0), (0, 2.0), (1, 3.0), (2, 4.0), (0, 2.0)]


@pytest.mark.parametrize("answer", [True, False, None])
def test_the_check_runs_after_the_last_step(answer):
    order = []
    steps = Steps(kinds={"step": lambda: order.append("step")}, check=lambda: order.append("check") or answer)
    assert run(steps, 2)[1].correct is answer
    assert order == ["step", "step", "check"]


def training(sizes, accuracy=None):
    batches = (([0] * size, [0] * size) for size in sizes)
    return Training(model=None, loss=None, optimizer=None, batches=batches, accuracy=accuracy)


def test_training_counts_the_images_of_smaller_batches():
    steps, _ = run(training([64, 64, 32, 64]), 4, ScriptedUpdate([1.0] * 4))
    assert [items for _, items in steps] == [64, 64, 32, 64]


def test_the_first_and_last_losses_are_averaged():
    losses = [9, 8, 7, 6, 5, 100, 100, 4, 3, 2, 1, 0]
    _, quality = run(training([1] * 12, accuracy=lambda: 0.9), 12, ScriptedUpdate(losses))
    assert quality.first_loss == 7.0
    assert quality.last_loss == 2.0
    assert quality.accuracy == 0.9
    assert quality.loss_finite is True


def test_an_empty_batch_has_no_loss():
    steps, quality = run(training([4, 0, 4, 0, 4]), 5, ScriptedUpdate([1.0, math.nan, 2.0, math.nan, 3.0]))
    assert [items for _, items in steps] == [4, 0, 4, 0, 4]
    assert quality.loss_finite is True


def test_epsilon_is_computed_after_the_last_step():
    shared, steps = training([1] * 3), []

    class Private(ScriptedUpdate):
        def prepare(self, training, place, collective):
            training.epsilon = lambda: float(len(steps))
            return lambda inputs, targets: steps.append(1) or 0.0

    assert run(shared, 3, Private([]))[1].epsilon == 3.0
    assert run(training([1]), 1, ScriptedUpdate([0.0]))[1].epsilon is None


def test_losses_are_read_only_after_the_last_step():
    reads, meter_ended = [], []

    class Loss:
        def __float__(self):
            reads.append(bool(meter_ended))
            return 1.0

    class Meter(ScriptedMeter):
        def more(self):
            if not super().more():
                meter_ended.append(True)
            return super().more()

    meter = Meter(8)
    Single().run(
        TrainingJob(Fake(training([1] * 8)), ScriptedUpdate([Loss()] * 8), HERE, lambda built, collective: meter)
    )
    assert reads
    assert all(reads)


def test_a_diverged_training_has_no_finite_loss():
    _, quality = run(training([1] * 3), 3, ScriptedUpdate([1.0, 2.0, math.nan]))
    assert quality.loss_finite is False


def test_a_short_training_reports_no_first_and_last_loss():
    _, quality = run(training([1] * 4), 4, ScriptedUpdate([4.0, 3.0, 2.0, 1.0]))
    assert (quality.first_loss, quality.last_loss, quality.loss_finite) == (None, None, True)


def test_a_training_without_steps_has_no_loss():
    _, quality = run(training([]), 0, ScriptedUpdate([]))
    assert (quality.first_loss, quality.last_loss, quality.loss_finite) == (None, None, None)


def test_single_refuses_several_processes():
    assert Single().refuses(None, None, RunSpec(workload="w")) is None
    words = "the arrangement 'single' is for one process, not 2"
    assert Single().refuses(None, None, RunSpec(workload="w", world_size=2)) == words


def test_another_update_than_plain_needs_a_training():
    with pytest.raises(CannotRun, match="this workload doesn't train"):
        run(Steps(kinds={"step": lambda: None}), 1, ScriptedUpdate([]))
