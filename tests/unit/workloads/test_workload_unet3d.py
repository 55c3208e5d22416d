"""Tests of unet3d: published sizes, refusals, training, and running the trained weights."""

import h5py
import numpy as np
import pytest
import torch

from rigdyno import catalogue
from rigdyno.arrangements.single import Single
from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, TrainingJob, WorkerPlace
from rigdyno.engines.blockwise.boxes import Box, whole_box
from rigdyno.engines.blockwise.network.loading import load_model, read_weights
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.segmentation.synthetic import write_synthetic
from rigdyno.updates.plain import Plain
from rigdyno.workloads.networks.unet import ARCHITECTURES
from rigdyno.workloads.unet3d import Unet3d

HERE = WorkerPlace(device="cpu")
SMALL = {"features": "4,8", "patch": "4x18x18", "workers": 0, "learning_rate": 0.01}


class CountingMeter:
    """A meter that stops after a number of steps."""

    def __init__(self, steps):
        self.left = steps

    def more(self):
        self.left -= 1
        return self.left >= 0

    def step(self, items=1.0, kind=0):
        assert items == 1


def trained(steps, **options):
    workload = Unet3d(**{**SMALL, **options})
    return Single().run(TrainingJob(workload, Plain(), HERE, lambda built, ranks: CountingMeter(steps)))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_cost_formulas_match_the_network(name):
    """Compare with the network's parameters and with torch's flop counter, on a patch that every level divides."""
    from torch.utils.flop_counter import FlopCounterMode

    built = ARCHITECTURES[name]
    with torch.device("meta"):
        model = UNet3d(**built.settings).eval()
        assert built.parameters() == sum(each.numel() for each in model.parameters())
        edges = [8 * edge for edge in built.multiples]
        with FlopCounterMode(display=False) as counter:
            assert model(torch.empty(1, 1, *edges)).shape == (1, 3, *edges)
    assert counter.get_total_flops() == pytest.approx(2 * built.products_per_voxel() * np.prod(edges))


def test_published_parameters_match_a_count_by_hand():
    """27 products per pair of channels, twice per level: 12, 60, 300, 1500 down, 300, 60, 12 up with the skips."""
    pairs = [(1, 12), (12, 12), (12, 60), (60, 60), (60, 300), (300, 300), (300, 1500), (1500, 1500)]
    pairs += [(1800, 300), (300, 300), (360, 60), (60, 60), (72, 12), (12, 12)]
    wanted = sum(27 * a * b + b for a, b in pairs) + 3 * 12 + 3
    assert ARCHITECTURES["published"].parameters() == wanted == 93_658_995


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patch": "8x50x54"}, "a multiple of 1x27x27 for this network, not 8x50x54"),
        ({"patch": "8x54"}, "patch takes 3 whole numbers"),
        ({"patch": "0x54x54"}, "patch takes 3 whole numbers"),
        ({"features": "12,abc"}, "features takes whole numbers"),
        ({"network": "resnet"}, "network must be one of published, isotropic, not 'resnet'"),
        ({"background": "black"}, "background must be one of "),
        ({"workers": -1}, "workers must be a whole number of at least 0"),
        ({"held_out": 1.0}, "held_out must be a number of at least 0 and below 0.95"),
        ({"network": "isotropic", "patch": "24x48x50"}, "a multiple of 8x8x8"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(BadValue, match=words):
        Unet3d(**options)


def test_missing_files_are_refused_while_planning(tmp_path):
    def refusal(**options):
        return Unet3d(**options).refuses(None, "cpu")

    (tmp_path / "w.pt").touch()
    assert "there is no nowhere.h5" in refusal(data="nowhere.h5")
    assert refusal(labels=str(tmp_path)) == "labels need a raw volume: add --set data=FILE"
    assert "to load weights from" in refusal(weights="nowhere.pt")
    assert "won't be overwritten" in refusal(save=str(tmp_path / "w.pt"))
    assert "there is no folder" in refusal(save=str(tmp_path / "no" / "w.pt"))
    assert "saved as .pt or .safetensors" in refusal(save=str(tmp_path / "w.h5"))
    assert refusal(save=str(tmp_path / "new.pt")) is None
    assert refusal(data=f"{tmp_path}/w.pt/volumes/raw") is None


def test_training_generalises_to_held_out_patches():
    quality = trained(150)
    assert quality.last_loss < 0.8 * quality.first_loss
    assert quality.accuracy > 0.75  # chance is 0.5, as it is balanced


def test_the_isotropic_network_learns():
    quality = trained(60, network="isotropic", patch="8x24x24")
    assert quality.last_loss < quality.first_loss
    assert quality.accuracy > 0.7


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_saved_weights_load_into_the_inference_engine(ending, tmp_path):
    saved = tmp_path / f"w.{ending}"
    trained(3, save=str(saved))
    loaded = load_model("unet3d", weights=saved, channels=1)
    assert (loaded.model.channels_in, loaded.model.channels_out) == (1, 3)
    assert loaded.remarks == ()
    read = read_weights(saved)
    model = UNet3d(**read.settings).eval()
    model.load_state_dict(read.tensors)
    place, size, halo = (9, 18, 18), (3, 9, 9), loaded.model.exact_halo
    volume = torch.randn((1, 1, 21, 45, 45), generator=torch.Generator().manual_seed(0))
    box = loaded.model.read_box(size, halo).moved(place)
    assert box.within(whole_box((21, 45, 45))) == box
    with torch.inference_mode():
        wanted = model(volume)[0][(slice(None), *Box(place, (12, 27, 27)).slices())]
        answer = loaded.model.run(volume[(slice(None), slice(None), *box.slices())], size, halo)[0]
    assert float((answer - wanted).abs().max()) < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


def test_training_continues_from_weights(tmp_path):
    saved = tmp_path / "w.pt"
    first = trained(120, save=str(saved))
    again = trained(10, weights=str(saved))
    assert again.first_loss < first.first_loss
    with pytest.raises(CannotRun, match="doesn't fit the network"):
        trained(1, weights=str(saved), features="4,9")


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_a_volume_with_a_single_label_trains_without_an_accuracy(dtype, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["volumes/raw"] = np.random.default_rng(0).integers(0, 255, (6, 40, 80)).astype(np.uint8)
        file["volumes/labels/neuron_ids"] = np.full((6, 40, 80), 7, dtype)
    quality = trained(12, data=str(tmp_path / "a.h5"))
    assert quality.loss_finite
    assert quality.accuracy is None


def test_a_user_volume_is_trained_on(tmp_path):
    write_synthetic(tmp_path / "a.h5", (12, 60, 120), seed=5)
    quality = trained(100, data=str(tmp_path / "a.h5"))
    assert quality.last_loss < quality.first_loss
    assert quality.accuracy > 0.7


def test_an_unusable_volume_skips_the_cell(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["something"] = np.zeros((4, 4, 4), np.uint8)
    with pytest.raises(CannotRun, match="has no 'volumes/raw'"):
        trained(1, data=str(tmp_path / "a.h5"))
    write_synthetic(tmp_path / "b.h5", (4, 60, 60))
    with pytest.raises(CannotRun, match="a patch of 8x18x18 doesn't fit into"):
        trained(1, data=str(tmp_path / "b.h5"), patch="8x18x18")


def test_the_catalogue_has_unet3d():
    assert catalogue.load("workload", "unet3d") is Unet3d
