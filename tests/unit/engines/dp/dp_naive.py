"""The textbook definition: each sample alone through the network in float64, clipped and summed."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.dp.gradients.clipping import Clipping, ClippingNorm
from rigdyno.engines.dp.training import Wiring

Inputs = tuple[Tensor, ...]


def trained(network: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]


def naive_gradients(network: nn.Module, inputs: Inputs, answers: Tensor, loss=functional.cross_entropy) -> list[Tensor]:
    """Return the gradient of each sample, flat, in float64."""
    network = copy.deepcopy(network).double()
    parameters = [parameter for _, parameter in trained(network)]
    found = []
    for row in range(len(answers)):
        alone = [given[row : row + 1] for given in inputs]
        alone = [given.double() if given.is_floating_point() else given for given in alone]
        gradients = torch.autograd.grad(
            loss(network(*alone), answers[row : row + 1]), parameters, materialize_grads=True
        )
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return found


def naive_sum(gradients: list[Tensor], bound: float) -> Tensor:
    return sum((g * min(1.0, bound / float(g.norm())) for g in gradients), torch.zeros_like(gradients[0]))


def wired(
    network: nn.Module,
    bound: float | None,
    kernels: bool,
    reduction="mean",
    batch_first: bool = True,
    expanded: bool = False,
) -> tuple[nn.Module, Clipping]:
    network = copy.deepcopy(network)
    clipping = Clipping(trained(network), ClippingNorm(bound, reduction), kernels)
    Wiring(network, clipping, batch_first, expanded)
    return network, clipping


def engine_sum(
    network: nn.Module,
    inputs: Inputs,
    answers: Tensor,
    bound: float | None,
    kernels: bool = False,
    reduction="mean",
    pieces: int = 1,
    loss=functional.cross_entropy,
    expanded: bool = False,
) -> Tensor:
    """Return what the optimizer would get before noise, flat, in float64; computed in `pieces` micro-batches."""
    network, clipping = wired(network, bound, kernels, reduction, expanded=expanded)
    for part in range(pieces):
        rows = slice(part * len(answers) // pieces, (part + 1) * len(answers) // pieces)
        loss(network(*(given[rows] for given in inputs)), answers[rows], reduction=reduction).backward()
    clipping.take_sum()
    clipping.gradients.publish()
    return torch.cat([parameter.grad.flatten().double() for _, parameter in trained(network)])


def assert_close(found: Tensor, expected: Tensor, within: float = 3e-5) -> None:
    """Compare relative to the whole sum; the tolerance includes the margin below the clipping norm."""
    assert float((found - expected).norm()) <= within * float(expected.norm()), float(
        (found - expected).norm() / expected.norm()
    )
