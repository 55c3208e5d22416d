"""Pointwise layers, which look at one voxel at a time: activations, sums, products, affine maps.

Some activations can be fused with a convolution, while its output is still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Box, Span, Zyx, intersection
from rigdyno.engines.blockwise.network.layers.layer import MemoryUse, any_planar, crop

IN_PLACE: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu_,
    "leaky_relu": functional.leaky_relu_,
    "hardtanh": functional.hardtanh_,
    "elu": functional.elu_,
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
    "silu": lambda tensor: functional.silu(tensor, inplace=True),
    "gelu": lambda tensor: functional.gelu(tensor),
    "hardswish": lambda tensor: functional.hardswish(tensor, inplace=True),
}

# Names of oneDNN's post-operations; it computes the other activations inaccurately or not at all.
FUSED = {
    "relu": "relu",
    "leaky_relu": "leaky_relu",
    "hardtanh": "hardtanh",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "silu": "swish",
}


@dataclass(frozen=True)
class Activation:
    name: str
    numbers: tuple[float, ...] = ()

    @property
    def fused_name(self) -> str | None:
        return FUSED.get(self.name)

    def apply_(self, tensor: Tensor) -> Tensor:
        return IN_PLACE[self.name](tensor, *self.numbers)


@dataclass(eq=False)
class Pointwise:
    channels: int
    name: str
    compute: Callable[..., Tensor]  # takes the inputs in order
    arity: int = 1
    activation: Activation | None = field(default=None)  # the same as an activation that can be fused
    affine: tuple[Tensor, Tensor] | None = field(default=None)  # factor and summand for each channel
    sees_block: bool = False  # computes statistics over the whole block, like InstanceNorm

    def find_needed(self, axis: int, wanted: Span) -> list[Span]:
        return [wanted] * self.arity

    def find_output(self, axis: int, given: Sequence[Span]) -> Span:
        return intersection(given)

    def scale(self, axis: int) -> tuple[int, int]:
        return 1, 1

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        if self.sees_block:
            return crop(self.compute(*inputs), places[0], wanted)
        return self.compute(*(crop(tensor, place, wanted) for tensor, place in zip(inputs, places, strict=True)))

    def estimate_memory(self, places: Sequence[Box], wanted: Box, given: Sequence[MemoryUse]) -> MemoryUse:
        answer = self.channels * (places[0] if self.sees_block else wanted).voxels
        in_two_steps = self.affine is not None or self.name == "gelu"
        # torch stores the output of these channel by channel, whatever the input's layout.
        planar = any_planar(given) or self.sees_block or self.name == "softmax"
        return MemoryUse(answer, answer if in_two_steps else 0, is_view=self.sees_block, planar=planar)

    def count_multiply_adds(self, shape: Zyx) -> int:
        return self.channels * prod(shape) if self.affine else 0
