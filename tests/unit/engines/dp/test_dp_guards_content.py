"""Inputs that are copies of the drawn tensors: the content of their rows identifies the samples."""

from __future__ import annotations

import pytest
import torch
from dp_guarded import BOUND, CLASSES, FEATURES, Guarded, batch, same
from torch import nn
from torch.nn import functional

from rigdyno.engines.dp import Unprotected, micro_batches
from rigdyno.engines.dp.batches.marks import mark_rows


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(FEATURES, 8), nn.Linear(16, CLASSES)

    def forward(self, one, other):
        return self.outside(torch.cat([self.inside(one), self.inside(other)], dim=1).relu())


def train_pairs(guarded: Guarded, one, other, answers) -> None:
    functional.cross_entropy(guarded.net(one, other), answers).backward()
    guarded.optimizer.step()


def test_a_doubled_batch_is_not_taken_for_a_larger_pending_one():
    guarded = Guarded([batch(4, seed=0), batch(8, seed=1)])
    inputs, answers = guarded.draw()
    guarded.draw()
    with pytest.raises(Unprotected, match="no drawn batch is waiting"):
        guarded.step((torch.cat([inputs, inputs * 1.5]), torch.cat([answers, answers])))


@pytest.mark.parametrize("change", [torch.clone, lambda inputs: (inputs - 0.5) / 2], ids=["copied", "normalised"])
def test_a_used_batch_is_not_taken_for_a_pending_one(change):
    guarded = Guarded([batch(8, seed=0), batch(8, seed=1)])
    inputs, answers = guarded.draw()
    guarded.draw()
    inputs = change(inputs)
    guarded.step((inputs, answers))
    with pytest.raises(Unprotected, match="this batch is over"):
        guarded.step((inputs, answers))


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_sample_in_several_rows_is_refused(scale):
    guarded = Guarded([batch(8)])
    inputs, answers = guarded.draw()
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 6, 6])
    with pytest.raises(Unprotected, match="several rows"):
        guarded.step((inputs[rows] * scale, answers[rows]))


def test_a_piece_that_is_copied_and_used_twice_is_refused():
    guarded = Guarded([batch(8)])
    first, _ = micro_batches(guarded.draw(), 4)
    guarded.loss((first[0].clone(), first[1])).backward()
    with pytest.raises(Unprotected, match="twice"):
        guarded.loss((first[0].clone(), first[1])).backward()


def test_copied_pieces_are_identified_by_their_rows():
    guarded = Guarded([batch(8)])
    inputs, answers = drawn = guarded.draw()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    for rows in order.split(3):
        guarded.loss((inputs[rows], answers[rows])).backward()
    guarded.optimizer.step()
    assert same(guarded.released(), guarded.expected(drawn))


def test_a_row_of_two_samples_is_refused():
    guarded = Guarded([batch(8)], net=Pairs())
    inputs, answers = guarded.draw()
    with pytest.raises(Unprotected, match="two samples"):
        train_pairs(guarded, inputs, inputs.roll(1, dims=0), answers)
    guarded.optimizer.zero_grad()
    with pytest.raises(Unprotected, match="two samples"):
        train_pairs(guarded, inputs[::2], inputs[1::2], answers[::2])


def test_a_row_of_two_batches_is_refused():
    guarded = Guarded([batch(8, seed=0), batch(8, seed=1)], net=Pairs())
    (inputs, answers), (others, _) = guarded.draw(), guarded.draw()
    with pytest.raises(Unprotected, match="two drawn batches"):
        train_pairs(guarded, inputs, others, answers)


def test_two_views_of_each_sample_are_accepted():
    guarded = Guarded([batch(8)], net=Pairs())
    inputs, answers = guarded.draw()
    train_pairs(guarded, inputs, inputs.flip(1), answers)
    assert float(guarded.released().norm()) <= 8 * BOUND
    assert guarded.steps() == 1


def test_the_same_samples_may_be_drawn_and_changed_again():
    """This happens in full-batch training."""
    drawn = batch(8)
    guarded = Guarded([tuple(part.clone() for part in drawn) for _ in range(4)])
    ahead = guarded.draw()
    for _ in range(3):
        (inputs, answers), ahead = ahead, guarded.draw()
        guarded.step((inputs / 2, answers))
    assert guarded.steps() == 3


def test_a_sample_may_be_in_two_batches_with_some_rows_changed():
    first = batch(8, seed=0)
    second = tuple(torch.cat([old[:4], new[:4]]) for old, new in zip(first, batch(8, seed=1), strict=True))
    guarded = Guarded([first, second])
    for drawn in (guarded.draw(), guarded.draw()):
        changed = drawn[0].clone()
        changed[6:] *= -1
        guarded.step((changed, drawn[1]))
    assert guarded.steps() == 2


def test_equal_samples_of_a_dataset_are_not_taken_for_copies():
    inputs, answers = batch(8)
    inputs[3] = inputs[5]
    guarded = Guarded([(inputs, answers)])
    inputs, answers = drawn = guarded.draw()
    guarded.step((inputs.clone(), answers))
    assert same(guarded.released(), guarded.expected(drawn))


def test_a_forward_without_backward_may_contain_copies():
    guarded = Guarded([batch(8)])
    drawn = guarded.draw()
    guarded.net(torch.cat([drawn[0], drawn[0]]))
    guarded.step(drawn)
    assert same(guarded.released(), guarded.expected(drawn))


@pytest.mark.parametrize(
    "rows", [torch.ones(4, 10), torch.eye(4, 10), torch.rand(4, 2), torch.rand(4), torch.rand(0, 9)]
)
def test_rows_that_may_be_equal_by_chance_have_no_mark(rows):
    marks = mark_rows(rows)
    assert marks is None or not marks.are_distinctive


def test_a_mark_depends_only_on_values():
    images = torch.randn(8, 3, 16, 16)
    whole = mark_rows(images)
    assert whole == mark_rows(images.contiguous(memory_format=torch.channels_last).double())
    assert whole.by_row[5] == mark_rows(images[5:6]).by_row[0]
    assert len(whole.distinct) == 8
