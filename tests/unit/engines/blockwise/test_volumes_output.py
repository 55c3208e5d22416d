"""The output follows OME-NGFF 0.5 exactly, has one file per block, and refusals give advice."""

import fcntl
import json
import os
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from shards_by_hand import crc32c, read_index, size_in_zstd_frame

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.errors import BadOutput, BadSetting
from rigdyno.engines.blockwise.interfaces import VoxelSize
from rigdyno.engines.blockwise.volumes import OmeZarrOutput, ome_zarr_documents, open_volume
from rigdyno.engines.blockwise.volumes.ome_zarr_documents import chunk_length

SHAPE, BLOCK = (150, 128, 70), (128, 64, 64)
SETTINGS = {
    "shape": SHAPE,
    "channels": 2,
    "dtype": "uint8",
    "block": BLOCK,
    "voxel_size": VoxelSize((40.0, 4.0, 4.5), "nanometer"),
    "name": "membranes",
    "attributes": {"model": "a0b1", "blocks": 8},
}


@pytest.fixture
def location(tmp_path):
    return str(tmp_path / "out.zarr")


def blocks(shape=SHAPE, block=BLOCK):
    starts = product(*(range(0, length, step) for length, step in zip(shape, block, strict=True)))
    return [Box(start, start_of_next(start, block)).within(whole_box(shape)) for start in starts]


def start_of_next(start, block):
    return tuple(map(sum, zip(start, block, strict=True)))


def content(box, channels=2, dtype=np.uint8):
    drawn = np.random.default_rng(abs(sum(box.start))).integers(0, 256, (channels, *box.shape), np.uint8)
    return drawn.astype(dtype)


def filled(location, **changes):
    output = OmeZarrOutput.create(location, **{**SETTINGS, **changes})
    for box in blocks(output.shape, output.block):
        output.write(box, content(box, output.channels, output.dtype))
    return output


def files(output):
    return sorted(path.relative_to(output.folder).as_posix() for path in output.folder.rglob("*") if path.is_file())


# Values.


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_written_blocks_are_read_back(location, dtype, channels):
    output = filled(location, dtype=dtype, channels=channels)
    for again in (output, OmeZarrOutput.open(location)):
        for box in blocks():
            assert np.array_equal(again.read(box), content(box, channels, dtype))
        across = Box((100, 50, 60), (140, 90, 66))
        everything = again.read(whole_box(SHAPE))
        assert np.array_equal(again.read(across), everything[:, 100:140, 50:90, 60:66])


def test_an_output_opens_as_a_volume(location):
    output = filled(location)
    for path in (location, f"{location}/0"):
        volume = open_volume(path)
        assert (volume.shape, volume.channels, volume.dtype, volume.chunk) == (SHAPE, 2, np.uint8, (64, 64, 64))
        assert volume.voxel_size == SETTINGS["voxel_size"]
        reading = volume.read(whole_box(SHAPE))
        assert not reading.missing
        assert np.array_equal(reading.values, output.read(whole_box(SHAPE)))


def test_unwritten_voxels_are_zero(location):
    output = OmeZarrOutput.create(location, **SETTINGS)
    assert not output.read(blocks()[0]).any()


def test_open_restores_the_settings_of_create(location):
    OmeZarrOutput.create(location, **SETTINGS)
    output = OmeZarrOutput.open(location)
    assert (output.shape, output.channels, output.block, output.dtype) == (SHAPE, 2, BLOCK, np.uint8)
    assert output.attributes == SETTINGS["attributes"]


def test_several_threads_write_at_once(location):
    output = OmeZarrOutput.create(location, **SETTINGS)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda box: output.write(box, content(box)), blocks()))
    for box in blocks():
        assert np.array_equal(output.read(box), content(box))


def test_arrays_of_any_memory_layout_are_written(location):
    output = OmeZarrOutput.create(location, **SETTINGS)
    box = blocks()[0]
    output.write(box, np.asfortranarray(content(box)))
    assert np.array_equal(output.read(box), content(box))


# Files.


def test_each_block_has_one_file(location):
    output = filled(location)
    grid = [f"0/c/0/{z}/{y}/{x}" for z, y, x in product(range(2), range(2), range(2))]
    assert files(output) == sorted(["zarr.json", "0/zarr.json", *grid])
    assert [output.shard(box).relative_to(output.folder).as_posix() for box in blocks()] == grid


def test_a_block_of_zeros_has_a_file_too(location):
    output = OmeZarrOutput.create(location, **SETTINGS)
    for box in (blocks()[0], blocks()[-1]):
        output.write(box, np.zeros((2, *box.shape), np.uint8))
        assert output.shard(box).stat().st_size > 0


def test_a_shard_follows_the_specification(location):
    """Two channels of 128 x 64 x 64 in chunks of 64 x 64 x 64 are four chunks, in the order of the axes."""
    output = filled(location)
    box = blocks()[0]
    file = output.shard(box)
    chunks = read_index(file, (2, *BLOCK), (1, 64, 64, 64))
    assert len(chunks) == 4
    stored = file.read_bytes()
    for offset, length in chunks:
        assert size_in_zstd_frame(stored[offset : offset + length]) == (64**3, True)


def test_a_shard_at_the_end_lacks_the_chunks_outside(location):
    """22 x 64 x 6 voxels are left in a block of 128 x 64 x 64; chunks beyond the end aren't stored."""
    output = filled(location)
    chunks = read_index(output.shard(blocks()[-1]), (2, *BLOCK), (1, 64, 64, 64))
    assert [length < 2**63 for _, length in chunks] == [True, False, True, False]


def test_the_checksum_has_the_published_check_value():
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720's check value


@pytest.mark.parametrize(
    ("block", "chunk"),
    [(64, 64), (256, 64), (63, 63), (1, 1), (96, 48), (100, 50), (160, 40), (192, 64), (65, 65), (67, 67), (130, 26)],
)
def test_chunks_divide_the_block(block, chunk):
    assert chunk_length(block) == chunk
    assert block % chunk == 0


def test_a_small_odd_block_is_written(location):
    output = filled(location, shape=(40, 30, 20), block=(20, 30, 7))
    assert np.array_equal(output.read(blocks((40, 30, 20), (20, 30, 7))[-1])[0].shape, (20, 30, 6))


def test_a_damaged_shard_is_written_anew(location):
    output = filled(location)
    for box in (blocks()[0], blocks()[-1]):
        for damaged in (b"", b"garbage", output.shard(box).read_bytes()[:-100]):
            output.shard(box).write_bytes(damaged)
            with pytest.raises(BadOutput, match=r"^can't read \["):
                output.read(box)
            output.write(box, content(box))
            assert np.array_equal(output.read(box), content(box))


def test_a_changed_byte_is_noticed(location):
    output = filled(location)
    file = output.shard(blocks()[0])
    stored = bytearray(file.read_bytes())
    stored[1000] ^= 1
    file.write_bytes(stored)
    with pytest.raises(BadOutput):
        output.read(blocks()[0])


def test_litter_is_removed(location):
    output = filled(location)
    before = files(output)
    (output.folder / "0/c/0/0/0/1.__lock").write_bytes(b"half")
    (output.folder / "zarr.json.__lock").write_bytes(b"{")
    assert output.remove_litter() == 2
    assert files(output) == before
    assert output.remove_litter() == 0


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="tensorstore locks in another way here")
def test_litter_of_running_writers_is_left_alone(location):
    output = OmeZarrOutput.create(location, **SETTINGS)
    half = output.folder / "0" / "half.__lock"
    exclusive = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with half.open("wb") as writer:
        fcntl.fcntl(writer, fcntl.F_OFD_SETLK, exclusive)  # like tensorstore
        assert output.remove_litter() == 0
    assert output.remove_litter() == 1


# Metadata, compared with the text of https://ngff.openmicroscopy.org/0.5/ and of zarr 3.

SPACE_UNITS = ("angstrom", "nanometer", "micrometer", "millimeter", "centimeter", "meter")


def documents(output):
    return [json.loads((output.folder / path).read_text()) for path in ("zarr.json", "0/zarr.json")]


def test_the_group_follows_the_specification(location):
    group, array = documents(filled(location))
    assert (group["zarr_format"], group["node_type"]) == (3, "group")
    assert group["attributes"]["rigdyno"] == SETTINGS["attributes"]
    ome = group["attributes"]["ome"]
    assert ome["version"] == "0.5"
    (image,) = ome["multiscales"]
    assert isinstance(image["name"], str)
    check_axes(image["axes"], array)
    (dataset,) = image["datasets"]
    assert dataset["path"] == "0"
    (scale,) = dataset["coordinateTransformations"]  # exactly one scale, as long as the axes
    assert scale == {"type": "scale", "scale": [1.0, 40.0, 4.0, 4.5]}
    assert all(isinstance(number, float) for number in scale["scale"])


def check_axes(axes, array):
    names, kinds = [axis["name"] for axis in axes], [axis["type"] for axis in axes]
    assert 2 <= len(axes) <= 5
    assert len(axes) == len(array["shape"])
    assert len(set(names)) == len(names)
    assert kinds == sorted(kinds, key=["time", "channel", "space"].index)
    assert 2 <= kinds.count("space") <= 3
    assert names == array["dimension_names"] == ["c", "z", "y", "x"]
    assert all(axis["unit"] in SPACE_UNITS for axis in axes if axis["type"] == "space")


def test_no_unit_is_written_if_unknown(location):
    group, _ = documents(OmeZarrOutput.create(location, **{**SETTINGS, "voxel_size": VoxelSize()}))
    image = group["attributes"]["ome"]["multiscales"][0]
    assert [set(axis) for axis in image["axes"]] == [{"name", "type"}] * 4
    assert image["datasets"][0]["coordinateTransformations"] == [{"type": "scale", "scale": [1.0] * 4}]


@pytest.mark.parametrize(("dtype", "fill"), [("uint8", 0), ("float16", 0.0)])
def test_the_array_follows_the_specification(location, dtype, fill):
    _, array = documents(OmeZarrOutput.create(location, **{**SETTINGS, "dtype": dtype}))
    (sharding,) = array.pop("codecs")
    assert array == {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2, *SHAPE],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, *BLOCK]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "dimension_names": ["c", "z", "y", "x"],
        "attributes": {},
    }
    assert sharding["name"] == "sharding_indexed"
    assert sharding["configuration"]["chunk_shape"] == [1, 64, 64, 64]
    assert [codec["name"] for codec in sharding["configuration"]["codecs"]] == ["bytes", "zstd"]
    assert [codec["name"] for codec in sharding["configuration"]["index_codecs"]] == ["bytes", "crc32c"]
    assert sharding["configuration"]["index_location"] == "end"


def test_zarr_python_reads_an_output(location):
    zarr = pytest.importorskip("zarr", minversion="3")
    output = filled(location)
    group = zarr.open_group(location, mode="r")
    assert group.attrs["ome"]["version"] == "0.5"
    assert group["0"].shards == (2, *BLOCK)
    assert np.array_equal(group["0"][:], output.read(whole_box(SHAPE)))


def test_the_metadata_follow_the_schema(location):
    yaozarrs = pytest.importorskip("yaozarrs")
    filled(location)
    document = json.loads(Path(location, "zarr.json").read_text())
    assert isinstance(yaozarrs.validate_ome_object(document["attributes"]["ome"]), yaozarrs.v05.Image)


# Refusals.


def refusal(kind, does):
    with pytest.raises(kind) as refused:
        does()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "box",
    [
        Box((1, 0, 0), (128, 64, 64)),
        Box((0, 0, 0), (128, 64, 63)),
        Box((0, 0, 0), (150, 64, 64)),
        Box((128, 64, 64), (256, 128, 128)),
        Box((256, 0, 0), (384, 64, 64)),
        Box((0, 0, 0), (0, 64, 64)),
        Box((-128, 0, 0), (0, 64, 64)),
    ],
)
def test_only_whole_blocks_are_written(location, box):
    output = OmeZarrOutput.create(location, **SETTINGS)
    message = refusal(BadSetting, lambda: output.write(box, content(box)))
    assert message == f"{box} isn't a block of {location}: blocks are 128 x 64 x 64 in [0:150, 0:128, 0:70]"
    assert files(output) == ["0/zarr.json", "zarr.json"]


def test_only_arrays_of_the_right_shape_and_type_are_written(location):
    output, box = OmeZarrOutput.create(location, **SETTINGS), blocks()[-1]
    wanted = f"block {box} of {location} takes 2 x 22 x 64 x 6 uint8"
    for values, given in (
        (content(box, channels=1), "1 x 22 x 64 x 6 uint8"),
        (content(box, dtype=np.float16), "2 x 22 x 64 x 6 float16"),
        (content(box)[:, 1:], "2 x 21 x 64 x 6 uint8"),
    ):
        assert refusal(BadSetting, lambda values=values: output.write(box, values)) == f"{wanted}, not {given}"


@pytest.mark.parametrize("changes", [{"dtype": "int16"}, {"channels": 0}, {"shape": (0, 1, 1)}, {"block": (0, 64, 64)}])
def test_invalid_settings_are_refused(location, tmp_path, changes):
    refusal(BadSetting, lambda: OmeZarrOutput.create(location, **{**SETTINGS, **changes}))
    assert list(tmp_path.iterdir()) == []


def test_create_refuses_a_folder_that_is_in_use(location, tmp_path):
    filled(location)
    message = refusal(BadOutput, lambda: OmeZarrOutput.create(location, **SETTINGS))
    assert message == f"{location} isn't empty, it holds 0, zarr.json: take another name, or remove it"
    (tmp_path / "notes.txt").write_text("?")
    message = refusal(BadOutput, lambda: OmeZarrOutput.create(str(tmp_path / "notes.txt"), **SETTINGS))
    assert message == f"{tmp_path}/notes.txt is a file: take another name"
    message = refusal(BadOutput, lambda: OmeZarrOutput.create(str(tmp_path / "notes.txt" / "out"), **SETTINGS))
    assert message.startswith(f"can't create {tmp_path}/notes.txt/out: not a directory; ")


def test_create_refuses_urls():
    message = refusal(BadOutput, lambda: OmeZarrOutput.create("s3://bucket/out.zarr", **SETTINGS))
    assert message == "s3://bucket/out.zarr is a URL, and outputs are written to a local folder: give a path"


def test_create_accepts_an_empty_folder(location, tmp_path):
    (tmp_path / "out.zarr").mkdir()
    assert OmeZarrOutput.create(location, **SETTINGS).shape == SHAPE


def test_create_can_be_repeated_after_a_kill(location, monkeypatch):
    """zarr.json is written last: without it, the output was never begun."""

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(ome_zarr_documents, "group", killed)
        with pytest.raises(KeyboardInterrupt):
            OmeZarrOutput.create(location, **SETTINGS)
    message = refusal(BadOutput, lambda: OmeZarrOutput.open(location))
    assert message == f"{location} holds no output to resume: there is no zarr.json"
    other = {**SETTINGS, "shape": (64, 64, 64)}
    OmeZarrOutput.create(location, **other)
    assert OmeZarrOutput.open(location).shape == (64, 64, 64)


def test_create_can_be_repeated_before_the_first_block(location, tmp_path):
    """A run that was killed after `create`, but before its plan was written, begins again."""
    (tmp_path / "out.zarr" / ".rigdyno").mkdir(parents=True)
    OmeZarrOutput.create(location, **SETTINGS)
    output = OmeZarrOutput.create(location, **{**SETTINGS, "channels": 1})
    assert OmeZarrOutput.open(location).channels == 1
    output.write(blocks()[0], content(blocks()[0], channels=1))
    assert "isn't empty" in refusal(BadOutput, lambda: OmeZarrOutput.create(location, **SETTINGS))


@pytest.mark.parametrize("path", ["zarr.json", ".zattrs", "0/zarr.json.txt", "1/zarr.json", "notes.txt"])
def test_create_spares_foreign_files(location, tmp_path, path):
    file = tmp_path / "out.zarr" / path
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert "isn't empty" in refusal(BadOutput, lambda: OmeZarrOutput.create(location, **SETTINGS))
    assert file.read_text() == "{}"


def test_open_refuses_foreign_images(location, tmp_path):
    assert "there is no zarr.json" in refusal(BadOutput, lambda: OmeZarrOutput.open(location))
    output = OmeZarrOutput.create(location, **SETTINGS)
    path = output.folder / "zarr.json"
    group = json.loads(path.read_text())
    for damaged in ("{", "[]", json.dumps({**group, "attributes": {}})):
        path.write_text(damaged)
        message = refusal(BadOutput, lambda: OmeZarrOutput.open(location))
        assert message.startswith(f"{location} isn't an output of rigdyno, or is damaged (")
        assert message.endswith("): take another name")
    path.write_text(json.dumps(group))
    (output.folder / "0" / "zarr.json").unlink()
    assert refusal(BadOutput, lambda: OmeZarrOutput.open(location)).startswith(f"can't open {location}: no such file")


def test_a_missing_tensorstore_is_named(location, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    message = refusal(MissingExtra, lambda: OmeZarrOutput.create(location, **SETTINGS))
    assert message == "volumes need tensorstore, which isn't installed: pip install 'rigdyno[volume]'"


FAILS_TWICE = """
import os, resource, signal, sys
import numpy as np
from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.errors import BadOutput
from rigdyno.engines.blockwise.volumes import OmeZarrOutput

def write():
    try:
        output.write(Box((0, 0, 0), (128, 64, 64)), values)
    except BadOutput as error:
        print(error)

output = OmeZarrOutput.open(sys.argv[1])
values = np.random.default_rng(0).integers(0, 256, (2, 128, 64, 64), np.uint8)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
write()
for path in (output.folder, *output.folder.rglob("*")):
    os.chmod(path, 0o555)
if os.getuid() == 0:
    os.setuid(65534)
write()
"""


@pytest.fixture
def open_to_all():
    """Return a folder outside pytest's own, which another user can't enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield f"{folder}/out.zarr"
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755)


def test_a_full_disk_and_missing_rights_give_advice(open_to_all):
    output, box = OmeZarrOutput.create(open_to_all, **SETTINGS), blocks()[0]
    command = [sys.executable, "-c", FAILS_TWICE, open_to_all]
    messages = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    wrong, again = f"can't write {box} of {open_to_all}", "and run the same command again"
    assert messages == [
        f"{wrong}: file too large; free some space {again}, finished blocks are kept",
        f"{wrong}: permission denied; get the right to write there {again}, or choose another folder",
    ]
    assert files(output) == ["0/zarr.json", "zarr.json"]
    for path in (output.folder, *output.folder.rglob("*")):
        path.chmod(0o755)
    output.write(box, content(box))
    assert np.array_equal(output.read(box), content(box))
