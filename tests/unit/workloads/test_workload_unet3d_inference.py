"""Tests of unet3d_inference: any number of ranks covers every voxel once, and both schemes predict the same."""

import numpy as np
import pytest

from rigdyno.base.errors import BadValue
from rigdyno.contracts import WorkerPlace
from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.workloads.common.blocks import BlockOrder, count_covered, make_engine_blocks, make_published_blocks
from rigdyno.workloads.unet3d_inference import Unet3dInference

SMALL = {"features": "4,8", "volume": "13x40x44", "block": "6x12x12", "halo": "12x18x18"}


def all_of(order):
    return [box for _ in range(order.steps) if (box := order.next()) is not None]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("volume", "block"), [((13, 40, 44), (6, 12, 12)), ((5, 5, 5), (5, 5, 5)), ((9, 7, 8), (2, 3, 10))]
)
def test_all_ranks_together_cover_each_voxel_once(volume, block, ranks):
    orders = [
        BlockOrder(volume, block, WorkerPlace(device="cpu", rank=rank, world_size=ranks)) for rank in range(ranks)
    ]
    boxes = [box for order in orders for box in all_of(order)]
    seen = np.zeros(volume, int)
    for box in boxes:
        seen[box.slices()] += 1
    assert (seen == 1).all()
    assert count_covered(boxes, volume) == (np.prod(volume), 0)


def test_count_covered_matches_brute_force():
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
        outside = sum(box.voxels - box.within(whole_box((10, 11, 12))).voxels for box in boxes)
        assert count_covered(boxes, (10, 11, 12)) == ((inner > 0).sum(), (inner > 1).sum() + outside)


def test_the_published_layout_leaves_out_a_third():
    starts = [range(0, length, step) for length, step in zip((200, 3072, 3072), (65, 675, 675), strict=True)]
    boxes = [
        Box((z, y, x), (z + 55, y + 575, x + 575)).within(whole_box((200, 3072, 3072)))
        for z in starts[0]
        for y in starts[1]
        for x in starts[2]
    ]
    written, twice = count_covered(boxes, (200, 3072, 3072))
    assert twice == 0
    assert written / (200 * 3072 * 3072) == pytest.approx(0.643, abs=0.001)


def test_the_order_is_a_random_sample_and_the_same_for_the_same_seed():
    first, again, other = (
        BlockOrder((40, 40, 40), (4, 4, 4), WorkerPlace(device="cpu", seed=seed)) for seed in (1, 1, 2)
    )
    boxes = all_of(first)
    assert boxes == all_of(again) != all_of(other)
    begun = np.array([box.start for box in boxes[:200]])
    assert np.abs(begun.mean(0) - 18).max() < 3  # not the first slices alone


def test_a_block_written_twice_or_of_wrong_shape_is_detected():
    order = BlockOrder((6, 6, 6), (3, 3, 3), WorkerPlace(device="cpu"))
    box = order.next()
    order.record_written(box, True)
    assert order.is_correct()
    order.record_written(box, True)
    assert not order.is_correct()
    other = BlockOrder((6, 6, 6), (3, 3, 3), WorkerPlace(device="cpu"))
    other.record_written(other.next(), False)
    assert not other.is_correct()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("left_out", [None, 1])
def test_a_missing_block_is_detected_after_a_complete_pass(ranks, left_out):
    for rank in range(ranks):
        order = BlockOrder((6, 6, 7), (3, 3, 3), WorkerPlace(device="cpu", rank=rank, world_size=ranks))
        for number, box in enumerate(all_of(order)):
            if number != left_out:
                order.record_written(box, True)
        assert order.is_correct() == (left_out is None)


@pytest.mark.parametrize("scheme", ["published", "own"])
def test_all_steps_together_cover_the_volume(scheme):
    workload = Unet3dInference(**{**SMALL, "scheme": scheme, "halo": "0x0x0"})
    steps = workload.build(WorkerPlace(device="cpu"))
    done = [steps.kinds["step"]() for _ in range(steps.settled["blocks"])]
    assert sum(done) == 13 * 40 * 44
    assert steps.check() is True


def test_both_schemes_predict_the_same_with_an_exact_halo():
    """Away from the volume's faces only the network matters, and both schemes have the same weights."""
    here, box = WorkerPlace(device="cpu"), Box((6, 12, 12), (12, 24, 24))
    published = make_published_blocks(Unet3dInference(**SMALL), here).predict(box)
    own = make_engine_blocks(Unet3dInference(**{**SMALL, "scheme": "own"}), here).predict(box)
    assert published.shape == own.shape == (3, 6, 12, 12)
    assert np.abs(published.astype(int) - own).max() <= 1
    assert published.std() > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block": "5x60x60"}, "block plus halo must be a multiple of 1x27x27, not 15x160x160"),
        ({"block": ""}, "the published scheme needs a block size"),
        ({"volume": "3x3"}, "volume takes 3 whole numbers"),
        ({"scheme": "best"}, "scheme must be one of "),
        ({"halo": "a"}, "halo takes 3 whole numbers"),
        ({"halo": "-1x0x0"}, "halo can't be negative"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(BadValue, match=words):
        Unet3dInference(**options)


def test_the_published_sizes_are_the_default():
    workload = Unet3dInference()
    assert workload._read_shape() == (65, 675, 675)
    assert workload.volume_zyx == (200, 3072, 3072)
    assert workload.refuses(None, "cpu") is None
