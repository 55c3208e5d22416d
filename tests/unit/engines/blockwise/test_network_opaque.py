"""Networks with layers that aren't known: run as they are, as far as they see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from blockwise_networks import assert_close, part
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.blockwise.network.loading import Loaded, model_of
from rigdyno.engines.blockwise.network.opaque import Opaque
from rigdyno.engines.blockwise.network.understood import Understood

pytestmark = pytest.mark.usefixtures("one_thread")


def loaded_of(network: nn.Module) -> Loaded:
    torch.manual_seed(0)
    loaded = model_of(network, 1)
    assert isinstance(loaded.model, Opaque)
    assert "slower" in loaded.remarks[0]
    return loaded


def blocks_of(model: Opaque, volume: Tensor, halo: tuple[int, int, int], size: tuple[int, int, int]) -> Tensor:
    """Two blocks side by side, from a piece that has their halo around it."""
    found = []
    for x in (0, model.step[2]):
        read = model.read_box(size, halo).shape
        with torch.no_grad():
            found.append(model.run(part(volume, (0, 0, x), read), size, halo))
    return torch.cat(found, 4)


class Padded(nn.Module):
    """A convolution whose border is repeated: what it pads by isn't known here."""

    def __init__(self, kernel: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv3d(1, 2, kernel, padding=kernel // 2, padding_mode="replicate")

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))


def test_a_local_network_block_by_block():
    network = Padded()
    loaded = loaded_of(network)
    model = loaded.model
    assert "aten.pad" in loaded.remarks[0]
    assert (model.step, model.exact_halo, model.least_halo) == ((32,) * 3, (32,) * 3, (0,) * 3)
    assert model.block_dependent is None
    assert model.products_per_voxel == 2 * 27
    volume = torch.randn(1, 1, 96, 96, 128)
    with torch.no_grad():
        whole = network(volume)[:, :, 32:37, 32:62, 32:96]
    assert_close(blocks_of(model, volume, (32, 32, 32), (5, 30, 32)), whole)


def test_what_it_is_said_to_take():
    model = Opaque(Padded(), 1)
    assert model.products((32, 32, 32), (0, 0, 0)) == 54 * 32**3
    # The block, the block with its border, the answer of the convolution and of the activation: some of them at once.
    assert 5 * 4 * 32**3 <= model.peak_bytes((32, 32, 32), (0, 0, 0)) <= 8 * 4 * 32**3
    block = np.zeros((1, 32, 32, 32), np.float32)
    assert model.reference(block, (32, 32, 32), (0, 0, 0)).shape == (2, 32, 32, 32)


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(3) * 0.1


def test_a_network_that_sees_everything():
    model = loaded_of(Sums()).model
    assert model.exact_halo is None
    assert "sees the whole block" in model.block_dependent
    assert model.products_per_voxel == 1.0


class Stretched(nn.Module):
    """Corners on corners: where a voxel lies between the coarse ones depends on how long the block is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv3d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        coarse = self.body(functional.max_pool3d(x, 2))
        return functional.interpolate(coarse, scale_factor=2, mode="trilinear", align_corners=True)


def test_a_network_that_stretches_its_maps_depends_on_the_block():
    model = loaded_of(Stretched()).model
    assert "where a block begins" in model.block_dependent


class Hides(nn.Module):
    """Not-a-number doesn't get through comparisons."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv3d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body((torch.nan_to_num(x) > 0.1).float())


def test_a_network_that_hides_not_a_number():
    model = loaded_of(Hides()).model
    assert model.exact_halo == (32, 32, 32)
    assert model.block_dependent is None


class Depends(nn.Module):
    """Control flow that goes by the data can't be traced, but it can be run."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv3d(1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if x.numel() > 0 and float(x.flatten()[0]) < 1e9 else self.body(x) * 2


def test_a_network_that_cant_be_traced():
    loaded = loaded_of(Depends())
    assert "can't be traced" in loaded.remarks[0]
    model = loaded.model
    assert model.margin == (1, 1, 1)
    assert model.least_halo == model.exact_halo == (32, 32, 32)
    with pytest.raises(BadSetting, match="too small"):
        model.read_box((32, 32, 32), (0, 32, 32))


class Thirds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(functional.max_pool3d(x, 9), scale_factor=9) + functional.celu(x)


def test_a_network_of_thirds_is_cut_by_27():
    model = loaded_of(Thirds()).model
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
def test_norms_over_the_block_are_understood_and_said(norm):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv3d(1, 2, 3, padding=1), norm, nn.ReLU(), nn.MaxPool3d(2), nn.Upsample(scale_factor=2)
    )
    model = model_of(network, 1).model
    assert isinstance(model, Understood)
    assert "mean and variance" in model.block_dependent
    assert model.read_box((4, 5, 3), (4, 2, 0)).shape == (12, 10, 4)
    block = torch.randn(1, 1, 12, 10, 4)
    with torch.no_grad():
        assert_close(model.run(block, (4, 5, 3), (4, 2, 0)), network(block)[:, :, 4:8, 2:7, :3])
