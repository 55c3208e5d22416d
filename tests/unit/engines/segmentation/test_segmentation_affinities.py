"""Affinities and the Dice loss against hand computation and a loop over voxels."""

import numpy as np
import pytest
import torch

from rigdyno.engines.segmentation.affinities import CUT, IGNORED, SAME, Tally, affinities, dice_loss

INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


def by_loops(labels, background):
    """The definition, voxel by voxel."""
    found = np.full((3, *labels.shape), IGNORED)
    for place in np.ndindex(labels.shape):
        for axis in range(3):
            before = tuple(at - (number == axis) for number, at in enumerate(place))
            if before[axis] < 0:
                continue
            one, other = labels[before], labels[place]
            if one == 0 or other == 0:
                found[(axis, *place)] = IGNORED if background == "ignored" else CUT
            else:
                found[(axis, *place)] = SAME if one == other else CUT
    return found


def test_a_row_of_voxels_by_hand():
    labels = np.array([[[1, 1, 2, 0, 2]]])
    z, y, x = affinities(labels)
    assert x.tolist() == [[[IGNORED, SAME, CUT, IGNORED, IGNORED]]]
    assert set(z.flat) == set(y.flat) == {IGNORED}
    assert affinities(labels, "cut")[2].tolist() == [[[IGNORED, SAME, CUT, CUT, CUT]]]


@pytest.mark.parametrize("background", ["ignored", "cut"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_type_is_as_the_loop_says(dtype, background):
    labels = np.random.default_rng(1).integers(0, 4, (3, 4, 5)).astype(dtype)
    assert (affinities(labels, background) == by_loops(labels, background)).all()


def test_large_labels_that_are_equal_as_floats_are_told_apart():
    labels = np.array([[[2**64 - 1, 2**64 - 2]]], np.uint64)
    assert affinities(labels)[2].tolist() == [[[IGNORED, CUT]]]
    assert affinities(np.array([[[-1, -1]]], np.int64))[2].tolist() == [[[IGNORED, SAME]]]


@pytest.mark.parametrize("labels", [np.ones((2, 2)), np.ones((2, 2, 2)), np.ones((1, 2, 2, 2), int)])
def test_what_is_no_label_volume_is_refused(labels):
    with pytest.raises(ValueError, match="whole numbers in three dimensions"):
        affinities(labels)


class TestDice:
    def test_by_hand(self):
        """Cuts: said 0.8 and 0.4, true are the first and the third: 2 (0.8 + 0) + 1 over 0.64 + 0.16 + 2 + 1."""
        targets = torch.tensor([CUT, SAME, CUT, IGNORED], dtype=torch.int8).view(1, 1, 1, 1, 4)
        outputs = torch.tensor([0.2, 0.6, 1.0, 0.0]).view(1, 1, 1, 1, 4)
        assert float(dice_loss(outputs, targets)) == pytest.approx(1 - 2.6 / 3.8)

    def test_the_mean_is_over_channels_not_over_voxels(self):
        targets = torch.full((2, 3, 2, 2, 2), SAME, dtype=torch.int8)
        targets[:, 1] = CUT
        right = (targets == SAME).float()
        assert float(dice_loss(right, targets)) == pytest.approx(0.0)
        wrong = right.clone()
        wrong[:, 1] = 1.0
        assert float(dice_loss(wrong, targets)) == pytest.approx((1 - 1 / 17) / 3)

    def test_ignored_pairs_change_nothing(self):
        chance = torch.Generator().manual_seed(0)
        outputs = torch.rand((1, 3, 3, 4, 4), generator=chance)
        targets = torch.randint(-1, 2, (1, 3, 3, 4, 4), generator=chance, dtype=torch.int8)
        other = torch.where(targets == IGNORED, 1 - outputs, outputs)
        assert float(dice_loss(outputs, targets)) == pytest.approx(float(dice_loss(other, targets)))

    @pytest.mark.parametrize("kind", [SAME, CUT, IGNORED])
    def test_one_kind_alone_has_a_finite_loss_and_gradient(self, kind):
        outputs = torch.full((1, 3, 2, 2, 2), 0.3, requires_grad=True)
        loss = dice_loss(outputs, torch.full((1, 3, 2, 2, 2), kind, dtype=torch.int8))
        loss.backward()
        assert 0 <= float(loss.detach()) <= 1
        assert torch.isfinite(outputs.grad).all()

    def test_better_answers_have_a_smaller_loss(self):
        targets = torch.tensor([CUT, SAME, SAME, SAME], dtype=torch.int8).view(1, 1, 1, 1, 4)
        losses = [dice_loss(torch.tensor([1 - p, p, p, p]).view(1, 1, 1, 1, 4), targets) for p in (0.2, 0.5, 0.8, 1.0)]
        assert losses == sorted(losses, reverse=True)


class TestBalancedAccuracy:
    def test_always_the_same_answer_is_chance(self):
        tally = Tally()
        targets = torch.tensor([SAME] * 9 + [CUT], dtype=torch.int8)
        tally.add(torch.ones(10), targets)
        assert tally.balanced == 0.5

    def test_by_hand(self):
        """Two of three 'same' are right, one of one 'cut'."""
        tally = Tally()
        tally.add(torch.tensor([0.9, 0.1, 0.9]), torch.tensor([SAME, SAME, SAME], dtype=torch.int8))
        tally.add(torch.tensor([0.1, 0.9]), torch.tensor([CUT, IGNORED], dtype=torch.int8))
        assert tally.balanced == pytest.approx((2 / 3 + 1) / 2)
        assert tally.pairs == 4

    def test_of_one_kind_alone_there_is_none(self):
        tally = Tally()
        tally.add(torch.ones(3), torch.full((3,), SAME, dtype=torch.int8))
        assert tally.balanced is None
