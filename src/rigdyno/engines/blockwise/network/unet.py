"""A 3D U-Net: two convolutions a level, max pooling down, nearest neighbour up, skips by concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rigdyno.engines.blockwise.boxes import Zyx

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "leaky_relu": nn.LeakyReLU, "silu": nn.SiLU}


class UNet3d(nn.Module):
    """`factor` is how much coarser each level is: (1, 3, 3) where slices are thick."""

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 1,
        features: Sequence[int] = (32, 64, 128, 256),
        factor: Zyx = (2, 2, 2),
        norm: bool = True,
        activation: str = "relu",
        sigmoid: bool = True,
    ) -> None:
        super().__init__()
        widths = [in_channels, *features]
        block = _Block if norm else _PlainBlock
        if activation not in ACTIVATIONS:
            raise ValueError(f"no activation named '{activation}'; there are {', '.join(ACTIVATIONS)}")
        self.down = nn.ModuleList(block(a, b, ACTIVATIONS[activation]) for a, b in pairwise(widths))
        steps = list(zip(features[::-1], features[-2::-1], strict=False))
        self.up = nn.ModuleList(block(coarse + fine, fine, ACTIVATIONS[activation]) for coarse, fine in steps)
        self.pool, self.grow = nn.MaxPool3d(factor), nn.Upsample(scale_factor=tuple(float(f) for f in factor))
        self.last = nn.Conv3d(features[0], out_channels, 1)
        self.sigmoid = nn.Sigmoid() if sigmoid else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            skips.append(x)
        skips.pop()
        for block in self.up:
            x = block(torch.cat([self.grow(x), skips.pop()], dim=1))
        answer: Tensor = self.sigmoid(self.last(x))
        return answer


class _Block(nn.Sequential):
    def __init__(self, before: int, after: int, activation: type[nn.Module]) -> None:
        super().__init__(
            nn.Conv3d(before, after, 3, padding=1, bias=False), nn.BatchNorm3d(after), activation(),
            nn.Conv3d(after, after, 3, padding=1, bias=False), nn.BatchNorm3d(after), activation(),
        )  # fmt: skip


class _PlainBlock(nn.Sequential):
    def __init__(self, before: int, after: int, activation: type[nn.Module]) -> None:
        super().__init__(
            nn.Conv3d(before, after, 3, padding=1), activation(), nn.Conv3d(after, after, 3, padding=1), activation()
        )
