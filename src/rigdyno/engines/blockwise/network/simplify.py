"""The same function in fewer operations: exact but for rounding, also at a block's rim.

- A norm with fixed figures (BatchNorm) goes into the weights before it.
- An activation goes into the layer before it.
- A convolution over a concatenation becomes a sum of convolutions.
- A 3 x 3 x 3 convolution of what was upsampled by nearest neighbour sees only 2 x 2 x 2 different voxels: it becomes a
  transposed convolution of the coarse map with the weights that belong together added up, 8 products instead of 27.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from rigdyno.engines.blockwise.boxes import zyx
from rigdyno.engines.blockwise.network.graph import Network, Node
from rigdyno.engines.blockwise.network.layers.concatenation import Concatenation
from rigdyno.engines.blockwise.network.layers.convolution import Convolution
from rigdyno.engines.blockwise.network.layers.deconvolution import Deconvolution
from rigdyno.engines.blockwise.network.layers.layer import AXES
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise
from rigdyno.engines.blockwise.network.layers.resizing import Resizing
from rigdyno.engines.blockwise.network.layers.weighted import Weighted

LEAST_WIDTH = 8  # channels: kernels fill their vectors with them, so narrower parts are better left together
MOST_TAPS = 1000  # of a coarse kernel: beyond an upsampling by eight, weights grow faster than products shrink

Part = Convolution | Deconvolution


def simplified(network: Network) -> Network:
    network = Network(network.channels_in, [Node(node.layer, node.inputs) for node in network.nodes])
    for number, _ in network.numbered():
        _absorb(network, number, _affine_into)
        _absorb(network, number, _activation_into)
    for number, _ in network.numbered():
        _split_concatenation(network, number)
        _take_coarse(network, number)
    return network.alive()


def _absorb(network: Network, number: int, into: Callable[[Weighted, Pointwise], Weighted | None]) -> None:
    """Lets the layer before do what this one does, if nobody else wants its answer without."""
    node = network.nodes[number - 1]
    if not isinstance(node.layer, Pointwise) or len(node.inputs) != 1 or not node.inputs[0]:
        return
    before = network.nodes[node.inputs[0] - 1]
    if isinstance(before.layer, Weighted) and network.users(node.inputs[0]) == [number]:
        together = into(before.layer, node.layer)
        if together:
            network.nodes[number - 1] = Node(together, before.inputs)


def _affine_into(weighted: Weighted, affine: Pointwise) -> Weighted | None:
    if weighted.then or affine.affine is None:
        return None
    factor, summand = affine.affine
    parts = [_scaled(part, factor) for part in weighted.parts]
    first = parts[0]
    parts[0] = dataclasses.replace(first, bias=summand if first.bias is None else first.bias + summand)
    return Weighted(tuple(parts))


def _scaled(part: Part, factor: Tensor) -> Part:
    bias = None if part.bias is None else part.bias * factor
    if isinstance(part, Convolution):
        return dataclasses.replace(part, weight=part.weight * factor.view(-1, 1, 1, 1, 1), bias=bias)
    groups, inputs = part.groups, part.weight.shape[0]
    by_group = factor.view(groups, 1, -1).expand(-1, inputs // groups, -1).reshape(inputs, -1, 1, 1, 1)
    return dataclasses.replace(part, weight=part.weight * by_group, bias=bias)


def _activation_into(weighted: Weighted, pointwise: Pointwise) -> Weighted | None:
    if weighted.then or pointwise.activation is None:
        return None
    return Weighted(weighted.parts, pointwise.activation)


def _split_concatenation(network: Network, number: int) -> None:
    node = network.nodes[number - 1]
    if not isinstance(node.layer, Weighted) or len(node.layer.parts) != 1 or not node.inputs[0]:
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
    network.nodes[number - 1] = Node(Weighted(tuple(parts), node.layer.then), before.inputs)


def _take_coarse(network: Network, number: int) -> None:
    node = network.nodes[number - 1]
    if not isinstance(node.layer, Weighted):
        return
    parts, inputs = list(node.layer.parts), list(node.inputs)
    for place, (part, used) in enumerate(zip(parts, inputs, strict=True)):
        before = network.nodes[used - 1] if used else None
        if before and isinstance(before.layer, Resizing) and isinstance(part, Convolution):
            coarse = _before_upsampling(part, before.layer)
            if coarse:
                parts[place], inputs[place] = coarse, before.inputs[0]
    network.nodes[number - 1] = Node(Weighted(tuple(parts), node.layer.then), tuple(inputs))


def _before_upsampling(part: Convolution, resizing: Resizing) -> Deconvolution | None:
    simple = part.stride == part.dilation == (1, 1, 1) and part.groups == 1
    taps = prod(int(part.weight.shape[axis + 2]) - 1 + resizing.factor[axis] for axis in AXES)
    if resizing.linear or not simple or max(part.weight.shape[2:]) < 2 or taps > MOST_TAPS:
        return None
    weight = part.weight.transpose(0, 1)
    for axis in AXES:
        weight = _added_up(weight, axis + 2, resizing.factor[axis])
    return Deconvolution(
        weight=weight.contiguous(),
        bias=part.bias,
        stride=resizing.factor,
        padding=zyx(int(part.weight.shape[axis + 2]) - 1 - part.padding[axis] for axis in AXES),
        output_padding=(0, 0, 0),
        dilation=(1, 1, 1),
    )


def _added_up(weight: Tensor, dimension: int, factor: int) -> Tensor:
    """Entry t adds those taps j that read the same coarse voxel: 0 <= t - (taps - 1) + j < factor."""
    taps = weight.shape[dimension]
    sums = []
    for place in range(factor + taps - 1):
        first, last = max(0, taps - 1 - place), min(taps, factor + taps - 1 - place)
        sums.append(weight.narrow(dimension, first, last - first).sum(dimension))
    return torch.stack(sums, dimension)
