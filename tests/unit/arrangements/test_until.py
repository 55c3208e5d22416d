"""Training to an accuracy: validation images decide, the test images are looked at once."""

from types import SimpleNamespace

import pytest

from rigdyno.arrangements import _loops
from rigdyno.contracts import CannotRun, Place, Training, Validation
from rigdyno.errors import BadValue
from rigdyno.workloads.mnist_cnn_until import MnistCnnUntil


class Loss(float):
    def backward(self):
        pass


def training(seen, wanted=0.8, every=5):
    """`seen`: the accuracies of one look after the other."""
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


def test_it_ends_with_the_look_that_finds_enough():
    made, tests = training([0.5, 0.7, 0.81])
    quality = _loops.train(made, lambda inputs, targets: Loss(1.0), meter(100))
    assert (quality.reached, quality.trained_steps, quality.accuracy) == (True, 15, 0.79)
    assert len(tests) == 1
    assert quality.trained_seconds >= 0


def test_it_ends_with_its_steps_where_it_is_never_enough_and_says_so():
    made, tests = training([0.5] * 9)
    quality = _loops.train(made, lambda inputs, targets: Loss(1.0), meter(12))
    assert (quality.reached, quality.trained_steps) == (False, 12)
    assert len(tests) == 1


def test_without_validation_nothing_is_said_of_it():
    made, _ = training([])
    made.validation = None
    quality = _loops.train(made, lambda inputs, targets: Loss(1.0), meter(12))
    assert (quality.reached, quality.trained_steps, quality.trained_seconds) == (None, None, None)


def test_validation_images_are_not_trained_on():
    whole = MnistCnnUntil(batch_size=8).build(Place(device="cpu"))
    apart = MnistCnnUntil(batch_size=8, until=0.9, validation=100).build(Place(device="cpu"))
    assert apart.samples.count == whole.samples.count - 100
    assert (apart.samples.pick([0])[0] == whole.samples.pick([100])[0]).all()
    assert apart.validation.wanted == 0.9
    assert whole.validation is None


def test_until_needs_validation_images_and_one_process():
    with pytest.raises(BadValue, match="until needs images that decide"):
        MnistCnnUntil(until=0.8)
    with pytest.raises(CannotRun, match="until is for one process"):
        MnistCnnUntil(batch_size=8, until=0.8, validation=100).build(Place(device="cpu", world_size=2))
