"""Whole epochs: a job of a number of items ends with whole batches, for any batch size."""

import pytest

from rigdyno.contracts import Samples, Steps, Training
from rigdyno.runner.worker import in_steps
from rigdyno.schema.spec import Budget, RunSpec


def training(batch):
    samples = Samples(50_000, batch, lambda chosen: (chosen, chosen)) if batch else None
    return Training(model=None, loss=min, optimizer=list, batches=iter(()), samples=samples)


@pytest.mark.parametrize(("batch", "steps"), [(512, 98), (1, 50_000), (50_000, 1), (16, 3125), (None, 50_000)])
def test_an_epoch_is_converted_to_steps(batch, steps):
    assert in_steps(Budget(job_items=50_000), training(batch)).job_steps == steps


def test_steps_of_several_items_are_rounded_up():
    assert in_steps(Budget(job_items=10), Steps(kinds={"step": lambda: None}, items_per_step=4.0)).job_steps == 3


def test_other_budgets_are_unchanged():
    for budget in (Budget(), Budget(job_steps=7), Budget(max_steps=3)):
        assert in_steps(budget, training(10)) == budget
    assert Budget(job_items=5).is_job
    assert not Budget().is_job


def test_a_job_of_items_is_another_configuration():
    specs = [RunSpec(workload="x", budget=budget) for budget in (Budget(), Budget(job_items=5), Budget(job_items=6))]
    assert len({spec.key() for spec in specs}) == 3
