"""N5 is read in the right order of axes, compared with blocks written by hand from the specification."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from volumes_on_disk import czyx, edit, n5, numbers, put

from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.errors import BadRegion, BadVolume
from rigdyno.engines.blockwise.interfaces import VoxelSize
from rigdyno.engines.blockwise.volumes import open_volume

SHAPE = (20, 13, 17)


def by_hand(folder, lengths, block, blocks, data_type="uint16", compression="raw"):
    """Write an array. `blocks` maps a grid index to the shape and the values of a block, all with x first."""
    metadata = {"dimensions": lengths, "blockSize": block, "dataType": data_type}
    put(folder / "attributes.json", {**metadata, "compression": {"type": compression}})
    code = {"uint8": "B", "uint16": "H", "float32": "f"}[data_type]
    for place, (shape, values) in blocks.items():
        header = struct.pack(f">HH{len(shape)}I", 0, len(shape), *shape)  # mode 0, then sizes, all big endian
        body = struct.pack(f">{len(values)}{code}", *values)
        file = folder.joinpath(*map(str, place))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(header + (gzip.compress(body) if compression == "gzip" else body))
    return folder


def everything(folder, **options):
    volume = open_volume(str(folder), **options)
    return volume.read(whole_box(volume.shape)).values


@pytest.mark.parametrize("compression", ["raw", "gzip"])
@pytest.mark.parametrize("data_type", ["uint8", "uint16", "float32"])
def test_x_varies_fastest(tmp_path, compression, data_type):
    folder = by_hand(tmp_path, [4, 3, 2], [4, 3, 2], {(0, 0, 0): ((4, 3, 2), range(24))}, data_type, compression)
    volume = open_volume(str(folder))
    assert (volume.shape, volume.chunk, volume.dtype) == ((2, 3, 4), (2, 3, 4), data_type)
    assert everything(folder)[0].tolist() == np.arange(24).reshape(2, 3, 4).tolist()


def test_blocks_are_in_folders_by_x_y_z(tmp_path):
    """Three voxels along x and two along z, in blocks of 2: Java's N5 writes shorter blocks at the end."""
    blocks = {
        (0, 0, 0): ((2, 1, 2), [1, 2, 11, 12]),
        (1, 0, 0): ((1, 1, 2), [3, 13]),
        (0, 0, 1): ((2, 1, 1), [21, 22]),
        (1, 0, 1): ((1, 1, 1), [23]),
    }
    folder = by_hand(tmp_path, [3, 1, 3], [2, 1, 2], blocks)
    assert everything(folder)[0].tolist() == [[[1, 2, 3]], [[11, 12, 13]], [[21, 22, 23]]]


def test_a_fourth_axis_is_channels_and_a_fifth_time(tmp_path):
    folder = by_hand(tmp_path / "4", [2, 1, 1, 3], [2, 1, 1, 3], {(0, 0, 0, 0): ((2, 1, 1, 3), range(6))})
    assert everything(folder).tolist() == [[[[0, 1]]], [[[2, 3]]], [[[4, 5]]]]
    folder = by_hand(tmp_path / "5", [2, 1, 1, 1, 3], [2, 1, 1, 1, 3], {(0,) * 5: ((2, 1, 1, 1, 3), range(6))})
    assert everything(folder, at={"t": 2}).tolist() == [[[[4, 5]]]]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_any_box_equals_the_numpy_slice(tmp_path, data):
    values = numbers(*SHAPE)
    if not (tmp_path / "in.n5").exists():
        n5(tmp_path / "in.n5", values, (8, 6, 5))
    start = tuple(data.draw(st.integers(0, length - 1)) for length in SHAPE)
    stop = tuple(data.draw(st.integers(first + 1, length)) for first, length in zip(start, SHAPE, strict=True))
    box = Box(start, stop)
    reading = open_volume(str(tmp_path / "in.n5")).read(box)
    assert np.array_equal(reading.values, czyx(values[box.slices()]))
    assert reading.values.flags.c_contiguous
    assert not reading.missing


def test_axes_follow_their_names(tmp_path):
    values = numbers(5, 6, 7)
    folder = n5(tmp_path / "in.n5", values, (4, 4, 4), axes=["z", "y", "x"])
    assert np.array_equal(everything(folder)[0], values.T)


# Voxel sizes.


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ({"resolution": [4, 5, 40], "units": ["nm", "nm", "nm"]}, VoxelSize((40.0, 5.0, 4.0), "nanometer")),
        ({"resolution": [4, 5, 40]}, VoxelSize((40.0, 5.0, 4.0), None)),
        ({"pixelResolution": {"dimensions": [4, 4, 40], "unit": "nm"}}, VoxelSize((40.0, 4.0, 4.0), "nanometer")),
        ({"pixelResolution": [4, 4, 40]}, VoxelSize((40.0, 4.0, 4.0), None)),
        (
            {"pixelResolution": {"dimensions": [4, 4, 40], "unit": "um"}, "downsamplingFactors": [2, 4, 1]},
            VoxelSize((40.0, 16.0, 8.0), "micrometer"),
        ),
        (
            {"transform": {"axes": ["z", "y", "x"], "scale": [40, 5, 4], "units": ["nm"] * 3}},
            VoxelSize((40.0, 5.0, 4.0), "nanometer"),
        ),
        ({"transform": {"axes": ["z", "y"]}}, VoxelSize()),
        ({"pixelResolution": [1, 2]}, VoxelSize()),
        ({"pixelResolution": "fine"}, VoxelSize()),
        ({"pixelResolution": [1, "a", 2]}, VoxelSize()),
        ({}, VoxelSize()),
    ],
)
def test_voxel_sizes_are_read(tmp_path, attributes, size):
    assert open_volume(str(n5(tmp_path / "in.n5", numbers(5, 6, 7), (4, 4, 4), **attributes))).voxel_size == size


def test_voxel_sizes_of_a_pyramid_are_read_from_the_group(tmp_path):
    group = {"pixelResolution": {"dimensions": [4, 4, 40], "unit": "nm"}, "scales": [[1, 1, 1], [2, 2, 1]]}
    put(tmp_path / "attributes.json", group)
    n5(tmp_path / "s1", numbers(5, 6, 7), (4, 4, 4), downsamplingFactors=[2, 2, 1])
    assert open_volume(str(tmp_path / "s1")).voxel_size == VoxelSize((40.0, 8.0, 8.0), "nanometer")


# Blocks that are missing or damaged.


def test_a_missing_block_is_filled_and_reported(tmp_path):
    values = numbers(*SHAPE)
    folder = n5(tmp_path / "in.n5", values, (8, 8, 8))
    (folder / "2" / "0" / "1").unlink()  # x from 16, y from 0, z from 8
    volume = open_volume(str(folder))
    assert not volume.read(Box((0, 0, 0), (8, 13, 17))).missing
    reading = volume.read(whole_box(SHAPE))
    values[8:16, :8, 16:] = 0
    assert reading.missing
    assert np.array_equal(reading.values[0], values)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda block: b"", "Expected header of length 16, but chunk has size 0"),
        (lambda block: block[:40], "Not enough data"),
        (lambda block: b"\x00\x09" + block[2:], "Unexpected N5 chunk mode: 9"),
        (lambda block: block[:3] + b"\x04" + block[4:], "dimensions"),
        (lambda block: block[:16] + b"garbage", "Zlib|inflate|Not enough data"),
    ],
)
def test_a_damaged_block_affects_only_its_region(tmp_path, content, reason):
    values = numbers(*SHAPE)
    folder = n5(tmp_path / "in.n5", values, (8, 8, 8))
    block = folder / "0" / "1" / "0"
    block.write_bytes(content(block.read_bytes()))
    volume = open_volume(str(folder))
    with pytest.raises(BadRegion, match=rf"can't read \[0:8, 8:10, 0:8\] of .*in\.n5: .*\"0/1/0\".*({reason})"):
        volume.read(Box((0, 8, 0), (8, 10, 8)))
    assert np.array_equal(volume.read(Box((0, 0, 0), (20, 8, 17))).values[0], values[:, :8])


# Refusals.


def refusal(folder):
    with pytest.raises(BadVolume) as refused:
        open_volume(str(folder))
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(str(folder), "IN")


def test_a_group_names_its_arrays(tmp_path):
    put(tmp_path / "attributes.json", {"n5": "2.5.1"})
    assert refusal(tmp_path) == "IN is an N5 group: give the path of an array in it"
    n5(tmp_path / "volumes" / "raw" / "s0", numbers(5, 6, 7), (4, 4, 4))
    n5(tmp_path / "mask", numbers(5, 6, 7), (4, 4, 4))
    assert refusal(tmp_path) == "IN is an N5 group: name one array in it, mask, volumes/raw/s0"


def test_unsupported_arrays_are_refused(tmp_path):
    wrong = n5(tmp_path / "in.n5", numbers(5, 6, 7).astype(np.int32), (4, 4, 4))
    assert refusal(wrong) == "IN holds int32, and uint8, uint16, float32 are read: convert it to one of them first"
    fine = {"dataType": "uint16", "dimensions": [7, 6, 5], "compression": {"type": "raw"}}
    edit(wrong / "attributes.json", dataType="uint16", compression={"type": "zipper"})
    assert '"zipper" is not registered' in refusal(wrong)
    edit(wrong / "attributes.json", dimensions="5")
    assert refusal(wrong).startswith("attributes.json of IN has no usable dimensions: restore it")
    edit(wrong / "attributes.json", **fine, resolution=[1, 2])
    assert 'Error parsing object member "resolution": Array has length 2 but should have length 3' in refusal(wrong)
    (wrong / "attributes.json").write_text('{"dimensions": [5,')
    assert refusal(wrong).startswith("attributes.json of IN is damaged (")
    plane = n5(tmp_path / "plane.n5", numbers(6, 7), (4, 4))
    assert refusal(plane).startswith("IN has 2 dimensions")
