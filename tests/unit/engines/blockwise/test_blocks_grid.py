"""The grid covers every voxel once, in C order, for any shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigdyno.engines.blockwise.boxes import Box, Grid
from rigdyno.engines.blockwise.errors import BadSetting

shapes = st.tuples(*[st.integers(1, 14)] * 3)
blocks = st.tuples(*[st.integers(1, 20)] * 3)


@given(shapes, blocks)
def test_every_voxel_is_in_one_block(shape, block):
    seen = np.zeros(shape, int)
    for box in Grid(shape, block):
        assert all(0 < length <= most for length, most in zip(box.shape, block, strict=True))
        seen[box.slices()] += 1
    assert (seen == 1).all()


@given(shapes, blocks)
def test_blocks_are_in_c_order_and_know_their_index(shape, block):
    grid = Grid(shape, block)
    boxes = list(grid)
    assert len(boxes) == len(grid)
    assert [box.start for box in boxes] == sorted(box.start for box in boxes)
    assert [grid.index_of(box) for box in boxes] == list(range(len(grid)))


def test_boxes_are_formatted_as_slices():
    grid = Grid((5, 4, 7), (4, 4, 4))
    assert list(map(str, grid)) == [
        "[0:4, 0:4, 0:4]", "[0:4, 0:4, 4:7]", "[4:5, 0:4, 0:4]", "[4:5, 0:4, 4:7]",
    ]  # fmt: skip


def test_hundreds_of_millions_of_blocks_take_no_memory():
    grid = Grid((100_000, 30_000, 30_000), (64, 64, 64))
    assert len(grid) == 1563 * 469 * 469
    assert grid[len(grid) - 1] == Box((99_968, 29_952, 29_952), (100_000, 30_000, 30_000))
    assert grid.index_of(grid[123_456_789]) == 123_456_789


@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_out_of_range_is_refused(index):
    with pytest.raises(IndexError, match="no block"):
        Grid((5, 4, 7), (4, 4, 4))[index]


@pytest.mark.parametrize(
    "box",
    [
        Box((0, 0, 0), (4, 4, 5)),
        Box((0, 0, 1), (4, 4, 5)),
        Box((0, 4, 0), (4, 8, 4)),
        Box((-4, 0, 0), (0, 4, 4)),
        Box((8, 0, 0), (12, 4, 4)),
    ],
)
def test_a_box_off_the_grid_has_no_index(box):
    with pytest.raises(BadSetting, match="isn't a block of this grid"):
        Grid((5, 4, 7), (4, 4, 4)).index_of(box)


@pytest.mark.parametrize(("shape", "block"), [((0, 4, 4), (4, 4, 4)), ((4, 4, 4), (4, -1, 4)), ((4, 4), (4, 4))])
def test_shapes_without_voxels_are_refused(shape, block):
    with pytest.raises(BadSetting, match="has no voxels"):
        Grid(shape, block)
