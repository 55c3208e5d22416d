"""Boxes outside the volume are mirrored, compared with NumPy's padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from volumes_on_disk import numbers, zarr2

from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.interfaces import Reading
from rigdyno.engines.blockwise.volumes import open_volume, read_reflected


class InMemory:
    """A volume that records which boxes were read."""

    def __init__(self, values, missing=False):
        self.values, self.missing, self.asked = values, missing, []
        self.shape = values.shape[1:]

    def read(self, box):
        assert box.within(whole_box(self.shape)) == box
        self.asked.append(box)
        return Reading(self.values[(slice(None), *box.slices())], self.missing)


def padded(values, reach):
    """Pad like NumPy's `reflect`; an axis with one voxel repeats it."""
    return np.pad(values, [(0, 0), *((reach, reach) for _ in range(3))], mode="reflect")


lengths = st.integers(1, 6)


@settings(max_examples=150, deadline=None)
@given(shape=st.tuples(lengths, lengths, lengths), channels=st.integers(1, 2), data=st.data())
def test_any_box_is_a_part_of_the_padded_volume(shape, channels, data):
    reach = 14
    volume = InMemory(numbers(channels, *shape))
    start = tuple(data.draw(st.integers(-reach, length + reach - 1)) for length in shape)
    stop = tuple(data.draw(st.integers(first + 1, length + reach)) for first, length in zip(start, shape, strict=True))
    box = Box(start, stop)
    reading = read_reflected(volume, box)
    expected = padded(volume.values, reach)[(slice(None), *box.moved((reach,) * 3).slices())]
    assert np.array_equal(reading.values, expected)
    assert len(volume.asked) == 1


def test_a_row_is_mirrored_as_by_hand():
    volume = InMemory(np.array([[[[1, 2, 3, 4]]]]))
    assert read_reflected(volume, Box((0, 0, -3), (1, 1, 7))).values.ravel().tolist() == [4, 3, 2, 1, 2, 3, 4, 3, 2, 1]
    assert volume.asked == [Box((0, 0, 0), (1, 1, 4))]


def test_one_voxel_is_repeated():
    volume = InMemory(np.array([[[[5]]]]))
    assert read_reflected(volume, Box((-9, 0, -2), (9, 1, 3))).values.tolist() == np.full((1, 18, 1, 5), 5).tolist()


def test_only_needed_voxels_are_read():
    volume = InMemory(numbers(1, 50, 50, 50))
    read_reflected(volume, Box((-5, 10, 45), (5, 20, 55)))
    assert volume.asked == [Box((0, 10, 44), (6, 20, 50))]


def test_a_box_inside_is_not_copied():
    volume = InMemory(numbers(1, 8, 8, 8))
    reading = read_reflected(volume, Box((1, 0, 2), (8, 8, 5)))
    assert np.shares_memory(reading.values, volume.values)


def test_a_box_outside_is_contiguous():
    assert read_reflected(InMemory(numbers(2, 8, 8, 8)), Box((-1, 0, 0), (8, 8, 9))).values.flags.c_contiguous


@pytest.mark.parametrize("missing", [False, True])
def test_missing_chunks_are_reported(missing):
    assert read_reflected(InMemory(numbers(1, 8, 8, 8), missing), Box((-1, 0, 0), (8, 8, 8))).missing is missing


def test_a_stored_volume_is_mirrored(tmp_path):
    values = numbers(10, 9, 8)
    volume = open_volume(str(zarr2(tmp_path / "in.zarr", values, (4, 4, 4))))
    box = whole_box((10, 9, 8)).grown((3, 12, 20))
    expected = np.pad(values, [(3, 3), (12, 12), (20, 20)], mode="reflect")
    assert np.array_equal(read_reflected(volume, box).values[0], expected)
