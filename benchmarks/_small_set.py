"""A training whose epoch takes seconds: a small convolutional network on random images."""

from __future__ import annotations

import torch
from torch import nn

IMAGES, CLASSES, SIDE = 24_000, 10, 28


def training(batch_size: int = 128) -> tuple[nn.Module, object, torch.optim.Optimizer, object]:
    network = nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, CLASSES)),
    )
    images = torch.utils.data.TensorDataset(torch.rand(IMAGES, 1, SIDE, SIDE), torch.randint(CLASSES, (IMAGES,)))
    return network, nn.functional.cross_entropy, torch.optim.SGD(network.parameters(), lr=0.01), images
