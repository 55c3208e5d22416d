"""Units by many names."""

import pytest

from rigdyno.engines.blockwise.ports import VoxelSize
from rigdyno.engines.blockwise.volumes._voxel_size import voxel_size


@pytest.mark.parametrize(
    ("written", "unit"),
    [
        ("nm", "nanometer"),
        ("nanometers", "nanometer"),
        ("\N{MICRO SIGN}m", "micrometer"),
        ("\N{GREEK SMALL LETTER MU}m", "micrometer"),
        ("microns", "micrometer"),
        ("Micrometre", "micrometer"),
        ("parsec", "parsec"),
        ("pixel", None),
        ("", None),
        (None, None),
    ],
)
def test_names_of_units(written, unit):
    assert voxel_size([1, 2, 3], [written] * 3) == VoxelSize((1.0, 2.0, 3.0), unit)


def test_different_units_become_that_of_x():
    assert voxel_size([0.04, 4, 4], ["um", "nm", "nm"]) == VoxelSize((40.0, 4.0, 4.0), "nanometer")


@pytest.mark.parametrize("units", [["um", None, "nm"], ["parsec", "nm", "nm"]])
def test_units_that_do_not_fit_together(units):
    assert voxel_size([1, 1, 1], units) == VoxelSize()


@pytest.mark.parametrize("sizes", [[1, 1], [1, 1, 0], [1, 1, -1], [1, 1, float("inf")], [1, 1, None], ["a", 1, 1], []])
def test_sizes_that_make_no_sense(sizes):
    assert voxel_size(sizes, ["nm"] * 3) == VoxelSize()
