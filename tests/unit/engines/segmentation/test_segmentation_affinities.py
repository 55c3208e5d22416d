"""Affinities and the Dice loss, compared with values computed by hand and with a loop over voxels."""

import numpy as np
import pytest
import torch

from rigdyno.engines.segmentation.affinities import CUT, IGNORED, SAME, AccuracyTally, compute_affinities, dice_loss

INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


def affinities_by_loop(labels, background):
    """Compute affinities by their definition, voxel by voxel."""
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


def test_a_row_of_voxels_has_the_affinities_computed_by_hand():
    labels = np.array([[[1, 1, 2, 0, 2]]])
    z, y, x = compute_affinities(labels)
    assert x.tolist() == [[[IGNORED, SAME, CUT, IGNORED, IGNORED]]]
    assert set(z.flat) == set(y.flat) == {IGNORED}
    assert compute_affinities(labels, "cut")[2].tolist() == [[[IGNORED, SAME, CUT, CUT, CUT]]]


@pytest.mark.parametrize("background", ["ignored", "cut"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_type_equals_the_loop(dtype, background):
    labels = np.random.default_rng(1).integers(0, 4, (3, 4, 5)).astype(dtype)
    assert (compute_affinities(labels, background) == affinities_by_loop(labels, background)).all()


def test_large_labels_that_are_equal_as_floats_are_distinguished():
    labels = np.array([[[2**64 - 1, 2**64 - 2]]], np.uint64)
    assert compute_affinities(labels)[2].tolist() == [[[IGNORED, CUT]]]
    assert compute_affinities(np.array([[[-1, -1]]], np.int64))[2].tolist() == [[[IGNORED, SAME]]]


@pytest.mark.parametrize("labels", [np.ones((2, 2)), np.ones((2, 2, 2)), np.ones((1, 2, 2, 2), int)])
def test_arrays_that_are_no_label_volumes_are_refused(labels):
    with pytest.raises(ValueError, match="whole numbers in three dimensions"):
        compute_affinities(labels)


class TestDice:
    def test_the_loss_equals_the_one_computed_by_hand(self):
        """Cuts are predicted with 0.8, 0.4 and 0; the first and the third are true.

        The coefficient is (2 x 0.8 + 1) / (0.64 + 0.16 + 2 + 1).
        """
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

    def test_ignored_pairs_do_not_change_the_loss(self):
        generator = torch.Generator().manual_seed(0)
        outputs = torch.rand((1, 3, 3, 4, 4), generator=generator)
        targets = torch.randint(-1, 2, (1, 3, 3, 4, 4), generator=generator, dtype=torch.int8)
        other = torch.where(targets == IGNORED, 1 - outputs, outputs)
        assert float(dice_loss(outputs, targets)) == pytest.approx(float(dice_loss(other, targets)))

    @pytest.mark.parametrize("kind", [SAME, CUT, IGNORED])
    def test_one_kind_alone_has_a_finite_loss_and_gradient(self, kind):
        outputs = torch.full((1, 3, 2, 2, 2), 0.3, requires_grad=True)
        loss = dice_loss(outputs, torch.full((1, 3, 2, 2, 2), kind, dtype=torch.int8))
        loss.backward()
        assert 0 <= float(loss.detach()) <= 1
        assert torch.isfinite(outputs.grad).all()

    def test_better_outputs_have_a_smaller_loss(self):
        targets = torch.tensor([CUT, SAME, SAME, SAME], dtype=torch.int8).view(1, 1, 1, 1, 4)
        losses = [dice_loss(torch.tensor([1 - p, p, p, p]).view(1, 1, 1, 1, 4), targets) for p in (0.2, 0.5, 0.8, 1.0)]
        assert losses == sorted(losses, reverse=True)


class TestBalancedAccuracy:
    def test_a_constant_output_scores_one_half(self):
        tally = AccuracyTally()
        targets = torch.tensor([SAME] * 9 + [CUT], dtype=torch.int8)
        tally.add(torch.ones(10), targets)
        assert tally.balanced == 0.5

    def test_the_score_equals_the_one_computed_by_hand(self):
        """Two of three 'same' are correct, and one of one 'cut'."""
        tally = AccuracyTally()
        tally.add(torch.tensor([0.9, 0.1, 0.9]), torch.tensor([SAME, SAME, SAME], dtype=torch.int8))
        tally.add(torch.tensor([0.1, 0.9]), torch.tensor([CUT, IGNORED], dtype=torch.int8))
        assert tally.balanced == pytest.approx((2 / 3 + 1) / 2)
        assert tally.pairs == 4

    def test_one_kind_alone_has_no_score(self):
        tally = AccuracyTally()
        tally.add(torch.ones(3), torch.full((3,), SAME, dtype=torch.int8))
        assert tally.balanced is None
