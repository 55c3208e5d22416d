"""Tests of mnist_cnn: the network's size, its data and its training."""

import gzip
import struct
from itertools import islice

import numpy as np
import pytest
import torch

from rigdyno.arrangements.common.loops import SingleRank
from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, WorkerPlace
from rigdyno.updates.plain import Plain
from rigdyno.workloads import mnist_cnn
from rigdyno.workloads.common.torch import shuffled_batches
from rigdyno.workloads.datasets import mnist
from rigdyno.workloads.datasets.labelled import ImageSet
from rigdyno.workloads.mnist_cnn import MnistCnn

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    whole = mnist.make_synthetic_images
    monkeypatch.setattr(mnist, "make_synthetic_images", lambda seed: whole(seed, train=500, test=200))


def test_the_network_has_21840_parameters():
    model = MnistCnn().build(WorkerPlace(device="cpu")).model
    assert sum(parameter.numel() for parameter in model.parameters()) == 21_840
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_training_learns_in_60_steps():
    training = MnistCnn(learning_rate=0.1).build(WorkerPlace(device="cpu"))
    step = Plain().prepare(training, WorkerPlace(device="cpu"), SingleRank())
    before = training.accuracy()
    losses = [float(step(*batch)) for batch in islice(training.batches, 60)]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:5])
    assert training.accuracy() > max(0.5, before)
    assert training.model.training  # computing the accuracy must not leave it in eval mode


def test_an_epoch_has_every_image_once_and_a_smaller_last_batch():
    train, _ = mnist.make_synthetic_images(0)
    batches = shuffled_batches(mnist_cnn._make_samples(train, 64, "cpu"), seed=0)
    epoch = list(islice(batches, 8))
    assert [len(targets) for _, targets in epoch] == [64] * 7 + [52]
    assert sorted(torch.cat([targets for _, targets in epoch]).tolist()) == sorted(train.labels.tolist())


def first_targets(**place):
    return next(MnistCnn().build(WorkerPlace(device="cpu", **place)).batches)[1]


def test_the_seed_decides_the_order():
    assert torch.equal(first_targets(seed=3), first_targets(seed=3))
    assert not torch.equal(first_targets(seed=3), first_targets(seed=4))


def test_ranks_share_the_images_and_start_alike():
    train, _ = mnist.make_synthetic_images(0)
    shares = [train.share(rank, 3) for rank in range(3)]
    assert [len(share) for share in shares] == [166] * 3
    assert not (set(map(bytes, shares[0].images)) & set(map(bytes, shares[1].images)))
    models = [MnistCnn().build(WorkerPlace(device="cpu", rank=rank, world_size=2)).model for rank in range(2)]
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_pixels_are_normalised_as_in_the_example():
    images = np.array([[[0, 255] * 14] * 28], dtype=np.uint8)
    pixels, labels = mnist_cnn._move_to_device(ImageSet(images, np.array([7], dtype=np.uint8)), "cpu")
    assert pixels.shape == (1, 1, 28, 28)
    assert pixels[0, 0, 0, :2].tolist() == pytest.approx([-0.1307 / 0.3081, (1 - 0.1307) / 0.3081])
    assert labels.tolist() == [7]


def test_synthetic_images_get_a_note():
    assert "synthetic images" in MnistCnn().build(WorkerPlace(device="cpu")).notes[0]


def test_a_folder_without_mnist_is_refused(tmp_path):
    assert MnistCnn().refuses(None, "cpu") is None
    assert "has no train-images-idx3-ubyte" in MnistCnn(data=str(tmp_path)).refuses(None, "cpu")


def test_fashion_is_read_from_the_debian_folder_and_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "FASHION_FOLDER", tmp_path)
    assert "apt install dataset-fashion-mnist" in MnistCnn(data="fashion").refuses(None, "cpu")
    for prefix, count in (("train", 70), ("t10k", 20)):
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + bytes(count * 28 * 28)
        labels = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(count)
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    assert MnistCnn(data="fashion").refuses(None, "cpu") is None
    built = MnistCnn(data="fashion").build(WorkerPlace(device="cpu"))
    assert built.samples.count == 70
    assert "Fashion-MNIST" in built.notes
    assert not any("synthetic" in note for note in built.notes)


def test_a_batch_larger_than_the_data_skips_the_cell():
    with pytest.raises(CannotRun, match="batch_size 400 is larger than the 250 images of a rank"):
        MnistCnn(batch_size=400).build(WorkerPlace(device="cpu", world_size=2))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"learning_rate": -0.1},
        {"learning_rate": float("nan")},
        {"learning_rate": "fast"},
        {"momentum": 1.0},
        {"momentum": True},
        {"data": 5},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(BadValue, match=next(iter(options))):
        MnistCnn(**options)
