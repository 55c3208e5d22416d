"""Networks with unknown layers are run unchanged, with a measured receptive field."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from blockwise_networks import assert_close, part
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.blockwise.network.loading import Loaded, make_model
from rigdyno.engines.blockwise.network.opaque import Opaque
from rigdyno.engines.blockwise.network.understood import Understood

pytestmark = pytest.mark.usefixtures("one_thread")


def load_opaque(network: nn.Module) -> Loaded:
    torch.manual_seed(0)
    loaded = make_model(network, 1)
    assert isinstance(loaded.model, Opaque)
    assert "slower" in loaded.remarks[0]
    return loaded


def predict_blocks(model: Opaque, volume: Tensor, halo: tuple[int, int, int], size: tuple[int, int, int]) -> Tensor:
    """Predict two adjacent blocks from a volume that includes their halo."""
    found = []
    for x in (0, model.step[2]):
        read = model.read_box(size, halo).shape
        with torch.no_grad():
            found.append(model.run(part(volume, (0, 0, x), read), size, halo))
    return torch.cat(found, 4)


class Padded(nn.Module):
    """A convolution that repeats its border, which is a padding mode that the engine doesn't know."""

    def __init__(self, kernel: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv3d(1, 2, kernel, padding=kernel // 2, padding_mode="replicate")

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))


def test_a_local_network_gives_the_same_block_by_block():
    network = Padded()
    loaded = load_opaque(network)
    model = loaded.model
    assert "aten.pad" in loaded.remarks[0]
    assert (model.step, model.exact_halo, model.least_halo) == ((32,) * 3, (32,) * 3, (0,) * 3)
    assert model.block_dependent is None
    assert model.products_per_voxel == 2 * 27
    volume = torch.randn(1, 1, 96, 96, 128)
    with torch.no_grad():
        whole = network(volume)[:, :, 32:37, 32:62, 32:96]
    assert_close(predict_blocks(model, volume, (32, 32, 32), (5, 30, 32)), whole)


def test_costs_are_measured():
    model = Opaque(Padded(), 1)
    assert model.products((32, 32, 32), (0, 0, 0)) == 54 * 32**3
    # The block, the block with its border, the outputs of convolution and activation: some of them live at once.
    assert 5 * 4 * 32**3 <= model.peak_bytes((32, 32, 32), (0, 0, 0)) <= 8 * 4 * 32**3
    block = np.zeros((1, 32, 32, 32), np.float32)
    assert model.predict_reference(block, (32, 32, 32), (0, 0, 0)).shape == (2, 32, 32, 32)


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(3) * 0.1


def test_a_network_that_sees_the_whole_block_has_no_exact_halo():
    model = load_opaque(Sums()).model
    assert model.exact_halo is None
    assert "sees the whole block" in model.block_dependent
    assert model.products_per_voxel == 1.0


class Stretched(nn.Module):
    """A network with aligned corners: the positions of voxels between coarse ones depend on the block's length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv3d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        coarse = self.body(functional.max_pool3d(x, 2))
        return functional.interpolate(coarse, scale_factor=2, mode="trilinear", align_corners=True)


def test_a_network_that_stretches_its_maps_depends_on_the_block():
    model = load_opaque(Stretched()).model
    assert "where a block begins" in model.block_dependent


class Hides(nn.Module):
    """A network with a comparison, which NaN doesn't pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv3d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body((torch.nan_to_num(x) > 0.1).float())


def test_a_network_that_hides_nan_is_measured_by_other_values():
    model = load_opaque(Hides()).model
    assert model.exact_halo == (32, 32, 32)
    assert model.block_dependent is None


class Depends(nn.Module):
    """A network whose control flow depends on the data: it can't be traced, but it can be run."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv3d(1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if x.numel() > 0 and float(x.flatten()[0]) < 1e9 else self.body(x) * 2


def test_a_network_that_cant_be_traced_is_run_as_it_is():
    loaded = load_opaque(Depends())
    assert "can't be traced" in loaded.remarks[0]
    model = loaded.model
    assert model.margin == (1, 1, 1)
    assert model.least_halo == model.exact_halo == (32, 32, 32)
    with pytest.raises(BadSetting, match="too small"):
        model.read_box((32, 32, 32), (0, 32, 32))


class Thirds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(functional.max_pool3d(x, 9), scale_factor=9) + functional.celu(x)


def test_a_network_of_thirds_has_a_step_of_27():
    model = load_opaque(Thirds()).model
    assert model.step == (27, 27, 27)
    assert model.block_dependent is None
    assert model.exact_halo == (0, 0, 0)


class SumsTwice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(2).cumsum(3)


def test_identity_changes_with_what_forward_does():
    networks = [type("Net", (kind,), {})() for kind in (Sums, SumsTwice)]
    assert repr(networks[0]) == repr(networks[1])
    assert Opaque(networks[0], 1).identity() != Opaque(networks[1], 1).identity()


def test_identity_changes_with_any_weight():
    network = Padded()
    model = Opaque(network, 1)
    first = model.identity()
    with torch.no_grad():
        network.body.bias += 1
    assert model.identity() != first


@pytest.mark.parametrize("norm", [nn.InstanceNorm3d(2), nn.GroupNorm(1, 2)])
def test_norms_over_the_block_are_understood_with_a_remark(norm):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv3d(1, 2, 3, padding=1), norm, nn.ReLU(), nn.MaxPool3d(2), nn.Upsample(scale_factor=2)
    )
    model = make_model(network, 1).model
    assert isinstance(model, Understood)
    assert "mean and variance" in model.block_dependent
    assert model.read_box((4, 5, 3), (4, 2, 0)).shape == (12, 10, 4)
    block = torch.randn(1, 1, 12, 10, 4)
    with torch.no_grad():
        assert_close(model.run(block, (4, 5, 3), (4, 2, 0)), network(block)[:, :, 4:8, 2:7, :3])
