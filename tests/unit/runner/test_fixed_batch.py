"""A workload as a search tries it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from rigdyno.contracts import Samples, Steps, Training, WorkerPlace
from rigdyno.runner.fixed_batch import RARE, FixedBatchWorkload, rarely_exceeded


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 10**6), st.floats(1e-6, 1))
def test_poisson_sampling_rarely_exceeds_the_size(count, rate):
    """Against scipy's quantile of the binomial distribution."""
    batch = max(1, round(rate * count))
    exact = binom.ppf(1 - RARE, count, min(1.0, batch / count))
    assert abs(rarely_exceeded(count, batch) - exact) <= max(2, 0.002 * exact)


def test_a_batch_of_all_samples_has_all_samples():
    assert rarely_exceeded(100, 100) == 100
    assert rarely_exceeded(100, 99) == 100
    assert rarely_exceeded(100, 500) == 100


class Workload:
    unit, framework = "image", "torch"

    def __init__(self, samples):
        self.samples = samples

    def build(self, place):
        return Training(
            model=None,
            loss=lambda outputs, targets: None,
            optimizer=lambda parameters: None,
            batches=iter(()),
            samples=self.samples,
            accuracy=lambda: 0.5,
        )


def test_an_update_that_draws_batches_gets_only_that_size():
    picked = []
    samples = Samples(50_000, 400, lambda chosen: picked.append(list(chosen)))
    crowded = FixedBatchWorkload(Workload(samples))
    training = crowded.build(WorkerPlace("cpu", world_size=2))
    assert training.samples.count == training.samples.batch_size == rarely_exceeded(50_000, 400) > 460
    assert crowded.drawn is None  # until the first draw
    training.samples.pick(range(training.samples.count))
    assert picked == [list(range(training.samples.count))]
    assert crowded.drawn == training.samples.count
    assert crowded.epoch_items == 100_000
    assert training.accuracy is None


def test_other_attributes_are_those_of_the_workload():
    crowded = FixedBatchWorkload(Workload(None))
    assert (crowded.unit, crowded.framework) == ("image", "torch")
    assert crowded.build(WorkerPlace("cpu")).samples is None
    assert crowded.epoch_items is None
    with pytest.raises(AttributeError):
        crowded.nothing  # noqa: B018


def test_a_workload_that_trains_nothing_is_unchanged():
    steps = Steps(kinds={})

    class OfSteps:
        def build(self, place):
            return steps

    assert FixedBatchWorkload(OfSteps()).build(WorkerPlace("cpu")) is steps
