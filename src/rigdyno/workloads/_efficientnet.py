"""EfficientNet-B0 (Tan and Le, 2019), with the parameter names that torchvision uses.

Imported when it is built, because it needs torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch  # noqa: TID253 - imported only when it is built
from torch import nn  # noqa: TID253

if TYPE_CHECKING:
    from torch import Tensor

STAGES = (  # expansion, kernel, stride, outputs, blocks
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
FIRST, LAST = 32, 1280
SQUEEZED = 4  # of a block's inputs, one in so many
BLOCKS = sum(blocks for *_, blocks in STAGES)


class BatchNorm(nn.BatchNorm2d):
    """One value has no variance, and small images leave one for each sample: a batch of one is normalised by running
    statistics, where torch would refuse it."""

    def forward(self, maps: Tensor) -> Tensor:
        if self.training and len(maps) * maps.shape[2:].numel() == 1:
            return nn.functional.batch_norm(maps, self.running_mean, self.running_var, self.weight, self.bias)
        return super().forward(maps)


class SqueezeExcitation(nn.Module):
    """Each map times a factor that all maps of the sample decide."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.SiLU(inplace=True)
        self.scale_activation = nn.Sigmoid()

    def forward(self, maps: Tensor) -> Tensor:
        factors: Tensor = self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(maps)))))
        return maps * factors


class StochasticDepth(nn.Module):
    """Leaves the block out, for each sample by itself."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training or self.dropout.p == 0:
            return maps
        kept: Tensor = self.dropout(torch.ones_like(maps[:, :1, :1, :1]))
        return maps * kept


class MBConv(nn.Module):
    """1 x 1 up, one kernel for each map, squeeze and excitation, 1 x 1 down; added to the input where it fits."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int, left_out: float) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = [_normed(inputs, wide, 1)] if expansion > 1 else []
        layers += [_normed(wide, wide, kernel, stride, wide), SqueezeExcitation(wide, max(1, inputs // SQUEEZED))]
        self.block = nn.Sequential(*layers, _normed(wide, outputs, 1, active=False))
        self.stochastic_depth = StochasticDepth(left_out)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        found: Tensor = self.block(maps)
        return self.stochastic_depth(found) + maps if self.adds else found


class EfficientNetB0(nn.Module):
    """`dropout` before the classifier; `left_out`: with what probability the last block is, the first ones less."""

    def __init__(self, classes: int, dropout: float = 0.2, left_out: float = 0.2) -> None:
        super().__init__()
        self.features = nn.Sequential(_normed(3, FIRST, 3, 2), *_stages(left_out), _normed(STAGES[-1][3], LAST, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST, classes))
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return result

    def freeze_features(self) -> None:
        """Only the classifier learns. What is frozen stays in eval mode: its statistics don't move either."""
        self.features.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> EfficientNetB0:
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.features.parameters()):
            self.features.eval()
        return self


def _normed(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, BatchNorm(outputs), *([nn.SiLU(inplace=True)] if active else []))


def _stages(left_out: float) -> list[nn.Sequential]:
    stages, inputs, before = [], FIRST, 0
    for expansion, kernel, stride, outputs, blocks in STAGES:
        made = []
        for number in range(blocks):
            rate = left_out * (before + number) / BLOCKS
            made.append(MBConv(inputs, outputs, expansion, kernel, stride if number == 0 else 1, rate))
            inputs = outputs
        stages.append(nn.Sequential(*made))
        before += blocks
    return stages


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
    elif isinstance(module, nn.Linear):
        bound = 1 / math.sqrt(module.out_features)
        nn.init.uniform_(module.weight, -bound, bound)
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
