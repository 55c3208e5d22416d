"""Tests of training to an accuracy: validation images decide, and test images are used once."""

from types import SimpleNamespace

import pytest

from rigdyno.arrangements.common import loops
from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, Training, Validation, WorkerPlace
from rigdyno.workloads.mnist_cnn_until import MnistCnnUntil


class Loss(float):
    def backward(self):
        pass


def training(seen, wanted=0.8, every=5):
    """Return a training whose validations give the accuracies `seen`, and a list of its tests."""
    looks, tests = iter(seen), []

    def tested():
        tests.append(1)
        return 0.79

    made = Training(
        model=None,
        loss=lambda outputs, targets: 1.0,
        optimizer=list,
        batches=iter([("inputs", [1, 2])] * 1000),
        accuracy=tested,
        validation=Validation(lambda: next(looks), wanted, every),
    )
    return made, tests


def meter(steps):
    return SimpleNamespace(more=iter([True] * steps + [False]).__next__, step=lambda items: None)


def test_training_ends_at_the_validation_that_reaches_the_target():
    made, tests = training([0.5, 0.7, 0.81])
    quality = loops.train(made, lambda inputs, targets: Loss(1.0), meter(100))
    assert (quality.reached, quality.trained_steps, quality.accuracy) == (True, 15, 0.79)
    assert len(tests) == 1
    assert quality.trained_seconds >= 0


def test_training_that_misses_the_target_ends_with_its_budget():
    made, tests = training([0.5] * 9)
    quality = loops.train(made, lambda inputs, targets: Loss(1.0), meter(12))
    assert (quality.reached, quality.trained_steps) == (False, 12)
    assert len(tests) == 1


def test_training_without_validation_reports_no_target():
    made, _ = training([])
    made.validation = None
    quality = loops.train(made, lambda inputs, targets: Loss(1.0), meter(12))
    assert (quality.reached, quality.trained_steps, quality.trained_seconds) == (None, None, None)


def test_validation_images_are_not_trained_on():
    whole = MnistCnnUntil(batch_size=8).build(WorkerPlace(device="cpu"))
    apart = MnistCnnUntil(batch_size=8, target_accuracy=0.9, validation=100).build(WorkerPlace(device="cpu"))
    assert apart.samples.count == whole.samples.count - 100
    assert (apart.samples.pick([0])[0] == whole.samples.pick([100])[0]).all()
    assert apart.validation.wanted == 0.9
    assert whole.validation is None


def test_a_target_accuracy_needs_validation_images_and_one_process():
    with pytest.raises(BadValue, match="target_accuracy needs validation images"):
        MnistCnnUntil(target_accuracy=0.8)
    with pytest.raises(CannotRun, match="target_accuracy works in a single process only"):
        MnistCnnUntil(batch_size=8, target_accuracy=0.8, validation=100).build(WorkerPlace(device="cpu", world_size=2))
