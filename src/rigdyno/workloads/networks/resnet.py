"""ResNet-50 (He et al., 2015; stride in the 3 x 3 convolution), with torchvision's parameter names.

This module imports torch, so workloads import it only when they are built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn  # noqa: TID253 - imported only when a workload is built

if TYPE_CHECKING:
    from torch import Tensor

BLOCKS = (3, 4, 6, 3)  # blocks of the four stages

FIRST_WIDTH = 64

EXPANSION = 4  # ratio of a block's output channels to its width


class Bottleneck(nn.Module):
    """1 x 1 convolution down to the width, 3 x 3, 1 x 1 up to four times the width, plus the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.downsample = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        identity = images if self.downsample is None else self.downsample(images)
        out = self.relu(self.bn1(self.conv1(images)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        result: Tensor = self.relu(out + identity)
        return result


class ResNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, FIRST_WIDTH, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(FIRST_WIDTH)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1, self.layer2, self.layer3, self.layer4 = _make_stages()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(EXPANSION * FIRST_WIDTH * 2 ** (len(BLOCKS) - 1), classes)
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        out = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        result: Tensor = self.fc(self.avgpool(out).flatten(1))
        return result


def _make_stages() -> list[nn.Sequential]:
    """Make the four stages. The first block of each but the first halves the map's edges and doubles the width."""
    stages, inputs = [], FIRST_WIDTH
    for number, blocks in enumerate(BLOCKS):
        width, stride = FIRST_WIDTH * 2**number, 1 if number == 0 else 2
        rest = [Bottleneck(EXPANSION * width, width, 1) for _ in range(blocks - 1)]
        stages.append(nn.Sequential(Bottleneck(inputs, width, stride), *rest))
        inputs = EXPANSION * width
    return stages


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
