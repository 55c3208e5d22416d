"""The networks that private training is timed on, each with made-up data of its shape."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from rigdyno.engines.dp import replace_batch_norm
from rigdyno.workloads.networks.efficientnet import EfficientNetB0
from rigdyno.workloads.networks.resnet import ResNet as ResNet50

DIFFERENT = 16  # samples of a data set


def efficientnet_b0(classes: int) -> nn.Module:
    """Build the network without dropout and stochastic depth, which would make steps differ."""
    return EfficientNetB0(classes, dropout=0.0, left_out=0.0)


class Residual(nn.Module):
    """The residual block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, maps: Tensor) -> Tensor:
        kept = maps if self.downsample is None else self.downsample(maps)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(maps))))) + kept)


def resnet18(classes: int) -> nn.Module:
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for number in range(4):
        outputs = 64 * 2**number
        layers += [Residual(inputs, outputs, 1 if number == 0 else 2), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Block(nn.Module):
    """The block of a transformer, with the norm first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        return tokens + self.mlp(self.norm2(tokens))


class ViT(nn.Module):
    """A vision transformer sized like ViT-Ti/16, with six blocks and the mean over patches instead of a class token."""

    def __init__(self, classes: int, side: int = 224, width: int = 192, blocks: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Embedding((side // 16) ** 2, width)
        self.blocks = nn.Sequential(*(Block(width, 3) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        return self.head(self.norm(self.blocks(tokens + self.places(places))).mean(dim=1))


class Transformer(nn.Module):
    """A transformer with two layers over 128 tokens of a vocabulary of 10,000."""

    def __init__(self, classes: int, words: int = 10_000, length: int = 128, width: int = 256) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))).mean(dim=1))


def mnist_cnn(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, classes),
    )  # fmt: skip


CLASSES = {"efficientnet_b0": 100, "resnet18": 100, "resnet50": 1000, "vit": 100, "transformer": 2, "mnist_cnn": 10}


def network(name: str) -> nn.Module:
    """Build a network from the same weights each time, with GroupNorm instead of BatchNorm."""
    torch.manual_seed(0)
    makers = {
        "efficientnet_b0": efficientnet_b0,
        "resnet18": resnet18,
        "resnet50": ResNet50,
        "vit": ViT,
        "transformer": Transformer,
        "mnist_cnn": mnist_cnn,
    }
    return replace_batch_norm(makers[name](CLASSES[name])).train()


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Made-up data of the network's shape: a few samples, again and again, so that a data set of any length takes next
    to no memory."""

    def __init__(self, name: str, length: int) -> None:
        chance = torch.Generator().manual_seed(1)
        self._length = length
        self._answers = torch.randint(CLASSES[name], (DIFFERENT,), generator=chance)
        self._inputs = _inputs(name, chance)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._inputs[index % DIFFERENT], self._answers[index % DIFFERENT]


def _inputs(name: str, chance: torch.Generator) -> Tensor:
    if name == "transformer":
        return torch.randint(10_000, (DIFFERENT, 128), generator=chance)
    channels, side = {"efficientnet_b0": (3, 32), "resnet18": (3, 64), "mnist_cnn": (1, 28)}.get(name, (3, 224))
    return torch.randn(DIFFERENT, channels, side, side, generator=chance)
