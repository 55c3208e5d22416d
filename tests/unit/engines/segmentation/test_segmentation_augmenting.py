"""Elastic deformation, compared with scipy, and raw values that stay with their labels."""

import numpy as np
import pytest
from scipy import ndimage

from rigdyno.engines.segmentation.augmenting import (
    NO_AUGMENTATION,
    Augmentation,
    deform,
    deform_labels,
    make_elastic_field,
)

SHAPES = [(3, 40, 40), (2, 17, 33), (4, 1, 9), (1, 5, 1)]


@pytest.mark.parametrize(("shape", "sigma"), [((64, 48), 5.0), ((30, 30), 50.0), ((9, 40), 0.7)])
def test_the_field_is_a_gaussian_filter_of_noise(shape, sigma):
    field = make_elastic_field(shape, 2000.0, sigma, np.random.default_rng(3))
    noise = np.random.default_rng(3).uniform(-1, 1, (2, *shape)).astype(np.float32)
    wanted = [2000 * ndimage.gaussian_filter(each, sigma, mode="constant", truncate=4.0) for each in noise]
    assert np.abs(field - wanted).max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("shape", SHAPES)
def test_slices_are_interpolated_as_scipy_does(shape):
    generator = np.random.default_rng(5)
    raw = generator.standard_normal(shape).astype(np.float32)
    field = generator.uniform(-60, 60, (2, *shape[1:])).astype(np.float32)  # far beyond the faces
    y, x = np.meshgrid(*map(np.arange, shape[1:]), indexing="ij")
    places = [y + field[0].astype(float), x + field[1].astype(float)]
    wanted = [ndimage.map_coordinates(image, places, order=1, mode="mirror") for image in raw]
    assert np.abs(deform(raw, field) - wanted).max() < 1e-3


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64"])
def test_labels_are_deformed_to_the_nearest_as_scipy_does(dtype):
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 100, (3, 20, 30)).astype(dtype)
    field = generator.uniform(-40, 40, (2, 20, 30)).astype(np.float32)
    y, x = np.meshgrid(np.arange(20), np.arange(30), indexing="ij")
    places = [y + field[0].astype(float), x + field[1].astype(float)]
    wanted = [ndimage.map_coordinates(image, places, order=0, mode="mirror") for image in labels]
    moved = deform_labels(labels, field)
    assert moved.dtype == labels.dtype
    assert (moved == wanted).mean() > 0.999  # a position halfway between two voxels may be rounded either way


@pytest.mark.parametrize("seed", range(12))
def test_raw_and_labels_stay_together(seed):
    """Raw values and the digits of the labels encode where a voxel came from."""
    z, y, x = np.meshgrid(np.arange(4), np.arange(30), np.arange(30), indexing="ij")
    labels = 10_000 * z + 100 * y + x + 1
    for number, axis in enumerate((z, y, x)):
        raw, moved = Augmentation(alpha=300.0, sigma=8.0).apply(
            axis.astype(np.float32), labels, np.random.default_rng(seed)
        )
        named = [(moved - 1) // 10_000, (moved - 1) // 100 % 100, (moved - 1) % 100][number]
        assert raw.shape == moved.shape == labels.shape
        assert np.abs(raw - named).max() <= 0.51  # the nearest voxel is at most half a voxel away


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 8, 12), (1, 1, 1)])
def test_flips_and_turns_reach_every_place_and_change_no_value(shape):
    raw = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    generator = np.random.default_rng(0)
    seen = [Augmentation(alpha=0).apply(raw, raw.astype(int), generator) for _ in range(60)]
    assert all(sorted(each.flat) == sorted(raw.flat) and each.shape == shape for each, _ in seen)
    assert all((each == labels).all() for each, labels in seen)
    places = {each.tobytes() for each, _ in seen}
    assert len(places) == {(3, 8, 8): 16, (3, 8, 12): 8, (1, 1, 1): 1}[shape]


def test_no_augmentation_changes_nothing():
    raw = np.random.default_rng(0).random((2, 3, 4), np.float32)
    moved, labels = NO_AUGMENTATION.apply(raw, raw > 0.5, np.random.default_rng(0))
    assert (moved == raw).all()
    assert (labels == (raw > 0.5)).all()
