"""Raw volumes with labels: synthetic ones, and stored ones in zarr, N5 and HDF5, in CREMI's layout or not."""

import pickle

import h5py
import numpy as np
import pytest
import tensorstore

from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.segmentation.affinities import CUT, SAME, compute_affinities
from rigdyno.engines.segmentation.pairs import InMemory, open_stored_pair
from rigdyno.engines.segmentation.synthetic import Endless, Synthetic, write_synthetic

SHAPE = (4, 9, 10)
INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
BOX = Box((1, 2, 3), (3, 6, 9))


def both(dtype="uint64"):
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 100, SHAPE).astype(dtype)
    if dtype == "uint64":
        labels[0, 0, 0] = 2**64 - 1
    return generator.integers(0, 255, SHAPE).astype(np.uint8), labels


def cremi(path, raw, labels, **attributes):
    with h5py.File(path, "w") as file:
        file["volumes/raw"], file["volumes/labels/neuron_ids"] = raw, labels
        for name, value in attributes.items():
            file["volumes/labels/neuron_ids"].attrs[name] = value
    return str(path)


def put(path, driver, values):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}
    options = {"dtype": values.dtype.name, "shape": values.shape[::-1] if driver == "n5" else values.shape}
    store = tensorstore.open(spec, create=True, **options).result()
    store.write(values.T if driver == "n5" else values).result()


def assert_same(pair, raw, labels, box=BOX):
    read, names = pair.read(box)
    assert (names == labels[box.slices()]).all()
    assert names.dtype == labels.dtype
    wanted = (raw[box.slices()] - raw.mean()) / raw.std()
    assert np.abs(read - wanted).max() < 0.02


@pytest.mark.parametrize("dtype", INTEGERS)
def test_labels_of_every_integer_type_are_read(dtype, tmp_path):
    raw, labels = both(dtype)
    pair = open_stored_pair(cremi(tmp_path / "a.h5", raw, labels))
    assert pair.shape == SHAPE
    assert_same(pair, raw, labels)


@pytest.mark.parametrize("driver", ["zarr", "zarr3", "n5"])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64"])
def test_zarr_and_n5_are_read(driver, dtype, tmp_path):
    raw, labels = both(dtype)
    put(tmp_path / "volumes/raw", driver, raw)
    put(tmp_path / "volumes/labels/neuron_ids", driver, labels)
    assert_same(open_stored_pair(str(tmp_path)), raw, labels)


def test_raw_and_labels_may_be_in_different_files(tmp_path):
    raw, labels = both("int16")
    put(tmp_path / "raw.zarr", "zarr3", raw)
    file = cremi(tmp_path / "a.h5", raw, labels)
    assert_same(open_stored_pair(str(tmp_path / "raw.zarr"), f"{file}/volumes/labels/neuron_ids"), raw, labels)


def test_a_pickled_pair_is_opened_again(tmp_path):
    raw, labels = both()
    assert_same(pickle.loads(pickle.dumps(open_stored_pair(cremi(tmp_path / "a.h5", raw, labels)))), raw, labels)


def test_labels_in_the_middle_of_a_padded_volume_are_aligned(tmp_path):
    raw, labels = both()
    inner = labels[1:3, 2:8, 4:9]
    pair = open_stored_pair(cremi(tmp_path / "a.h5", raw, inner, offset=[40.0, 8.0, 16.0], resolution=[40.0, 4.0, 4.0]))
    assert pair.shape == inner.shape
    values, names = pair.read(whole_box(inner.shape))
    assert (names == inner).all()
    assert np.corrcoef(values.flat, raw[1:3, 2:8, 4:9].flat)[0, 1] > 0.9999


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, "no attribute 'offset' says where"),
        ({"offset": [400.0, 0, 0], "resolution": [40.0, 4, 4]}, "at 10x0x0\\) aren't inside"),
        ({"offset": [40.0, 0, 0], "resolution": [0.0, 4, 4]}, "aren't inside"),
        ({"offset": ["a", "b", "c"]}, "aren't inside"),
    ],
)
def test_labels_outside_the_raw_volume_are_refused(attributes, words, tmp_path):
    raw, labels = both()
    with pytest.raises(BadVolume, match=words):
        open_stored_pair(cremi(tmp_path / "a.h5", raw, labels[1:3], **attributes))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_labels_that_are_not_integers_are_refused(dtype, tmp_path):
    raw, labels = both()
    with pytest.raises(BadVolume, match=f"holds {dtype}, and uint8, uint16"):
        open_stored_pair(cremi(tmp_path / "a.h5", raw, labels.astype(dtype)))


def test_a_file_without_cremis_layout_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = both()[0]
    with pytest.raises(BadVolume, match="name one of those in it, raw"):
        open_stored_pair(str(tmp_path / "a.h5"))


class TestSynthetic:
    def test_the_seed_determines_the_volume(self):
        (raw, labels), (again, _), (other, _) = (Synthetic((12, 60, 60), seed).both for seed in (1, 1, 2))
        assert raw.dtype == np.uint8
        assert labels.min() > 0
        assert (raw == again).all()
        assert (raw != other).any()

    def test_membranes_are_dark(self):
        raw, labels = Synthetic((16, 96, 96)).both
        x = compute_affinities(labels)[2]
        assert raw[x == CUT].mean() < 0.7 * raw[x == SAME].mean()

    def test_each_voxel_belongs_to_the_nearest_centre(self):
        """Compare with all centres and their images beyond the faces, not only those of neighbouring boxes."""
        shape = (24, 72, 72)
        volume = Synthetic(shape, seed=4)
        centres = volume._draw_centres(np.random.default_rng([4, *shape])).reshape(-1, 3)
        turns = np.stack(np.meshgrid(*[(-1, 0, 1)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
        images = (centres + turns * np.array(shape)).reshape(-1, 3) * [3, 1, 1]
        _, labels = volume.both
        places = np.stack(np.meshgrid(*map(np.arange, labels.shape), indexing="ij"), -1).reshape(-1, 3) * [3, 1, 1]
        some = np.random.default_rng(0).choice(len(places), 3000)
        nearest = ((places[some][:, None] - images) ** 2).sum(-1).argmin(1)
        assert (nearest % len(centres) + 1 == labels.flat[some]).mean() > 0.999

    def test_an_endless_volume_is_always_the_same(self):
        piece = Synthetic((9, 40, 50))
        volume = Endless((30, 100, 120), piece)
        everything = volume.read(whole_box(volume.shape)).values[0]
        box = Box((3, 7, 11), (21, 93, 118))
        again = Endless((30, 100, 120), piece)
        assert (again.read(box).values[0] == everything[box.slices()]).all()
        first, other = everything[:9, :40, :50], everything[9:18, 40:80, 50:100]
        assert (first != other).mean() > 0.5
        values = [np.sort(each, axis=None) for each in (first, other, piece.both[0])]
        assert (values[0] == values[2]).all()  # the same cells in other positions
        assert (values[1] == values[2]).all()

    def test_a_synthetic_volume_is_written_in_cremis_layout(self, tmp_path):
        write_synthetic(tmp_path / "a.h5", (9, 40, 50), seed=3)
        assert_same(
            open_stored_pair(str(tmp_path / "a.h5")), *map(np.asarray, _with_uint64(Synthetic((9, 40, 50), 3).both))
        )
        with pytest.raises(FileExistsError):
            write_synthetic(tmp_path / "a.h5")


def _with_uint64(both):
    raw, labels = both
    return raw, labels.astype(np.uint64)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_in_memory_labels_keep_their_type(dtype):
    raw, labels = both(dtype)
    assert_same(InMemory(raw, labels), raw, labels)
