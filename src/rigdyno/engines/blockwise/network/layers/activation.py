"""What follows a convolution point by point, and can be done while its answer is still in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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
# As oneDNN's post-operations are called; it does the others badly or not at all.
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
