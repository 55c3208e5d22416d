"""Sums, products and the like: of maps, and of figures that are the same for all voxels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.network.calls import Call, Ref
from rigdyno.engines.blockwise.network.layers.layer import AXES
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise
from rigdyno.engines.blockwise.network.maps import MAP_DIMENSIONS, Maps, NotUnderstood

MAP = object()  # where a map goes among the arguments
# What each takes, in order, with what torch takes where nothing is said; ... where something must be.
_TWO: dict[str, Any] = {"self": ..., "other": ...}
ARITHMETIC: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "add": (torch.add, _TWO),
    "sub": (torch.sub, _TWO),
    "rsub": (torch.rsub, _TWO),
    "mul": (torch.mul, _TWO),
    "div": (torch.div, _TWO),
    "maximum": (torch.maximum, _TWO),
    "minimum": (torch.minimum, _TWO),
    "exp": (torch.exp, {"self": ...}),
    "neg": (torch.neg, {"self": ...}),
    "abs": (torch.abs, {"self": ...}),
    "mish": (functional.mish, {"self": ...}),
    "selu": (torch.selu, {"self": ...}),
    "hardsigmoid": (functional.hardsigmoid, {"self": ...}),
    "clamp": (torch.clamp, {"self": ..., "min": None, "max": None}),
    "softplus": (functional.softplus, {"self": ..., "beta": 1.0, "threshold": 20.0}),
}
USUAL = {"alpha": 1, "rounding_mode": None}


def arithmetic(maps: Maps, call: Call) -> tuple[Pointwise, list[Ref]]:
    compute, taken = ARITHMETIC[call.plain_name]
    given = {**taken, **call.arguments}
    if any(name not in taken and (name not in USUAL or value != USUAL[name]) for name, value in given.items()):
        raise NotUnderstood(f"the network uses {call.operator} in an unusual way")
    values = [given[name] for name in taken]
    refs = [value for value in values if maps.is_map(value)]
    if not refs and call.in_place:
        raise NotUnderstood("the network changes its own figures; call .eval() on it before exporting it")
    if not refs:
        raise NotUnderstood("the network computes some of its weights")
    fixed = [MAP if maps.is_map(value) else _same_everywhere(maps, value) for value in values]
    width = _width([maps.width(ref) for ref in refs], fixed)
    return Pointwise(width, call.plain_name, partial(_filled_in, compute, fixed), len(refs)), refs


def _same_everywhere(maps: Maps, value: Any) -> Any:
    if value is None or isinstance(value, (int, float)):
        return value
    constant = maps.constant(value)
    if constant is None:
        raise NotUnderstood("the network calculates with something that is neither a map nor a number")
    if constant.numel() == 1:
        return constant.reshape(())
    of_channels = constant.dim() in (len(AXES) + 1, MAP_DIMENSIONS) and constant.numel() == constant.shape[-4]
    if not of_channels:
        raise NotUnderstood("the network uses figures that differ from voxel to voxel")
    return constant


def _width(widths: list[int], fixed: list[Any]) -> int:
    """A map of one channel goes with any other, as torch has it."""
    figures = [int(value.shape[-4]) for value in fixed if isinstance(value, Tensor) and value.dim()]
    widest = max(widths + figures)
    if set(widths + figures) - {1, widest}:
        raise NotUnderstood("the network calculates with maps of different widths")
    return widest


def _filled_in(compute: Callable[..., Tensor], fixed: list[Any], *maps: Tensor) -> Tensor:
    remaining = iter(maps)
    return compute(*[next(remaining) if value is MAP else value for value in fixed])
