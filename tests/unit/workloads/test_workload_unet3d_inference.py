"""Blocks of a volume: every voxel once, over any number of ranks, and the same answer by both ways."""

import numpy as np
import pytest

from rigdyno.contracts import Place
from rigdyno.engines.blockwise.boxes import Box, whole
from rigdyno.errors import BadValue
from rigdyno.workloads._block_order import Order, covered
from rigdyno.workloads._block_steps import engine_blocks, whole_blocks
from rigdyno.workloads.unet3d_inference import Unet3dInference

SMALL = {"features": "4,8", "volume": "13x40x44", "block": "6x12x12", "halo": "12x18x18"}


def all_of(order):
    return [box for _ in range(order.steps) if (box := order.next()) is not None]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("volume", "block"), [((13, 40, 44), (6, 12, 12)), ((5, 5, 5), (5, 5, 5)), ((9, 7, 8), (2, 3, 10))]
)
def test_all_ranks_together_cover_each_voxel_once(volume, block, ranks):
    orders = [Order(volume, block, Place(device="cpu", rank=rank, world_size=ranks)) for rank in range(ranks)]
    boxes = [box for order in orders for box in all_of(order)]
    seen = np.zeros(volume, int)
    for box in boxes:
        seen[box.slices()] += 1
    assert (seen == 1).all()
    assert covered(boxes, volume) == (np.prod(volume), 0)


def test_what_is_missing_and_what_is_twice_is_counted_as_a_brute_force_does():
    chance = np.random.default_rng(0)
    for _ in range(50):
        starts = chance.integers(0, 9, (4, 3))
        boxes = [
            Box(
                tuple(map(int, start)),
                tuple(int(at) + int(by) for at, by in zip(start, chance.integers(1, 5, 3), strict=True)),
            )
            for start in starts
        ]
        seen = np.zeros((20, 20, 20), int)
        for box in boxes:
            seen[box.slices()] += 1
        inner = seen[:10, :11, :12]
        outside = sum(box.voxels - box.within(whole((10, 11, 12))).voxels for box in boxes)
        assert covered(boxes, (10, 11, 12)) == ((inner > 0).sum(), (inner > 1).sum() + outside)


def test_the_published_layout_leaves_a_third_out():
    starts = [range(0, length, step) for length, step in zip((200, 3072, 3072), (65, 675, 675), strict=True)]
    boxes = [
        Box((z, y, x), (z + 55, y + 575, x + 575)).within(whole((200, 3072, 3072)))
        for z in starts[0]
        for y in starts[1]
        for x in starts[2]
    ]
    written, twice = covered(boxes, (200, 3072, 3072))
    assert twice == 0
    assert written / (200 * 3072 * 3072) == pytest.approx(0.643, abs=0.001)


def test_the_order_is_a_random_sample_and_the_same_for_the_same_seed():
    first, again, other = (Order((40, 40, 40), (4, 4, 4), Place(device="cpu", seed=seed)) for seed in (1, 1, 2))
    boxes = all_of(first)
    assert boxes == all_of(again) != all_of(other)
    begun = np.array([box.start for box in boxes[:200]])
    assert np.abs(begun.mean(0) - 18).max() < 3  # not the first slices alone


def test_a_box_that_is_written_twice_or_does_not_fit_is_wrong():
    order = Order((6, 6, 6), (3, 3, 3), Place(device="cpu"))
    box = order.next()
    order.written(box, True)
    assert order.is_right()
    order.written(box, True)
    assert not order.is_right()
    other = Order((6, 6, 6), (3, 3, 3), Place(device="cpu"))
    other.written(other.next(), False)
    assert not other.is_right()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("left_out", [None, 1])
def test_a_block_that_was_left_out_is_wrong_once_all_are_done(ranks, left_out):
    for rank in range(ranks):
        order = Order((6, 6, 7), (3, 3, 3), Place(device="cpu", rank=rank, world_size=ranks))
        for number, box in enumerate(all_of(order)):
            if number != left_out:
                order.written(box, True)
        assert order.is_right() == (left_out is None)


@pytest.mark.parametrize("scheme", ["published", "own"])
def test_all_steps_are_the_whole_volume(scheme):
    workload = Unet3dInference(**{**SMALL, "scheme": scheme, "halo": "0x0x0"})
    steps = workload.build(Place(device="cpu"))
    done = [steps.kinds["step"]() for _ in range(steps.settled["blocks"])]
    assert sum(done) == 13 * 40 * 44
    assert steps.check() is True


def test_both_ways_give_the_same_answer_where_the_halo_is_exact():
    """Away from the volume's faces nothing but the network counts: both take the same weights."""
    here, box = Place(device="cpu"), Box((6, 12, 12), (12, 24, 24))
    published = whole_blocks(Unet3dInference(**SMALL), here).predict(box)
    own = engine_blocks(Unet3dInference(**{**SMALL, "scheme": "own"}), here).predict(box)
    assert published.shape == own.shape == (3, 6, 12, 12)
    assert np.abs(published.astype(int) - own).max() <= 1
    assert published.std() > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block": "5x60x60"}, "with its halo it must be multiples of 1x27x27, not 15x160x160"),
        ({"block": ""}, "the published scheme has given blocks"),
        ({"volume": "3x3"}, "volume takes 3 whole numbers"),
        ({"scheme": "best"}, "scheme can't be 'best'"),
        ({"halo": "a"}, "halo takes 3 whole numbers"),
        ({"halo": "-1x0x0"}, "halo can't be less than nothing"),
    ],
)
def test_what_makes_no_sense_is_refused(options, words):
    with pytest.raises(BadValue, match=words):
        Unet3dInference(**options)


def test_the_published_sizes_are_the_default():
    workload = Unet3dInference()
    assert workload._read_shape() == (65, 675, 675)
    assert workload.volume_zyx == (200, 3072, 3072)
    assert workload.refuses(None, "cpu") is None
