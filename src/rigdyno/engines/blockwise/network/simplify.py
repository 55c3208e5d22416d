"""Simplify a network: the same function in fewer operations, exact up to rounding, also at the border of a block.

- A norm with fixed statistics (BatchNorm) is folded into the weights before it.
- An activation is fused with the layer before it.
- A convolution over a concatenation becomes a sum of convolutions.
- A 3 x 3 x 3 convolution after an upsampling by nearest neighbour sees only 2 x 2 x 2 different voxels. It becomes a
  transposed convolution of the coarse map, whose weights are sums of the original ones: 8 products instead of 27.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from rigdyno.engines.blockwise.boxes import zyx
from rigdyno.engines.blockwise.network.graph import GraphNode, Network
from rigdyno.engines.blockwise.network.layers.concatenation import Concatenation
from rigdyno.engines.blockwise.network.layers.convolution import Convolution, ConvolutionSum, Deconvolution
from rigdyno.engines.blockwise.network.layers.layer import AXES
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise
from rigdyno.engines.blockwise.network.layers.pooling import Resizing

LEAST_WIDTH = 8  # channels; kernels vectorise over channels, so narrower parts are better left together

MOST_TAPS = 1000  # of a coarse kernel; for an upsampling by more than eight, weights grow faster than products shrink

Part = Convolution | Deconvolution


def simplify_network(network: Network) -> Network:
    network = Network(network.channels_in, [GraphNode(node.layer, node.inputs) for node in network.nodes])
    for number, _ in network.enumerate_nodes():
        _absorb(network, number, _fold_affine)
        _absorb(network, number, _fold_activation)
    for number, _ in network.enumerate_nodes():
        _split_concatenation(network, number)
        _skip_upsampling(network, number)
    return network.drop_unused()


def _absorb(network: Network, number: int, into: Callable[[ConvolutionSum, Pointwise], ConvolutionSum | None]) -> None:
    """Merge this layer into the one before, unless another layer uses that one's output as well."""
    node = network.nodes[number - 1]
    if not isinstance(node.layer, Pointwise) or len(node.inputs) != 1 or not node.inputs[0]:
        return
    before = network.nodes[node.inputs[0] - 1]
    if isinstance(before.layer, ConvolutionSum) and network.find_users(node.inputs[0]) == [number]:
        together = into(before.layer, node.layer)
        if together:
            network.nodes[number - 1] = GraphNode(together, before.inputs)


def _fold_affine(weighted: ConvolutionSum, affine: Pointwise) -> ConvolutionSum | None:
    if weighted.activation or affine.affine is None:
        return None
    factor, summand = affine.affine
    parts = [_scale(part, factor) for part in weighted.parts]
    first = parts[0]
    parts[0] = dataclasses.replace(first, bias=summand if first.bias is None else first.bias + summand)
    return ConvolutionSum(tuple(parts))


def _scale(part: Part, factor: Tensor) -> Part:
    bias = None if part.bias is None else part.bias * factor
    if isinstance(part, Convolution):
        return dataclasses.replace(part, weight=part.weight * factor.view(-1, 1, 1, 1, 1), bias=bias)
    groups, inputs = part.groups, part.weight.shape[0]
    by_group = factor.view(groups, 1, -1).expand(-1, inputs // groups, -1).reshape(inputs, -1, 1, 1, 1)
    return dataclasses.replace(part, weight=part.weight * by_group, bias=bias)


def _fold_activation(weighted: ConvolutionSum, pointwise: Pointwise) -> ConvolutionSum | None:
    if weighted.activation or pointwise.activation is None:
        return None
    return ConvolutionSum(weighted.parts, pointwise.activation)


def _split_concatenation(network: Network, number: int) -> None:
    node = network.nodes[number - 1]
    if not isinstance(node.layer, ConvolutionSum) or len(node.layer.parts) != 1 or not node.inputs[0]:
        return
    (part,), before = node.layer.parts, network.nodes[node.inputs[0] - 1]
    if not isinstance(part, Convolution) or part.groups != 1 or not isinstance(before.layer, Concatenation):
        return
    if min(before.layer.widths) < LEAST_WIDTH:
        return
    weights = part.weight.split(before.layer.widths, 1)
    biases = [part.bias, *[None] * (len(weights) - 1)]
    parts = (
        dataclasses.replace(part, weight=weight.contiguous(), bias=bias)
        for weight, bias in zip(weights, biases, strict=True)
    )
    network.nodes[number - 1] = GraphNode(ConvolutionSum(tuple(parts), node.layer.activation), before.inputs)


def _skip_upsampling(network: Network, number: int) -> None:
    node = network.nodes[number - 1]
    if not isinstance(node.layer, ConvolutionSum):
        return
    parts, inputs = list(node.layer.parts), list(node.inputs)
    for place, (part, used) in enumerate(zip(parts, inputs, strict=True)):
        before = network.nodes[used - 1] if used else None
        if before and isinstance(before.layer, Resizing) and isinstance(part, Convolution):
            coarse = _make_coarse(part, before.layer)
            if coarse:
                parts[place], inputs[place] = coarse, before.inputs[0]
    network.nodes[number - 1] = GraphNode(ConvolutionSum(tuple(parts), node.layer.activation), tuple(inputs))


def _make_coarse(part: Convolution, resizing: Resizing) -> Deconvolution | None:
    simple = part.stride == part.dilation == (1, 1, 1) and part.groups == 1
    taps = prod(int(part.weight.shape[axis + 2]) - 1 + resizing.factor[axis] for axis in AXES)
    if resizing.linear or not simple or max(part.weight.shape[2:]) < 2 or taps > MOST_TAPS:
        return None
    weight = part.weight.transpose(0, 1)
    for axis in AXES:
        weight = _sum_taps(weight, axis + 2, resizing.factor[axis])
    return Deconvolution(
        weight=weight.contiguous(),
        bias=part.bias,
        stride=resizing.factor,
        padding=zyx(int(part.weight.shape[axis + 2]) - 1 - part.padding[axis] for axis in AXES),
        output_padding=(0, 0, 0),
        dilation=(1, 1, 1),
    )


def _sum_taps(weight: Tensor, dimension: int, factor: int) -> Tensor:
    """Sum for each entry t the taps j that read the same coarse voxel: 0 <= t - (taps - 1) + j < factor."""
    taps = weight.shape[dimension]
    sums = []
    for place in range(factor + taps - 1):
        first, last = max(0, taps - 1 - place), min(taps, factor + taps - 1 - place)
        sums.append(weight.narrow(dimension, first, last - first).sum(dimension))
    return torch.stack(sums, dimension)
