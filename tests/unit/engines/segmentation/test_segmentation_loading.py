"""Patches that loader processes make: the same ones however many there are, and an error where one is killed."""

import os
import signal
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from rigdyno.engines.blockwise.boxes import Box, whole
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting
from rigdyno.engines.segmentation import loading
from rigdyno.engines.segmentation.affinities import affinities
from rigdyno.engines.segmentation.augmenting import Augmentation
from rigdyno.engines.segmentation.loading import Loader, LoaderLost, Patches
from rigdyno.engines.segmentation.pairs import InMemory, synthetic

PATCH = (3, 8, 8)


@pytest.fixture(scope="module")
def pair():
    return synthetic((8, 40, 40), seed=1)


def taken(loader, count):
    batches = iter(loader)
    found = [next(batches) for _ in range(count)]
    loader.close()
    return found


def test_the_patches_do_not_depend_on_the_number_of_processes(pair):
    patches = Patches(pair, whole(pair.shape), PATCH, seed=3, augmentation=Augmentation(sigma=5.0))
    alone = taken(Loader(patches, batch_size=2, workers=0), 4)
    shared = taken(Loader(patches, batch_size=2, workers=2), 4)
    for (raw, targets), (same_raw, same_targets) in zip(alone, shared, strict=True):
        assert raw.shape == (2, 1, *PATCH)
        assert targets.shape == (2, 3, *PATCH)
        assert torch.equal(raw, same_raw)
        assert torch.equal(targets, same_targets)


def test_ranks_and_seeds_have_patches_of_their_own(pair):
    made = [Patches(pair, whole(pair.shape), PATCH, seed, rank).patch_number(0) for seed in (0, 1) for rank in (0, 1)]
    assert len({raw.numpy().tobytes() for raw, _ in made}) == 4


def test_patches_stay_in_their_part():
    """What is held out is never trained on: every voxel there is marked."""
    raw = np.zeros((4, 20, 20), np.float32)
    raw[:, :, 13:] = 1.0
    pair = InMemory(raw, np.ones(raw.shape, np.uint8))
    patches = Patches(pair, Box((0, 0, 0), (4, 20, 13)), (4, 8, 8))
    made = [patches.patch_number(number)[0] for number in range(200)]
    darkest = pair.read(whole(pair.shape))[0].min()
    assert all(bool((each == float(darkest)).all()) for each in made)


def test_targets_are_the_affinities_of_the_labels(pair):
    raw, targets = Patches(pair, whole(PATCH), PATCH).patch_number(0)
    values, labels = pair.read(whole(PATCH))
    assert (raw[0].numpy() == values).all()
    assert (targets.numpy() == affinities(labels)).all()


def test_a_patch_that_does_not_fit_is_refused(pair):
    with pytest.raises(BadSetting, match="a patch of 9x8x8 doesn't fit into the 8x40x40 voxels"):
        Patches(pair, whole(pair.shape), (9, 8, 8))


def test_too_little_shared_memory_is_said(pair, monkeypatch):
    patches = Patches(pair, whole(pair.shape), PATCH)
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
def test_a_volume_that_can_not_be_read_is_named_not_called_lost(workers):
    pair = Unreadable(np.zeros((4, 9, 9)), np.ones((4, 9, 9), int))
    batches = iter(Loader(Patches(pair, whole(pair.shape), PATCH), workers=workers))
    with pytest.raises(BadRegion, match="can't read"):
        next(batches)


class SelfKilled(Patches):
    """As the kernel does where memory runs out."""

    def patch_number(self, number):
        if number >= 5 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().patch_number(number)


def test_a_loader_that_is_killed_in_the_middle_ends_the_training(pair, monkeypatch):
    """torch waits this long for the other loader, which a dead one may have left locked."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    batches = iter(Loader(SelfKilled(pair, whole(pair.shape), PATCH), workers=2))
    with pytest.raises(LoaderLost, match="a loader process was lost"):
        list(islice(batches, 20))
