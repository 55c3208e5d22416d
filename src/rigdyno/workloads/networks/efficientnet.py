"""EfficientNet-B0 (Tan and Le, 2019), with torchvision's parameter names.

This module imports torch, so workloads import it only when they are built.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch  # noqa: TID253 - imported only when a workload is built
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

SQUEEZED = 4  # squeeze-and-excitation reduces a block's inputs by this factor

BLOCKS = sum(blocks for *_, blocks in STAGES)


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm that normalises a single value by the running statistics. Small images leave one value per channel,
    which has no variance in a batch of one, and torch would raise an error."""

    def forward(self, maps: Tensor) -> Tensor:
        if self.training and len(maps) * maps.shape[2:].numel() == 1:
            return nn.functional.batch_norm(maps, self.running_mean, self.running_var, self.weight, self.bias)
        return super().forward(maps)


class SqueezeExcitation(nn.Module):
    """Multiplies each map by a factor that depends on all maps of the sample."""

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
    """Skips the block at random, independently for each sample."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training or self.dropout.p == 0:
            return maps
        kept: Tensor = self.dropout(torch.ones_like(maps[:, :1, :1, :1]))
        return maps * kept


class MBConv(nn.Module):
    """1 x 1 convolution up, depthwise convolution, squeeze and excitation, 1 x 1 convolution down. The result is added
    to the input if the shapes are equal. `left_out` is the probability of skipping the block."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int, left_out: float) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = [_conv_norm(inputs, wide, 1)] if expansion > 1 else []
        layers += [_conv_norm(wide, wide, kernel, stride, wide), SqueezeExcitation(wide, max(1, inputs // SQUEEZED))]
        self.block = nn.Sequential(*layers, _conv_norm(wide, outputs, 1, active=False))
        self.stochastic_depth = StochasticDepth(left_out)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        result: Tensor = self.block(maps)
        return self.stochastic_depth(result) + maps if self.adds else result


class EfficientNetB0(nn.Module):
    """EfficientNet-B0 with `dropout` before the classifier. `left_out` is the probability of skipping the last block;
    it falls linearly towards the first."""

    def __init__(self, classes: int, dropout: float = 0.2, left_out: float = 0.2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _conv_norm(3, FIRST, 3, 2), *_make_stages(left_out), _conv_norm(STAGES[-1][3], LAST, 1)
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST, classes))
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return result

    def freeze_features(self) -> None:
        """Train only the classifier. Frozen layers stay in eval mode, so that their statistics don't change either."""
        self.features.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> EfficientNetB0:
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.features.parameters()):
            self.features.eval()
        return self


def _conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, BatchNorm(outputs), *([nn.SiLU(inplace=True)] if active else []))


def _make_stages(left_out: float) -> list[nn.Sequential]:
    stages, inputs, before = [], FIRST, 0
    for expansion, kernel, stride, outputs, blocks in STAGES:
        layers = []
        for number in range(blocks):
            rate = left_out * (before + number) / BLOCKS
            layers.append(MBConv(inputs, outputs, expansion, kernel, stride if number == 0 else 1, rate))
            inputs = outputs
        stages.append(nn.Sequential(*layers))
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
