"""A traced network as a list of calls of torch's operators, from a live module or from an exported file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MOST_CHARACTERS = 200  # of a reason: torch's messages are pages long, and names in a file can be anything


@dataclass(frozen=True)
class Ref:
    """The name of a tensor: a parameter, the input, or the result of an earlier call."""

    name: str


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator that returns one tensor; calls that only ask for sizes are left out."""

    operator: str  # such as "aten.conv3d.default"
    arguments: Mapping[str, Any]  # by the names in the operator's schema; tensors as Ref
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
    calls: tuple[OperatorCall, ...]
    input: str
    output: str
    constants: Mapping[str, Tensor]  # parameters and buffers
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # as traced; -1 if unknown


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened and printable."""
    return make_printable((str(error).strip().splitlines() or [type(error).__name__])[0])


def make_printable(text: str) -> str:
    """Shorten a text, and replace control characters, which could move the cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:MOST_CHARACTERS])


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor of any type; NumPy has no bfloat16."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
