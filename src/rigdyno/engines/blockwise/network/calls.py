"""A traced network as a list of calls of torch's operators; what a live module and an exported file have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MOST_WORDS = 200  # characters of a reason: torch's go on for pages, and a file's names can be anything


@dataclass(frozen=True)
class Ref:
    """The name of a tensor: a parameter, the input, or what an earlier call gave."""

    name: str


@dataclass(frozen=True)
class Call:
    """Of an operator that gives one tensor; those that only ask for sizes are left out."""

    operator: str  # such as "aten.conv3d.default"
    arguments: Mapping[str, Any]  # by the operator's own names; tensors as Ref
    result: str

    @property
    def plain_name(self) -> str:
        return self._name.rstrip("_")

    @property
    def in_place(self) -> bool:
        return self._name.endswith("_")

    @property
    def _name(self) -> str:
        return self.operator.removeprefix("aten.").split(".")[0]


@dataclass(frozen=True)
class Calls:
    calls: tuple[Call, ...]
    input: str
    output: str
    constants: Mapping[str, Tensor]  # parameters and buffers
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # as they were traced; -1 where it isn't known


def first_line(error: BaseException) -> str:
    """A reason that fits into one line."""
    return readable((str(error).strip().splitlines() or [type(error).__name__])[0])


def readable(text: str) -> str:
    """Nothing that moves the cursor about."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:MOST_WORDS])


def raw_bytes(tensor: Tensor) -> bytes:
    """Of any type: numpy has no bfloat16."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
