"""Tests of EfficientNet-B0, layer by layer, and of its workload."""

from __future__ import annotations

import pickle
from itertools import islice

import pytest
import torch
from torch import nn

from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, WorkerPlace
from rigdyno.updates.plain import Plain
from rigdyno.workloads.common.torch import count_forward_flop
from rigdyno.workloads.datasets import cifar
from rigdyno.workloads.efficientnet_cifar100 import PARAMETERS, EfficientNetCifar100
from rigdyno.workloads.networks.efficientnet import STAGES, EfficientNetB0, MBConv, SqueezeExcitation, StochasticDepth

HERE = WorkerPlace(device="cpu")


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr(cifar, "TRAIN_IMAGES", 64)


def test_the_number_of_parameters_is_as_published():
    assert sum(parameter.numel() for parameter in EfficientNetB0(1000).parameters()) == PARAMETERS == 5_288_548


def expected_shapes(classes):
    """Return the shapes of the paper's table, under torchvision's names."""
    shapes = {"features.0.0.weight": (32, 3, 3, 3), "features.8.0.weight": (1280, 320, 1, 1)}
    norms = {"features.0.1": 32, "features.8.1": 1280}
    inputs = 32
    for stage, (expansion, kernel, _, outputs, blocks) in enumerate(STAGES, start=1):
        for block in range(blocks):
            name, wide, at = f"features.{stage}.{block}.block", expansion * inputs, 0
            if expansion > 1:
                shapes[f"{name}.0.0.weight"], norms[f"{name}.0.1"], at = (wide, inputs, 1, 1), wide, 1
            shapes[f"{name}.{at}.0.weight"], norms[f"{name}.{at}.1"] = (wide, 1, kernel, kernel), wide
            for fc, (one, other) in {"fc1": (inputs // 4, wide), "fc2": (wide, inputs // 4)}.items():
                shapes[f"{name}.{at + 1}.{fc}.weight"] = (one, other, 1, 1)
                shapes[f"{name}.{at + 1}.{fc}.bias"] = (one,)
            shapes[f"{name}.{at + 2}.0.weight"], norms[f"{name}.{at + 2}.1"] = (outputs, wide, 1, 1), outputs
            inputs = outputs
    for norm, channels in norms.items():
        shapes |= {f"{norm}.{each}": (channels,) for each in ("weight", "bias", "running_mean", "running_var")}
        shapes[f"{norm}.num_batches_tracked"] = ()
    return shapes | {"classifier.1.weight": (classes, 1280), "classifier.1.bias": (classes,)}


def test_names_and_shapes_are_those_of_the_published_weights():
    state = EfficientNetB0(1000).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == expected_shapes(1000)
    assert len(state) == 360


def test_maps_shrink_as_in_the_paper():
    shapes = []
    with torch.device("meta"):
        network = EfficientNetB0(1000).eval()
        for stage in network.features:
            stage.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:])))
        network(torch.empty(1, 3, 224, 224))
    assert shapes == [
        (32, 112, 112), (16, 112, 112), (24, 56, 56), (40, 28, 28), (80, 14, 14), (112, 14, 14), (192, 7, 7),
        (320, 7, 7), (1280, 7, 7),
    ]  # fmt: skip


def test_operations_are_counted_as_in_the_paper():
    assert count_forward_flop(lambda: EfficientNetB0(1000), 224) == pytest.approx(2 * 0.39e9, rel=0.03)


def test_squeeze_and_excitation_matches_its_definition():
    torch.manual_seed(0)
    layer, maps = SqueezeExcitation(8, 2), torch.randn(3, 8, 5, 5)
    means = maps.mean(dim=(2, 3))
    hidden = nn.functional.silu(means @ layer.fc1.weight[:, :, 0, 0].T + layer.fc1.bias)
    factors = torch.sigmoid(hidden @ layer.fc2.weight[:, :, 0, 0].T + layer.fc2.bias)
    torch.testing.assert_close(layer(maps), maps * factors[:, :, None, None])


def test_stochastic_depth_drops_whole_samples_and_keeps_the_mean():
    torch.manual_seed(0)
    layer = StochasticDepth(0.25)
    kept = layer(torch.ones(4000, 2, 3, 3))
    by_sample = kept.flatten(1)
    assert (by_sample == by_sample[:, :1]).all()
    assert by_sample[:, 0].unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert kept.mean() == pytest.approx(1, abs=0.05)
    assert torch.equal(layer.eval()(kept), kept)


def test_later_blocks_are_skipped_more_often():
    rates = [block.stochastic_depth.dropout.p for block in EfficientNetB0(10).modules() if isinstance(block, MBConv)]
    assert rates == pytest.approx([0.2 * number / 16 for number in range(16)])


def test_group_norm_replaces_every_batch_norm():
    plain, grouped = (EfficientNetCifar100(batch_size=4, norm=norm).build(HERE).model for norm in ("batch", "group"))
    replaced = {name for name, module in grouped.named_modules() if isinstance(module, nn.GroupNorm)}
    assert replaced == {name for name, module in plain.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert [each.shape for each in grouped.parameters()] == [each.shape for each in plain.parameters()]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in grouped.modules())


@pytest.mark.parametrize("options", [{}, {"norm": "group", "channels_last": True}, {"image_size": 48}])
def test_training_reduces_the_loss(options):
    training = EfficientNetCifar100(batch_size=8, learning_rate=0.003, **options).build(HERE)
    step = Plain().prepare(training, HERE, None)
    inputs, targets = next(training.batches)
    assert inputs.shape == (8, 3, options.get("image_size", 32), options.get("image_size", 32))
    assert inputs.is_contiguous(memory_format=torch.channels_last) is options.get("channels_last", False)
    losses = [float(step(inputs, targets)) for _ in range(8)]
    assert losses[-1] < losses[0]
    assert training.settled["parameters"] == PARAMETERS - 900 * 1281
    assert any("synthetic" in note for note in training.notes)


def test_a_drawn_batch_may_be_empty():
    samples = EfficientNetCifar100(batch_size=4, image_size=48).build(HERE).samples
    images, labels = samples.pick([])
    assert images.shape == (0, 3, 48, 48)
    assert len(labels) == 0


def test_a_frozen_backbone_trains_only_the_classifier():
    training = EfficientNetCifar100(batch_size=8, freeze="backbone").build(HERE)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    step = Plain().prepare(training, HERE, None)
    for inputs, targets in islice(training.batches, 2):
        step(inputs, targets)
    changed = {name for name, value in training.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"classifier.1.weight", "classifier.1.bias"}


def weights_of(classes, path):
    torch.manual_seed(5)
    torch.save(EfficientNetB0(classes).state_dict(), path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_weights_for_other_classes_load_except_the_classifier(tmp_path, norm):
    state = weights_of(1000, tmp_path / "weights.pt")
    training = EfficientNetCifar100(batch_size=4, weights=str(tmp_path / "weights.pt"), norm=norm).build(HERE)
    own = training.model.state_dict()
    assert torch.equal(own["features.4.1.block.1.0.weight"], state["features.4.1.block.1.0.weight"])
    assert own["classifier.1.weight"].shape == (100, 1280)
    assert any("1000 classes" in note for note in training.notes)


def test_weights_for_the_same_classes_load_completely(tmp_path):
    state = weights_of(100, tmp_path / "weights.pt")
    own = EfficientNetCifar100(batch_size=4, weights=str(tmp_path / "weights.pt")).build(HERE).model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in own.items())


@pytest.mark.parametrize("content", [{"fc.weight": torch.ones(3)}, {}, "nothing"])
def test_weights_of_another_network_are_refused_in_one_line(tmp_path, content):
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(CannotRun, match=r"weights\.pt has no weights for this network") as refused:
        EfficientNetCifar100(batch_size=4, weights=str(tmp_path / "weights.pt")).build(HERE)
    assert "\n" not in str(refused.value)


def test_a_weights_file_that_would_run_code_is_refused(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "weights.pt").write_bytes(pickle.dumps(Payload(ran), protocol=2))
    with pytest.raises(CannotRun, match="has no weights"):
        EfficientNetCifar100(batch_size=4, weights=str(tmp_path / "weights.pt")).build(HERE)
    assert not ran.exists()


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "layer"}, "norm must be one of "),
        ({"freeze": "all"}, "freeze must be one of "),
        ({"image_size": 4}, "image_size must be"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"test_images": -1}, "test_images must be"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(BadValue, match=words):
        EfficientNetCifar100(**options)
