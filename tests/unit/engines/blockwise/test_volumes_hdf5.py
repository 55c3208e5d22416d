"""HDF5 is read with paths in the file, in all layouts; damaged files are refused."""

from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from volumes_on_disk import czyx, hdf5, numbers

from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting, BadVolume
from rigdyno.engines.blockwise.interfaces import VoxelSize
from rigdyno.engines.blockwise.volumes import open_volume

SHAPE = (20, 13, 17)


def everything(location, **options):
    volume = open_volume(str(location), **options)
    return volume.read(whole_box(volume.shape)).values


@pytest.fixture
def two(tmp_path):
    return hdf5(tmp_path / "in.h5", **{"a/raw": (numbers(5, 6, 7), None), "b": (numbers(4, 4, 4, seed=1), (2, 2, 2))})


@pytest.mark.parametrize("chunks", [None, (8, 6, 5)])
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_any_box_equals_the_numpy_slice(tmp_path, chunks, data):
    values, file = numbers(*SHAPE), tmp_path / "in.h5"
    if not file.exists():
        hdf5(file, raw=(values, chunks))
    start = tuple(data.draw(st.integers(0, length - 1)) for length in SHAPE)
    stop = tuple(data.draw(st.integers(first + 1, length)) for first, length in zip(start, SHAPE, strict=True))
    box = Box(start, stop)
    volume = open_volume(str(file))
    reading = volume.read(box)
    assert np.array_equal(reading.values, czyx(values[box.slices()]))
    assert reading.values.flags.c_contiguous
    assert not reading.missing
    assert volume.chunk == (chunks or (1, 1, 1))


@pytest.mark.parametrize("path", ["/a/raw", ":a/raw", ":/a/raw", "/a/raw/", "/a"])
def test_paths_continue_inside_the_file(two, path):
    volume = open_volume(f"{two}{path}")
    assert np.array_equal(volume.read(whole_box(volume.shape)).values[0], numbers(5, 6, 7))
    assert volume.location == f"{two}{path}"


def test_arrays_that_are_no_volumes_are_ignored(tmp_path):
    file = hdf5(
        tmp_path / "in.h5", raw=(numbers(5, 6, 7), None), names=(np.arange(3), None), plane=(numbers(4, 4), None)
    )
    assert np.array_equal(everything(file)[0], numbers(5, 6, 7))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", ">u2", ">f4"])
def test_supported_types_are_read(tmp_path, dtype):
    values = numbers(5, 6, 7, dtype=dtype)
    read = everything(hdf5(tmp_path / "in.h5", raw=(values, (4, 4, 4))))
    assert read.dtype.isnative
    assert np.array_equal(read[0], values)


def test_channels_and_time_are_selected(tmp_path):
    values = numbers(3, 2, 5, 6, 7)
    file = hdf5(tmp_path / "in.h5", raw=(values, (1, 1, 4, 4, 4)))
    with pytest.raises(BadSetting, match=r"has 3 along t: choose one, for instance --at t=0$"):
        open_volume(str(file))
    assert np.array_equal(everything(file, at={"t": 2}), values[2])
    assert np.array_equal(everything(file, at={"t": 1, "c": 1}), values[1, 1:])


def test_axes_follow_dimension_labels(tmp_path):
    values = numbers(5, 6, 7, 2)
    file = hdf5(tmp_path / "in.h5", raw=(values, None))
    with h5py.File(file, "r+") as content:
        for dimension, label in zip(content["raw"].dims, "zyxc", strict=True):
            dimension.label = label
    assert np.array_equal(everything(file), np.moveaxis(values, -1, 0))


@pytest.mark.parametrize(
    ("attribute", "size"),
    [
        ([0.5, 0.1, 0.1], VoxelSize((0.5, 0.1, 0.1), "micrometer")),
        ([1, 0.5, 0.1, 0.2], VoxelSize((0.5, 0.1, 0.2), "micrometer")),
        ([1.0, 2.0], VoxelSize()),
        (3.0, VoxelSize()),
        ("fine", VoxelSize()),
        ([0.0, 1.0, 1.0], VoxelSize()),
        (None, VoxelSize()),
    ],
)
def test_voxel_sizes_are_read(tmp_path, attribute, size):
    file = hdf5(tmp_path / "in.h5", raw=(numbers(1, 5, 6, 7), None))
    if attribute is not None:
        with h5py.File(file, "r+") as content:
            content["raw"].attrs["element_size_um"] = attribute
    assert open_volume(str(file)).voxel_size == size


def test_several_threads_read_at_once(tmp_path):
    values = numbers(*SHAPE)
    volume = open_volume(str(hdf5(tmp_path / "in.h5", raw=(values, (4, 4, 4)))))
    boxes = [Box((start, 0, 0), (start + 1, *SHAPE[1:])) for start in range(SHAPE[0])] * 5
    with ThreadPoolExecutor(8) as threads:
        for box, reading in zip(boxes, threads.map(volume.read, boxes), strict=True):
            assert np.array_equal(reading.values[0], values[box.slices()])


# Chunks.


def test_a_chunk_that_was_never_stored_is_reported(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as content:
        sparse = content.create_dataset("raw", shape=(8, 8, 8), dtype="u1", chunks=(4, 4, 4), fillvalue=7)
        sparse[:4] = 1
    volume = open_volume(str(tmp_path / "in.h5"))
    assert not volume.read(Box((0, 0, 0), (4, 8, 8))).missing
    reading = volume.read(Box((3, 0, 0), (5, 1, 1)))
    assert reading.missing
    assert reading.values.ravel().tolist() == [1, 7]


def test_an_array_that_was_never_stored_is_reported(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as content:
        content.create_dataset("raw", shape=(8, 8, 8), dtype="u1")
    assert open_volume(str(tmp_path / "in.h5")).read(whole_box((8, 8, 8))).missing


def test_a_virtual_array_is_not_missing(tmp_path):
    values = numbers(4, 5, 6)
    hdf5(tmp_path / "part.h5", raw=(values, None))
    virtual = h5py.VirtualLayout(shape=(4, 5, 6), dtype=values.dtype)
    virtual[:] = h5py.VirtualSource(str(tmp_path / "part.h5"), "raw", shape=(4, 5, 6))
    with h5py.File(tmp_path / "in.h5", "w") as content:
        content.create_virtual_dataset("raw", virtual)
    reading = open_volume(str(tmp_path / "in.h5")).read(whole_box((4, 5, 6)))
    assert np.array_equal(reading.values[0], values)
    assert not reading.missing


def test_a_damaged_chunk_affects_only_its_region(tmp_path):
    values = numbers(*SHAPE)
    file = hdf5(tmp_path / "in.h5", raw=(values, (8, 13, 17)))
    with h5py.File(file) as content:
        chunk = content["raw"].id.get_chunk_info_by_coord((8, 0, 0))
    with file.open("r+b") as content:
        content.seek(chunk.byte_offset)
        content.write(b"\xff" * chunk.size)
    volume = open_volume(str(file))
    with pytest.raises(
        BadRegion, match=r"^can't read \[8:9, 0:1, 0:1\] of .*in\.h5: .*filter returned failure"
    ) as refused:
        volume.read(Box((8, 0, 0), (9, 1, 1)))
    assert "\n" not in str(refused.value)
    assert np.array_equal(volume.read(Box((0, 0, 0), (8, 13, 17))).values[0], values[:8])


# Refusals.


def refusal(location, file):
    with pytest.raises(BadVolume) as refused:
        open_volume(str(location))
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(str(file), "IN")


def test_several_arrays_are_listed(two):
    assert refusal(two, two) == "IN isn't an array: name one of those in it, a/raw, b"
    assert refusal(f"{two}/c", two) == "IN/c: the file has no 'c'; name one of those in it, a/raw, b"
    assert refusal(f"{two}:b/x", two) == "IN:b/x: the file has no 'b/x'; name one of those in it, a/raw, b"


def test_a_file_without_a_volume_is_refused(tmp_path):
    file = hdf5(tmp_path / "in.h5", plane=(numbers(6, 7), None))
    assert refusal(file, file) == "IN isn't an array: nothing in it has 3 dimensions or more"
    assert refusal(f"{file}/plane", file).startswith("IN/plane has 2 dimensions")


def test_other_types_are_refused(tmp_path):
    file = hdf5(tmp_path / "in.h5", raw=(np.zeros((5, 6, 7)), None))
    assert (
        refusal(file, file) == "IN holds float64, and uint8, uint16, float32 are read: convert it to one of them first"
    )


def test_damaged_files_are_refused(tmp_path):
    file = hdf5(tmp_path / "in.h5", raw=(numbers(30, 30, 30), (8, 8, 8)))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert refusal(file, file).startswith("can't open IN: Unable to synchronously open file (truncated file")
    for damaged in (b"", b"garbage" * 100):
        file.write_bytes(damaged)
        assert refusal(file, file) == "IN isn't an HDF5 file, or is damaged: its first bytes aren't those of HDF5"


def test_a_missing_filter_is_named(tmp_path, monkeypatch):
    file = hdf5(tmp_path / "in.h5", raw=(numbers(5, 6, 7), (4, 4, 4)))
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    assert refusal(file, file) == "IN needs the HDF5 filter 1 (deflate), which is missing: pip install hdf5plugin"


def test_an_array_without_voxels_is_refused(tmp_path):
    file = hdf5(tmp_path / "in.h5", raw=(numbers(5, 0, 7), None))
    assert refusal(file, file) == "IN has no voxels: its shape is 5 x 0 x 7"
