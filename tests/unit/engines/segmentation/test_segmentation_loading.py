"""Loader processes make the same patches in any number, and a killed one is an error."""

import os
import signal
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting
from rigdyno.engines.segmentation import loading
from rigdyno.engines.segmentation.affinities import compute_affinities
from rigdyno.engines.segmentation.augmenting import Augmentation
from rigdyno.engines.segmentation.loading import Loader, LoaderLost, PatchSource
from rigdyno.engines.segmentation.pairs import InMemory, make_synthetic_pair

PATCH = (3, 8, 8)


@pytest.fixture(scope="module")
def pair():
    return make_synthetic_pair((8, 40, 40), seed=1)


def take_batches(loader, count):
    batches = iter(loader)
    found = [next(batches) for _ in range(count)]
    loader.close()
    return found


def test_the_patches_do_not_depend_on_the_number_of_processes(pair):
    patches = PatchSource(pair, whole_box(pair.shape), PATCH, seed=3, augmentation=Augmentation(sigma=5.0))
    alone = take_batches(Loader(patches, batch_size=2, workers=0), 4)
    shared = take_batches(Loader(patches, batch_size=2, workers=2), 4)
    for (raw, targets), (same_raw, same_targets) in zip(alone, shared, strict=True):
        assert raw.shape == (2, 1, *PATCH)
        assert targets.shape == (2, 3, *PATCH)
        assert torch.equal(raw, same_raw)
        assert torch.equal(targets, same_targets)


def test_ranks_and_seeds_have_different_patches(pair):
    made = [
        PatchSource(pair, whole_box(pair.shape), PATCH, seed, rank).patch_number(0)
        for seed in (0, 1)
        for rank in (0, 1)
    ]
    assert len({raw.numpy().tobytes() for raw, _ in made}) == 4


def test_patches_stay_in_their_part():
    """Every voxel outside the part is marked, and none of them appears in a patch."""
    raw = np.zeros((4, 20, 20), np.float32)
    raw[:, :, 13:] = 1.0
    pair = InMemory(raw, np.ones(raw.shape, np.uint8))
    patches = PatchSource(pair, Box((0, 0, 0), (4, 20, 13)), (4, 8, 8))
    made = [patches.patch_number(number)[0] for number in range(200)]
    darkest = pair.read(whole_box(pair.shape))[0].min()
    assert all(bool((each == float(darkest)).all()) for each in made)


def test_targets_are_the_affinities_of_the_labels(pair):
    raw, targets = PatchSource(pair, whole_box(PATCH), PATCH).patch_number(0)
    values, labels = pair.read(whole_box(PATCH))
    assert (raw[0].numpy() == values).all()
    assert (targets.numpy() == compute_affinities(labels)).all()


def test_a_patch_that_does_not_fit_is_refused(pair):
    with pytest.raises(BadSetting, match="a patch of 9x8x8 doesn't fit into the 8x40x40 voxels"):
        PatchSource(pair, whole_box(pair.shape), (9, 8, 8))


def test_too_little_shared_memory_is_reported(pair, monkeypatch):
    patches = PatchSource(pair, whole_box(pair.shape), PATCH)
    needed = Loader(patches, workers=2).needed_bytes
    assert needed >= 2 * loading.AHEAD * 7 * np.prod(PATCH)
    monkeypatch.setattr(loading.shutil, "disk_usage", lambda _: type("Usage", (), {"free": needed - 1}))
    with pytest.raises(BadSetting, match="--shm-size"):
        Loader(patches, workers=2)
    Loader(patches, workers=0)


class Unreadable(InMemory):
    def read(self, box):
        raise BadRegion(f"can't read {box}")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_volume_is_not_reported_as_a_lost_loader(workers):
    pair = Unreadable(np.zeros((4, 9, 9)), np.ones((4, 9, 9), int))
    batches = iter(Loader(PatchSource(pair, whole_box(pair.shape), PATCH), workers=workers))
    with pytest.raises(BadRegion, match="can't read"):
        next(batches)


class SelfKilled(PatchSource):
    """Patches whose loader process is killed, as the kernel does when memory runs out."""

    def patch_number(self, number):
        if number >= 5 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().patch_number(number)


def test_a_killed_loader_ends_the_training(pair, monkeypatch):
    """The interval is how long torch waits before it looks for dead loaders."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    batches = iter(Loader(SelfKilled(pair, whole_box(pair.shape), PATCH), workers=2))
    with pytest.raises(LoaderLost, match="a loader process was lost"):
        list(islice(batches, 20))
