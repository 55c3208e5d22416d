"""Compare expanded weights with the definition: every layer with them, frozen and shared layers, and empty batches."""

import pytest
import torch
from dp_naive import assert_close, engine_sum, naive_gradients, naive_sum
from torch import nn

from rigdyno.engines.dp import BadSetting, PrivacyEngine
from rigdyno.engines.dp.layers.common.expanded import EXPANDED, ExpandedConvolution
from rigdyno.engines.dp.layers.conv import Rule as ConvolutionRule

CLASSES, SAMPLES, BOUND = 4, 5, 0.05
pytestmark = pytest.mark.usefixtures("one_thread")


class Shared(nn.Module):
    """A network that uses one layer twice."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, rows):
        return self.last(torch.tanh(self.inner(torch.tanh(self.inner(rows)))))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.last = nn.LayerNorm(6), nn.Linear(6, 5), nn.Linear(5, CLASSES, bias=False)

    def forward(self, tokens):
        return self.last(torch.relu(self.inner(self.norm(tokens))).mean(dim=1))


def head(features):
    return nn.Flatten(), nn.Linear(features, CLASSES)


NETWORKS = {
    "1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, stride=2), nn.Tanh(), *head(16)), (3, 9)),
    "2d, grouped, dilated": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, dilation=2), nn.Tanh(), *head(24)),
        (4, 6, 6),
    ),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Tanh(), *head(64)), (4, 4, 4)),
    "reflected": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Tanh(), *head(48)),
        (2, 4, 4),
    ),
    "same": (lambda: nn.Sequential(nn.Conv2d(2, 3, 4, padding="same"), nn.Tanh(), *head(48)), (2, 4, 4)),
    "3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2), nn.Tanh(), *head(24)), (2, 3, 3, 3)),
    "norms": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), *head(16)), (2, 4, 4)),
    "norm without scale": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.SiLU(), *head(16)),
        (2, 4, 4),
    ),
    "tokens": (Tokens, (7, 6)),
    "shared": (Shared, (12,)),
}


def made(name):
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    return build(), torch.randn(SAMPLES, *shape), torch.randint(CLASSES, (SAMPLES,))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("pieces", [1, 2])
def test_the_clipped_sum_matches_the_definition(name, pieces):
    network, inputs, answers = made(name)
    expected = naive_sum(naive_gradients(network, (inputs,), answers), BOUND)
    assert_close(engine_sum(network, (inputs,), answers, BOUND, expanded=True, pieces=pieces), expected)


def test_frozen_parameters_are_left_out():
    network, inputs, answers = made("norms")
    network[0].weight.requires_grad_(False)
    network[1].bias.requires_grad_(False)
    expected = naive_sum(naive_gradients(network, (inputs,), answers), BOUND)
    assert_close(engine_sum(network, (inputs,), answers, BOUND, expanded=True), expected)


def test_expanded_weights_exclude_kernels():
    assert EXPANDED[ConvolutionRule] is ExpandedConvolution
    assert PrivacyEngine(expanded=True).kernels is False
    with pytest.raises(BadSetting, match="leave out kernels or expanded"):
        PrivacyEngine(expanded=True, kernels=True)
