"""Voxel sizes with units of many names."""

import pytest

from rigdyno.engines.blockwise.interfaces import VoxelSize
from rigdyno.engines.blockwise.volumes.metadata import make_voxel_size


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
def test_names_of_units_are_normalised(written, unit):
    assert make_voxel_size([1, 2, 3], [written] * 3) == VoxelSize((1.0, 2.0, 3.0), unit)


def test_different_units_are_converted_to_that_of_x():
    assert make_voxel_size([0.04, 4, 4], ["um", "nm", "nm"]) == VoxelSize((40.0, 4.0, 4.0), "nanometer")


@pytest.mark.parametrize("units", [["um", None, "nm"], ["parsec", "nm", "nm"]])
def test_incompatible_units_are_ignored(units):
    assert make_voxel_size([1, 1, 1], units) == VoxelSize()


@pytest.mark.parametrize("sizes", [[1, 1], [1, 1, 0], [1, 1, -1], [1, 1, float("inf")], [1, 1, None], ["a", 1, 1], []])
def test_invalid_sizes_are_ignored(sizes):
    assert make_voxel_size(sizes, ["nm"] * 3) == VoxelSize()
