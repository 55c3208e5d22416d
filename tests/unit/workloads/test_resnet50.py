"""Tests of ResNet-50, layer by layer, and of one block against an independent computation."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch

from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, WorkerPlace
from rigdyno.updates.plain import Plain
from rigdyno.workloads.common.torch import count_forward_flop
from rigdyno.workloads.networks.resnet import BLOCKS, Bottleneck, ResNet
from rigdyno.workloads.resnet50 import PARAMETERS, ResNet50

SMALL = {"batch_size": 4, "image_size": 64, "classes": 10}
HERE = WorkerPlace(device="cpu")


def test_the_number_of_parameters_is_as_published():
    assert sum(parameter.numel() for parameter in ResNet(1000).parameters()) == PARAMETERS == 25_557_032


def test_names_and_shapes_are_those_of_the_published_weights():
    """Compare with the paper's table, under torchvision's names."""
    expected = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (1000, 2048), "fc.bias": (1000,)}
    inputs = 64
    for stage, (blocks, width) in enumerate(zip(BLOCKS, (64, 128, 256, 512), strict=True), start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            expected[f"{name}.conv1.weight"] = (width, inputs, 1, 1)
            expected[f"{name}.conv2.weight"] = (width, width, 3, 3)
            expected[f"{name}.conv3.weight"] = (4 * width, width, 1, 1)
            if block == 0:
                expected[f"{name}.downsample.0.weight"] = (4 * width, inputs, 1, 1)
            inputs = 4 * width
    state = ResNet(1000).state_dict()
    assert {name: tuple(state[name].shape) for name in expected} == expected
    norms = {name.rpartition(".")[0] for name in state} - {name.rpartition(".")[0] for name in expected}
    assert all(f"{norm}.running_mean" in state for norm in norms)
    assert len(state) == len(expected) + 5 * len(norms) == 320


def test_maps_shrink_as_published():
    shapes = {}
    with torch.device("meta"):
        network = ResNet(1000).eval()
        for name in ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool", "fc"):
            getattr(network, name).register_forward_hook(
                lambda _module, _inputs, output, name=name: shapes.update({name: tuple(output.shape[1:])})
            )
        network(torch.empty(1, 3, 224, 224))
    assert shapes == {
        "conv1": (64, 112, 112),
        "maxpool": (64, 56, 56),
        "layer1": (256, 56, 56),
        "layer2": (512, 28, 28),
        "layer3": (1024, 14, 14),
        "layer4": (2048, 7, 7),
        "avgpool": (2048, 1, 1),
        "fc": (1000,),
    }


def convolution(images, weight, stride=1, padding=0):
    """Compute a convolution by its definition, in numpy."""
    padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    size = weight.shape[2]
    rows = range(0, padded.shape[2] - size + 1, stride)
    columns = range(0, padded.shape[3] - size + 1, stride)
    out = np.zeros((len(images), len(weight), len(rows), len(columns)))
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        patch = padded[:, :, row : row + size, column : column + size]
        out[:, :, i, j] = np.einsum("nchw,ochw->no", patch, weight)
    return out


def normalised(maps):
    """Normalise as in training: by the batch's mean and variance, with weight 1 and bias 0."""
    mean = maps.mean(axis=(0, 2, 3), keepdims=True)
    return (maps - mean) / np.sqrt(maps.var(axis=(0, 2, 3), keepdims=True) + 1e-5)


@pytest.mark.parametrize(("inputs", "width", "stride"), [(8, 4, 2), (16, 4, 1)])
def test_a_block_matches_its_definition(inputs, width, stride):
    torch.manual_seed(1)
    block = Bottleneck(inputs, width, stride).double().train()
    images = torch.randn(3, inputs, 6, 6, dtype=torch.float64)
    weights = {name: value.detach().numpy() for name, value in block.named_parameters()}
    x = images.numpy()
    out = np.maximum(normalised(convolution(x, weights["conv1.weight"])), 0)
    out = np.maximum(normalised(convolution(out, weights["conv2.weight"], stride, 1)), 0)
    out = normalised(convolution(out, weights["conv3.weight"]))
    kept = (
        x
        if "downsample.0.weight" not in weights
        else normalised(convolution(x, weights["downsample.0.weight"], stride))
    )
    assert block.downsample is None or stride == 2
    np.testing.assert_allclose(block(images).detach().numpy(), np.maximum(out + kept, 0), atol=1e-9)


def test_operations_are_counted_as_published():
    """ResNet-50 has 4.1 billion multiply-adds per image, two operations each."""
    assert count_forward_flop(lambda: ResNet(1000), 224) == pytest.approx(2 * 4.09e9, rel=0.01)


def losses(workload, steps):
    training = workload.build(HERE)
    step = Plain().prepare(training, HERE, None)
    return [float(step(*next(training.batches))) for _ in range(steps)]


@pytest.fixture(scope="module")
def two_losses():
    return losses(ResNet50(**SMALL), steps=2)


def test_the_same_seed_gives_the_same_losses(two_losses):
    assert losses(ResNet50(**SMALL), steps=2) == two_losses


@pytest.mark.parametrize("change", [{"channels_last": True}, {"precision": "bf16"}, {"precision": "fp16"}])
def test_layout_and_precision_do_not_change_the_loss(change, two_losses):
    assert losses(ResNet50(**SMALL, **change), steps=1) == pytest.approx(two_losses[:1], rel=0.05)


def test_weights_are_loaded(tmp_path):
    torch.manual_seed(5)
    stored = ResNet(10)
    torch.save(stored.state_dict(), tmp_path / "weights.pt")
    built = ResNet50(**SMALL, weights=str(tmp_path / "weights.pt")).build(HERE)
    assert torch.equal(built.model.fc.weight, stored.fc.weight)


class Hostile:
    def __reduce__(self):
        return (pytest.fail, ("it was executed",))


@pytest.mark.parametrize("kind", ["code", "other network", "no tensors", "cut off", "text"])
def test_files_without_weights_are_refused_in_one_line(tmp_path, kind):
    path = tmp_path / "weights.pt"
    if kind == "code":
        path.write_bytes(pickle.dumps(Hostile(), protocol=2))
    elif kind == "other network":
        torch.save(ResNet(11).state_dict(), path)
    elif kind == "no tensors":
        torch.save([1, 2], path)
    elif kind == "cut off":
        torch.save(ResNet(10).state_dict(), path)
        path.write_bytes(path.read_bytes()[:1000])
    else:
        path.write_text("weights")
    with pytest.raises(CannotRun) as refusal:
        ResNet50(**SMALL, weights=str(path)).build(HERE)
    assert str(refusal.value).startswith(f"{path} has no weights for this network: ")
    assert "\n" not in str(refusal.value)


def test_missing_weights_and_tf32_on_a_cpu_are_refused():
    assert "NVIDIA" in ResNet50(precision="tf32").refuses(None, "cpu")
    assert ResNet50(precision="tf32").refuses(None, "cuda:0") is None
    assert "no file" in ResNet50(weights="missing.pt").refuses(None, "cpu")


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"image_size": 31},
        {"classes": 1},
        {"precision": "fp12"},
        {"channels_last": "yes"},
        {"compiled": 1},
        {"weight_decay": -1.0},
        {"weights": 3},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(BadValue, match=next(iter(options))):
        ResNet50(**options)
