"""Locations of volumes, refusals of other files, and the identity of a volume."""

import functools
import http.server
import sys
import threading

import h5py
import numpy as np
import pytest
from volumes_on_disk import hdf5, multiscales, n5, numbers, ome_zarr_04, zarr2, zarr3

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.blockwise.boxes import whole_box
from rigdyno.engines.blockwise.errors import BadSetting, BadVolume, BlockwiseError
from rigdyno.engines.blockwise.volumes import open_volume, tensorstore


def everything(location, **options):
    volume = open_volume(str(location), **options)
    return volume.read(whole_box(volume.shape))


def refusal(location, kind=BadVolume, **options):
    with pytest.raises(kind) as refused:
        open_volume(str(location), **options)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, (BlockwiseError, MissingExtra))
    return str(refused.value)


# Locations.


@pytest.fixture
def served(tmp_path):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(tensorstore, "RETRIES", 1)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_volumes_are_read_from_a_url(tmp_path, served):
    values = numbers(9, 6, 7)
    zarr2(tmp_path / "two.zarr", values, (4, 4, 4))
    zarr3(tmp_path / "three.zarr", values, (4, 4, 4))
    n5(tmp_path / "in.n5" / "s 0", values, (4, 4, 4))
    ome_zarr_04(tmp_path / "image.zarr", multiscales("zyx", [3, 2, 1]), values)
    for path in ("two.zarr", "three.zarr/", "in.n5/s%200", "image.zarr", "image.zarr/0"):
        assert np.array_equal(everything(f"{served}/{path}").values[0], values), path
    assert open_volume(f"{served}/image.zarr/0").voxel_size.zyx == (3.0, 2.0, 1.0)


def test_missing_and_damaged_chunks_at_a_url_are_reported(tmp_path, served):
    folder = zarr2(tmp_path / "in.zarr", numbers(8, 4, 4), (4, 4, 4))
    (folder / "1.0.0").unlink()
    assert everything(f"{served}/in.zarr").missing
    (folder / "1.0.0").write_bytes(b"garbage")
    with pytest.raises(BadVolume, match=r"can't read \[0:8, 0:4, 0:4\] of http.*in\.zarr: .*1\.0\.0"):
        everything(f"{served}/in.zarr")


def test_a_url_without_a_volume_is_refused(tmp_path, served):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "zarr.json").write_text("<html>")
    missing = "no zarr.json, .zarray, .zgroup or attributes.json there; check the address"
    assert refusal(f"{served}/none.zarr") == f"{served}/none.zarr: {missing}"
    advice = "HDF5 needs a local file, so download it first"
    assert refusal(f"{served}/in.h5/raw") == f"{served}/in.h5/raw can't be read from there: {advice}"
    assert refusal(f"{served}/page").startswith(f"zarr.json of {served}/page is damaged (")


def test_a_host_that_does_not_answer_is_reported(served):
    assert refusal("http://127.0.0.1:1/in.zarr").startswith("can't read zarr.json of http://127.0.0.1:1/in.zarr: ")


@pytest.mark.parametrize("bucket", ["s3://bucket", "gs://bucket", "https://host:80"])
def test_parents_of_a_url_end_at_the_bucket(bucket):
    place = tensorstore.StoreLocation("IN", f"{bucket}/a b/c".replace(" ", "%20"), None)
    assert (place.name, place.child("s 0").root) == ("c", f"{bucket}/a%20b/c/s%200")
    above = place.parent()
    assert (above.root, above.name) == (f"{bucket}/a%20b", "a b")
    assert above.parent().root == bucket
    assert above.parent().parent() is None
    assert place.find_arrays(lambda _: True) == []


def test_file_urls_are_paths(tmp_path):
    values = numbers(5, 6, 7)
    zarr2(tmp_path / "with space.zarr", values, (4, 4, 4))
    hdf5(tmp_path / "in.h5", raw=(values, None))
    for path in ("with%20space.zarr", "in.h5", "in.h5/raw"):
        assert np.array_equal(everything(f"file://{tmp_path}/{path}").values[0], values), path


def test_relative_paths_and_links_are_followed(tmp_path, monkeypatch):
    values = numbers(5, 6, 7)
    zarr2(tmp_path / "in.zarr", values, (4, 4, 4))
    (tmp_path / "link").symlink_to("in.zarr")
    monkeypatch.chdir(tmp_path)
    for location in ("in.zarr", "./in.zarr/", "link", "../" + tmp_path.name + "/in.zarr"):
        assert np.array_equal(everything(location).values[0], values)
    assert open_volume("link").identity() == open_volume(str(tmp_path / "in.zarr")).identity()


def test_names_may_contain_colons(tmp_path):
    values = numbers(5, 6, 7)
    hdf5(tmp_path / "12:30.h5", raw=(values, None))
    for location in ("12:30.h5", "12:30.h5:raw"):
        assert np.array_equal(everything(tmp_path / location).values[0], values)


# Refusals.


def test_a_missing_volume_is_refused(tmp_path):
    (tmp_path / "other.zarr").mkdir()
    assert refusal(tmp_path / "in.zarr") == f"{tmp_path}/in.zarr isn't there: {tmp_path} holds other.zarr"
    assert refusal(tmp_path / "a" / "in.h5") == f"{tmp_path}/a/in.h5 isn't there: {tmp_path} holds other.zarr"
    assert refusal(tmp_path / "other.zarr" / "0").endswith("other.zarr holds nothing")


def test_folders_without_metadata_are_refused(tmp_path):
    assert refusal(tmp_path) == f"{tmp_path} is an empty folder"
    (tmp_path / "notes.txt").write_text("?")
    files = "zarr.json, .zarray, .zgroup or attributes.json"
    assert refusal(tmp_path) == f"{tmp_path} is a folder without {files}: it is neither zarr nor N5"
    zarr2(tmp_path / "a.zarr", numbers(5, 6, 7), (4, 4, 4))
    n5(tmp_path / "b.n5" / "raw", numbers(5, 6, 7), (4, 4, 4))
    assert refusal(tmp_path) == f"{tmp_path} is a folder with several arrays: name one in it, a.zarr, b.n5/raw"


def test_long_lists_are_cut(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02}").mkdir()
    assert refusal(tmp_path / "in.zarr").endswith("holds 00, 01, 02, 03, 04, 05, 06, 07, 08, 09 and 2 more")


def test_files_of_other_kinds_are_refused(tmp_path):
    file = tmp_path / "in.tif"
    file.write_bytes(b"II*\x00")
    advice = "convert it to OME-Zarr (with bioformats2raw, for instance)"
    assert refusal(file) == f"{file} is a file of a kind that isn't read here: {advice}"


def test_names_that_are_too_long_are_refused(tmp_path):
    name = tmp_path / ("long" * 100)
    assert refusal(name) == f"can't look at {name}: file name too long"


def test_unknown_schemes_are_refused():
    supported = "supported are http, https, s3, gs, file"
    assert refusal("gopher://host/in.zarr") == f"gopher://host/in.zarr begins with gopher://; {supported}"


def test_invalid_settings_are_refused(tmp_path):
    zarr2(tmp_path / "in.zarr", numbers(5, 6, 7), (4, 4, 4))
    assert refusal(tmp_path / "in.zarr", BadSetting, threads=0).startswith(
        "0 threads with 0 bytes of cache make no sense"
    )
    assert "with -1 bytes" in refusal(tmp_path / "in.zarr", BadSetting, cache_bytes=-1)


@pytest.mark.parametrize(("package", "name"), [("tensorstore", "in.zarr"), ("h5py", "in.h5")])
def test_missing_packages_are_named(tmp_path, monkeypatch, package, name):
    zarr2(tmp_path / "in.zarr", numbers(5, 6, 7), (4, 4, 4))
    hdf5(tmp_path / "in.h5", raw=(numbers(5, 6, 7), None))
    monkeypatch.setitem(sys.modules, package, None)
    message = f"volumes need {package}, which isn't installed: pip install 'rigdyno[volume]'"
    assert refusal(tmp_path / name, MissingExtra) == message


# Identity.


def test_the_same_volume_has_the_same_identity(tmp_path):
    first = zarr2(tmp_path / "in.zarr", numbers(1, 2, 5, 6, 7), (1, 1, 4, 4, 4))
    identity = open_volume(str(first)).identity()
    assert len(identity) == 64
    assert identity == open_volume(f"{first}/").identity() == open_volume(str(first), at={"t": 0}).identity()


@pytest.mark.parametrize("writer", [zarr2, zarr3, n5])
def test_another_volume_has_another_identity(tmp_path, writer):
    folder = writer(tmp_path / "in", numbers(2, 5, 6, 7), (1, 4, 4, 4))
    seen = {open_volume(str(folder)).identity(), open_volume(str(folder), at={"c": 1}).identity()}
    folder.rename(tmp_path / "moved")
    seen.add(open_volume(str(tmp_path / "moved")).identity())
    for values, chunks in (
        (numbers(2, 5, 6, 8), (1, 4, 4, 4)),
        (numbers(2, 5, 6, 7, dtype=np.uint8), (1, 4, 4, 4)),
        (numbers(2, 5, 6, 7), (1, 5, 4, 4)),
    ):
        folder = writer(tmp_path / "in", values, chunks)
        seen.add(open_volume(str(folder)).identity())
        folder.rename(tmp_path / f"{len(seen)}")
    assert len(seen) == 6


def test_a_repaired_file_has_the_same_identity(tmp_path):
    """A repaired file is the same volume, so its damaged blocks are tried again."""
    file = hdf5(tmp_path / "in.h5", a=(numbers(5, 6, 7), None), b=(numbers(5, 6, 7), None))
    identity = open_volume(f"{file}/a").identity()
    assert identity == open_volume(f"{file}:a").identity() != open_volume(f"{file}/b").identity()
    with h5py.File(file, "r+") as content:
        content["a"][0, 0, 0] = 0
    assert open_volume(f"{file}/a").identity() == identity
    assert hdf5(tmp_path / "other.h5", a=(numbers(5, 6, 7), None)) != file
    assert open_volume(f"{tmp_path / 'other.h5'}/a").identity() != identity
