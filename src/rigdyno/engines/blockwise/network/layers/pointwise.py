"""Everything that looks at one voxel at a time: activations, sums, products, affine maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.network.layers.activation import Activation
from rigdyno.engines.blockwise.network.layers.layer import Taken, any_planar, cropped
from rigdyno.engines.blockwise.network.spans import Span, common


@dataclass(eq=False)
class Pointwise:
    channels: int
    name: str
    compute: Callable[..., Tensor]  # takes the inputs in order
    arity: int = 1
    activation: Activation | None = field(default=None)  # said as one that can be fused
    affine: tuple[Tensor, Tensor] | None = field(default=None)  # factor and summand of each channel
    sees_block: bool = False  # takes figures over the whole block, as InstanceNorm does

    def needs(self, axis: int, wanted: Span) -> list[Span]:
        return [wanted] * self.arity

    def gives(self, axis: int, given: Sequence[Span]) -> Span:
        return common(given)

    def scale(self, axis: int) -> tuple[int, int]:
        return 1, 1

    def run(self, inputs: Sequence[Tensor], places: Sequence[Box], wanted: Box) -> Tensor:
        if self.sees_block:
            return cropped(self.compute(*inputs), places[0], wanted)
        return self.compute(*(cropped(tensor, place, wanted) for tensor, place in zip(inputs, places, strict=True)))

    def takes(self, places: Sequence[Box], wanted: Box, given: Sequence[Taken]) -> Taken:
        answer = self.channels * (places[0] if self.sees_block else wanted).voxels
        in_two_steps = self.affine is not None or self.name == "gelu"
        # torch writes what these give channel by channel, however it was given.
        planar = any_planar(given) or self.sees_block or self.name == "softmax"
        return Taken(answer, answer if in_two_steps else 0, part=self.sees_block, planar=planar)

    def multiply_adds(self, shape: Zyx) -> int:
        return self.channels * prod(shape) if self.affine else 0
