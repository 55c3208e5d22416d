"""Zarr 2 and 3 are read as they were written, in any order of axes, with missing or damaged chunks."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from volumes_on_disk import czyx, edit, multiscales, numbers, ome_zarr_04, ome_zarr_05, put, zarr2, zarr3

from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting, BadVolume
from rigdyno.engines.blockwise.interfaces import VoxelSize
from rigdyno.engines.blockwise.volumes import open_volume

SHAPE = (20, 13, 17)
WRITERS = {
    "zarr2": (zarr2, {}, "1.0.1"),
    "zarr2-nested": (zarr2, {"dimension_separator": "/"}, "1/0/1"),
    "zarr2-fortran": (zarr2, {"order": "F"}, "1.0.1"),
    "zarr3": (zarr3, {}, "c/1/0/1"),
    "zarr3-sharded": (zarr3, {"inner": (4, 4, 4)}, "c/1/0/1"),
}


@pytest.fixture(params=WRITERS)
def stored(request, tmp_path):
    """Return a folder, its values, and the path of the chunk that begins at 8, 0, 8."""
    writer, options, chunk = WRITERS[request.param]
    values = numbers(*SHAPE)
    return writer(tmp_path / "in.zarr", values, (8, 8, 8), **options), values, tmp_path / "in.zarr" / chunk


def everything(volume):
    return volume.read(whole_box(volume.shape)).values


def boxes(shape):
    def ends(length):
        return st.tuples(st.integers(0, length - 1), st.integers(1, length)).filter(lambda pair: pair[0] < pair[1])

    return st.tuples(*map(ends, shape)).map(lambda pairs: Box(*zip(*pairs, strict=True)))


# Values.


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(box=boxes(SHAPE))
def test_any_box_equals_the_numpy_slice(stored, box):
    folder, values, _ = stored
    reading = open_volume(str(folder)).read(box)
    assert np.array_equal(reading.values[0], values[box.slices()])
    assert reading.values.flags.c_contiguous
    assert not reading.missing


def test_a_volume_has_shape_type_and_chunk(tmp_path):
    folder = zarr3(tmp_path / "in.zarr", numbers(2, *SHAPE), (1, 8, 8, 8), inner=(1, 4, 2, 8))
    volume = open_volume(str(folder))
    assert (volume.location, volume.shape, volume.channels) == (str(folder), SHAPE, 2)
    assert (volume.dtype, volume.chunk, volume.voxel_size) == (np.uint16, (4, 2, 8), VoxelSize())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("writer", [zarr2, zarr3])
def test_supported_types_are_read(tmp_path, writer, dtype):
    values = numbers(5, 6, 7, dtype=dtype)
    volume = open_volume(str(writer(tmp_path / "in.zarr", values, (4, 4, 4))))
    assert volume.dtype == everything(volume).dtype == dtype
    assert np.array_equal(everything(volume)[0], values)


@pytest.mark.parametrize("dtype", [">u2", ">f4"])
def test_big_endian_arrays_are_read(tmp_path, dtype):
    values = numbers(5, 6, 7, dtype=dtype)
    volume = open_volume(str(zarr2(tmp_path / "in.zarr", values, (4, 4, 4))))
    assert volume.dtype.isnative
    assert np.array_equal(everything(volume)[0], values)


def test_several_threads_and_a_cache_read_the_same(stored):
    folder, values, _ = stored
    volume = open_volume(str(folder), threads=1, cache_bytes=10**6)
    for _ in range(2):
        assert np.array_equal(everything(volume)[0], values)


def test_a_box_outside_is_refused(stored):
    folder, _, _ = stored
    with pytest.raises(BadSetting, match=r"\[0:21, 0:1, 0:1\] isn't inside .*in\.zarr, which is \[0:20, 0:13, 0:17\]"):
        open_volume(str(folder)).read(Box((0, 0, 0), (21, 1, 1)))


# Chunks.


def test_a_missing_chunk_is_filled_and_reported(stored):
    folder, values, chunk = stored
    chunk.unlink()
    volume = open_volume(str(folder))
    there, across = Box((0, 0, 0), (8, 8, 8)), Box((6, 0, 6), (10, 4, 10))
    assert not volume.read(there).missing
    reading = volume.read(across)
    expected = values.copy()
    expected[8:16, :8, 8:16] = 0
    assert reading.missing
    assert np.array_equal(reading.values[0], expected[across.slices()])


def test_a_missing_chunk_has_the_fill_value(tmp_path):
    folder = zarr2(tmp_path / "in.zarr", numbers(8, 8, 8), (8, 8, 8), fill_value=7)
    (folder / "0.0.0").unlink()
    reading = open_volume(str(folder)).read(whole_box((8, 8, 8)))
    assert reading.missing
    assert (reading.values == 7).all()


DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "garbage": lambda content: bytes(reversed(content)),
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_chunk_affects_only_its_region(stored, damage):
    folder, values, chunk = stored
    chunk.write_bytes(DAMAGES[damage](chunk.read_bytes()))
    volume = open_volume(str(folder))
    with pytest.raises(BadRegion) as refused:
        volume.read(Box((8, 0, 8), (9, 1, 9)))
    text = str(refused.value)
    assert text.startswith(f"can't read [8:9, 0:1, 8:9] of {folder}: Error reading ")
    assert chunk.name in text
    assert "source locations" not in text
    assert "\n" not in text
    assert len(text) < 400
    fine = Box((0, 0, 0), (8, 13, 8))
    assert np.array_equal(volume.read(fine).values[0], values[fine.slices()])


def test_a_chunk_of_another_size_is_refused(tmp_path):
    folder = zarr2(tmp_path / "in.zarr", numbers(8, 8, 8), (8, 8, 8), compressor=None)
    (folder / "0.0.0").write_bytes(bytes(8 * 8 * 8 * 2 + 1))
    with pytest.raises(BadRegion, match=r"can't read \[0:8, 0:8, 0:8\]"):
        everything(open_volume(str(folder)))


def test_a_damaged_chunk_next_to_a_missing_one_is_refused(stored):
    folder, _, chunk = stored
    chunk.write_bytes(b"")
    (chunk.parent / chunk.name.replace("1", "0") if "." in chunk.name else chunk.with_name("0")).unlink()
    with pytest.raises(BadRegion):
        everything(open_volume(str(folder)))


def test_a_volume_that_disappeared_is_not_read_as_empty(stored):
    folder, _, _ = stored
    volume = open_volume(str(folder))
    folder.rename(folder.with_name("moved"))
    with pytest.raises(BadVolume, match=r"in\.zarr isn't there any more: (zarr\.json|\.zarray) is gone"):
        everything(volume)


# Axes and images.


@pytest.mark.parametrize("writer", [ome_zarr_04, ome_zarr_05])
@pytest.mark.parametrize("axes", ["zyx", "czyx", "tczyx", "xyz", "zcyx", "yxzc"])
def test_axes_become_channels_z_y_x(tmp_path, writer, axes):
    lengths = {"t": 1, "c": 2, "z": 5, "y": 6, "x": 7}
    values = numbers(*(lengths[axis] for axis in axes))
    folder = writer(tmp_path / "in.zarr", multiscales(axes, [1] * len(axes)), values, chunks=(4,) * len(axes))
    volume = open_volume(str(folder))
    order = [axes.index(axis) for axis in "tczyx" if axis in axes]
    expected = values.transpose(order).reshape(-1, 5, 6, 7)
    assert (volume.shape, volume.channels) == ((5, 6, 7), 2 if "c" in axes else 1)
    assert np.array_equal(everything(volume), expected)
    box = Box((1, 2, 3), (5, 5, 6))
    assert np.array_equal(volume.read(box).values, expected[:, 1:5, 2:5, 3:6])


@pytest.mark.parametrize("writer", [ome_zarr_04, ome_zarr_05])
def test_at_selects_one_index(tmp_path, writer):
    values = numbers(3, 2, 5, 6, 7)
    folder = writer(tmp_path / "in.zarr", multiscales("tczyx", [1] * 5), values)
    assert np.array_equal(everything(open_volume(str(folder), at={"t": 2})), values[2])
    one = open_volume(str(folder), at={"t": 1, "c": 1})
    assert one.channels == 1
    assert np.array_equal(everything(one), values[1, 1:])


def test_axes_follow_the_number_of_dimensions_without_metadata(tmp_path):
    for number, shape in enumerate([(5, 6, 7), (2, 5, 6, 7), (1, 2, 5, 6, 7)]):
        values = numbers(*shape)
        folder = zarr2(tmp_path / f"{number}.zarr", values, (4,) * len(shape))
        assert np.array_equal(everything(open_volume(str(folder))), czyx(values.reshape(shape[-4:])))


def test_axes_of_a_plain_array_follow_dimension_names(tmp_path):
    values = numbers(5, 6, 7)
    folder = zarr3(tmp_path / "in.zarr", values, (4, 4, 4), dimension_names=["x", "y", "z"])
    assert np.array_equal(everything(open_volume(str(folder)))[0], values.T)


def test_other_dimension_names_are_ignored(tmp_path):
    values = numbers(5, 6, 7)
    folder = zarr3(tmp_path / "in.zarr", values, (4, 4, 4), dimension_names=["a", None, "b"])
    assert np.array_equal(everything(open_volume(str(folder)))[0], values)


@pytest.mark.parametrize("writer", [ome_zarr_04, ome_zarr_05])
def test_levels_have_their_own_voxel_sizes(tmp_path, writer):
    image = multiscales("czyx", [1, 40, 4, 4], [1, 40, 8, 8])
    folder = writer(tmp_path / "in.zarr", image, numbers(1, 6, 8, 8), numbers(1, 6, 4, 4, seed=1))
    full, half = open_volume(str(folder)), open_volume(f"{folder}/1/")
    assert (full.shape, full.voxel_size) == ((6, 8, 8), VoxelSize((40.0, 4.0, 4.0), "nanometer"))
    assert (half.shape, half.voxel_size) == ((6, 4, 4), VoxelSize((40.0, 8.0, 8.0), "nanometer"))
    assert np.array_equal(everything(half), numbers(1, 6, 4, 4, seed=1))
    assert open_volume(f"{folder}/0").voxel_size == full.voxel_size


def test_axes_of_a_level_come_from_the_image_above(tmp_path):
    values = numbers(7, 6, 5)
    folder = tmp_path / "in.zarr"
    image = multiscales("xyz", [1, 2, 3])
    image[0]["datasets"][0]["path"] = "deep/down/s0"
    ome_zarr_04(folder, image)
    for group in ("deep", "deep/down"):
        put(folder / group / ".zgroup", {"zarr_format": 2})
    zarr2(folder / "deep/down/s0", values, (4, 4, 4))
    for location in (folder, folder / "deep/down/s0"):
        volume = open_volume(str(location))
        assert np.array_equal(everything(volume)[0], values.T)
        assert volume.voxel_size.zyx == (3.0, 2.0, 1.0)


def test_a_scale_for_all_levels_multiplies(tmp_path):
    image = multiscales("zyx", [2, 1, 1], whole=[0.5, 0.25, 0.25], unit="micrometer")
    volume = open_volume(str(ome_zarr_04(tmp_path / "in.zarr", image, numbers(5, 6, 7))))
    assert volume.voxel_size == VoxelSize((1.0, 0.25, 0.25), "micrometer")


@pytest.mark.parametrize("scale", [[1, 1], [0, 1, 1], ["a", 1, 1], None, [1, -2, 1]])
def test_an_invalid_scale_is_ignored(tmp_path, scale):
    folder = ome_zarr_04(tmp_path / "in.zarr", multiscales("zyx", scale), numbers(5, 6, 7))
    assert open_volume(str(folder)).voxel_size == VoxelSize()


def test_axes_of_version_03_are_bare_names_and_before_there_were_none(tmp_path):
    values = numbers(7, 6, 5)
    image = multiscales("xyz", [1, 1, 1])
    image[0]["axes"] = ["x", "y", "z"]
    assert np.array_equal(everything(open_volume(str(ome_zarr_04(tmp_path / "3.zarr", image, values))))[0], values.T)
    del image[0]["axes"]
    assert np.array_equal(everything(open_volume(str(ome_zarr_04(tmp_path / "2.zarr", image, values))))[0], values)


def test_axes_follow_types_if_names_are_unknown(tmp_path):
    image = multiscales("tczyx", [1, 1, 3, 2, 1])
    for axis, name in zip(image[0]["axes"], ["time", "dye", "depth", "rows", "columns"], strict=True):
        axis["name"] = name
    values = numbers(1, 2, 5, 6, 7)
    volume = open_volume(str(ome_zarr_04(tmp_path / "in.zarr", image, values)))
    assert np.array_equal(everything(volume), values[0])
    assert volume.voxel_size.zyx == (3.0, 2.0, 1.0)


def test_an_axis_of_another_kind_is_selected_like_time(tmp_path):
    values = numbers(3, 5, 6, 7)
    image = multiscales("azyx", [1] * 4)
    image[0]["axes"][0] = {"name": "angle", "type": "angle"}
    folder = ome_zarr_05(tmp_path / "in.zarr", image, values)
    with pytest.raises(BadSetting, match=r"has 3 along angle: choose one, for instance --at angle=0$"):
        open_volume(str(folder))
    assert np.array_equal(everything(open_volume(str(folder), at={"angle": 2}))[0], values[2])


# Refusals.


def refusal(folder, **options):
    with pytest.raises((BadVolume, BadSetting)) as refused:
        open_volume(str(folder), **options)
    text = str(refused.value)
    assert "\n" not in text
    assert len(text) < 400
    return text.replace(str(folder), "IN")


def test_time_points_have_to_be_chosen(tmp_path):
    folder = zarr2(tmp_path / "in.zarr", numbers(3, 1, 5, 6, 7), (1, 1, 4, 4, 4))
    assert refusal(folder) == "IN has 3 along t: choose one, for instance --at t=0"
    assert refusal(folder, at={"t": 3}) == "IN has no t=3: the last is t=2"
    assert refusal(folder, at={"t": -1}) == "IN has no t=-1: the last is t=2"
    assert refusal(folder, at={"t": 0, "q": 1}) == "IN has no axis 'q' to read at 1: it has t, c, z, y, x"
    assert refusal(folder, at={"z": 1}) == "the axis z of IN can't be read at one index: a volume needs z, y and x"


@pytest.mark.parametrize("dtype", ["int16", "float64", "uint32", "int8"])
@pytest.mark.parametrize("writer", [zarr2, zarr3])
def test_other_types_are_refused(tmp_path, writer, dtype):
    folder = writer(tmp_path / "in.zarr", np.zeros((5, 6, 7), dtype), (4, 4, 4))
    assert refusal(folder) == f"IN holds {dtype}, and uint8, uint16, float32 are read: convert it to one of them first"


@pytest.mark.parametrize("dtype", [[["a", "<u2"], ["b", "<u2"]], "nonsense", 3])
def test_unknown_types_are_refused(tmp_path, dtype):
    folder = zarr2(tmp_path / "in.zarr", numbers(5, 6, 7), (4, 4, 4))
    edit(folder / ".zarray", dtype=dtype)
    assert "IN holds " in refusal(folder)


def test_too_few_and_too_many_dimensions_are_refused(tmp_path):
    plane = zarr2(tmp_path / "plane.zarr", numbers(6, 7), (4, 4))
    assert refusal(plane) == "IN has 2 dimensions, and 3 (z, y, x), 4 (with c) or 5 (with t, c) are read"
    six = zarr3(tmp_path / "six.zarr", numbers(1, 1, 1, 5, 6, 7), (1, 1, 1, 4, 4, 4))
    assert refusal(six).startswith("IN has 6 dimensions")
    image = ome_zarr_05(tmp_path / "image.zarr", multiscales("cyx", [1, 1, 1]), numbers(1, 6, 7), chunks=(1, 4, 4))
    assert refusal(image) == "IN has the axes c, y, x, and a volume needs z, y and x"
    wrong = ome_zarr_05(tmp_path / "wrong.zarr", multiscales("czyx", [1] * 4), numbers(5, 6, 7))
    assert refusal(wrong) == "IN names the axes c, z, y, x for 3 dimensions: correct its metadata"


@pytest.mark.parametrize("writer", [zarr2, zarr3])
def test_an_array_without_voxels_is_refused(tmp_path, writer):
    folder = writer(tmp_path / "in.zarr", numbers(5, 0, 7), (4, 4, 4))
    assert refusal(folder) == "IN has no voxels: its shape is 5 x 0 x 7"


@pytest.mark.parametrize(("key", "writer"), [("zarr.json", zarr3), (".zarray", zarr2)])
def test_damaged_metadata_are_refused(tmp_path, key, writer):
    folder = writer(tmp_path / "in.zarr", numbers(5, 6, 7), (4, 4, 4))
    content = (folder / key).read_text()
    (folder / key).write_text(content[: len(content) // 2])
    assert refusal(folder).startswith(f"{key} of IN is damaged (")
    assert refusal(folder).endswith("): restore it, or convert the volume anew")
    (folder / key).write_text("[1]")
    assert refusal(folder) == f"{key} of IN holds no JSON object: restore it, or convert the volume anew"
    (folder / key).write_bytes(b"\xff\xfe\x00")
    assert f"{key} of IN is damaged" in refusal(folder)
    (folder / key).write_text('{"node_type": "array"}')
    assert refusal(folder) == f"{key} of IN has no shape: restore it, or convert the volume anew"


def test_unknown_codecs_are_refused(tmp_path):
    three, two = (writer(tmp_path / writer.__name__, numbers(5, 6, 7), (4, 4, 4)) for writer in (zarr3, zarr2))
    codecs = json.loads((three / "zarr.json").read_text())["codecs"]
    edit(three / "zarr.json", codecs=[*codecs, {"name": "zipper"}])
    edit(two / ".zarray", compressor={"id": "zipper"})
    for folder in (three, two):
        assert '"zipper" is not registered; correct its metadata, or convert it to a zarr with zstd' in refusal(folder)
    edit(two / ".zarray", compressor=None, filters=[{"id": "delta"}])
    assert "filters are not supported" in refusal(two)


def test_a_group_without_an_image_names_its_arrays(tmp_path):
    for folder, key, writer in ((tmp_path / "2.zarr", ".zgroup", zarr2), (tmp_path / "3.zarr", "zarr.json", zarr3)):
        put(folder / key, {"zarr_format": 2} if writer is zarr2 else {"zarr_format": 3, "node_type": "group"})
        assert refusal(folder) == "IN is a zarr group without multiscales: give the path of an array in it"
        writer(folder / "a" / "raw", numbers(5, 6, 7), (4, 4, 4))
        writer(folder / "b", numbers(5, 6, 7), (4, 4, 4))
        assert refusal(folder) == "IN is a zarr group without multiscales: name one in it, b, a/raw"


def test_a_collection_of_images_names_them(tmp_path):
    put(tmp_path / ".zgroup", {"zarr_format": 2})
    put(tmp_path / ".zattrs", {"bioformats2raw.layout": 3})
    for series in ("0", "1"):
        ome_zarr_04(tmp_path / series, multiscales("zyx", [1, 1, 1]), numbers(5, 6, 7))
    assert refusal(tmp_path) == "IN is a zarr group without multiscales: name one in it, 0, 1"


def test_an_image_without_its_array_is_refused(tmp_path):
    folder = ome_zarr_05(tmp_path / "in.zarr", multiscales("zyx", [1, 1, 1]))
    assert refusal(folder) == "IN names '0' as its full resolution, but there is no such array: restore it"


@pytest.mark.parametrize("image", [[], {}, [3], [{"datasets": []}], [{"datasets": [3]}], "no"])
def test_multiscales_without_content_are_refused(tmp_path, image):
    assert "without multiscales" in refusal(ome_zarr_04(tmp_path / "in.zarr", image))
