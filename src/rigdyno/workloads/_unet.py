"""The two U-Nets that volumes are segmented with, and what they cost: counted by formula, so that planning needs no
torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from rigdyno.errors import BadValue

Zyx = tuple[int, int, int]

SAVED_AS = (".pt", ".safetensors")
KERNEL = 27  # 3 x 3 x 3
AFFINITIES = 3  # what the network answers for each voxel
PUBLISHED_PATCH: Zyx = (40, 432, 432)
FORWARD_AND_BACKWARD = 3  # times the products of a forward pass
_FLOAT32_BYTES = 4
_SLACK = 1.4  # gradients of maps, and what kernels take, beside the maps that are kept


class Architecture(NamedTuple):
    features: tuple[int, ...]
    factor: Zyx  # how much coarser each level is
    norm: bool
    activation: str

    @property
    def settings(self) -> dict[str, Any]:
        """As the blockwise engine's network takes them."""
        return {
            "out_channels": AFFINITIES,
            "features": list(self.features),
            "factor": list(self.factor),
            "norm": self.norm,
            "activation": self.activation,
        }

    @property
    def multiples(self) -> Zyx:
        """What the edges of a patch must be multiples of."""
        z, y, x = (step ** (len(self.features) - 1) for step in self.factor)
        return z, y, x

    def _convolutions(self) -> list[tuple[int, int, int]]:
        """Channels before and after, and the level: two a level on the way down, two on the way up."""
        down = [(a, b, level) for level, (a, b) in enumerate(pairwise((1, *self.features)))]
        up = [(coarse + fine, fine, level) for level, (fine, coarse) in enumerate(pairwise(self.features))]
        return [each for a, b, level in (*down, *up) for each in ((a, b, level), (b, b, level))]

    def parameters(self) -> int:
        beside = 2 if self.norm else 1  # scale and shift of the norm, or a bias
        inner = sum(KERNEL * a * b + beside * b for a, b, _ in self._convolutions())
        return inner + AFFINITIES * (self.features[0] + 1)

    def products_per_voxel(self) -> float:
        """Multiply-adds of a forward pass, for a patch that is large."""
        coarser = prod(self.factor)
        inner = (KERNEL * a * b / coarser**level for a, b, level in self._convolutions())
        return float(sum(inner)) + AFFINITIES * self.features[0]

    def kept_bytes_per_voxel(self) -> float:
        """Maps until their backward pass: the input of each convolution and what its activation was given."""
        coarser = prod(self.factor)
        kept = ((a + (2 if self.norm else 1) * b) / coarser**level for a, b, level in self._convolutions())
        return _SLACK * _FLOAT32_BYTES * float(sum(kept))


ARCHITECTURES = {
    "published": Architecture((12, 60, 300, 1500), (1, 3, 3), norm=False, activation="elu"),
    "isotropic": Architecture((32, 64, 128, 256), (2, 2, 2), norm=True, activation="relu"),
}
PATCHES: dict[str, Zyx] = {"published": (8, 54, 54), "isotropic": (24, 48, 48)}  # where nobody says: small ones


def architecture(name: str, features: str) -> Architecture:
    base = ARCHITECTURES[name]
    return base._replace(features=numbers("features", features)) if features else base


def numbers(name: str, text: str, count: int | None = None) -> tuple[int, ...]:
    """'12,60,300' or '8x54x54'."""
    parts = text.replace("x", ",").split(",")
    try:
        found = tuple(int(part) for part in parts)
    except ValueError:
        found = ()
    if not found or min(found) < 1 or (count is not None and len(found) != count):
        wanted = f"{count} whole numbers such as 8x54x54" if count else "whole numbers such as 12,60,300"
        raise BadValue(f"{name} takes {wanted}, not '{text}'", key=f"set.{name}")
    return found


def patch_of(network: str, text: str, built: Architecture) -> Zyx:
    z, y, x = numbers("patch", text, 3) if text else PATCHES[network]
    wrong = [edge % step for edge, step in zip((z, y, x), built.multiples, strict=True)]
    if any(wrong):
        steps = by(built.multiples)
        raise BadValue(f"patch: this network's edges are multiples of {steps}, not {by((z, y, x))}", key="set.patch")
    return z, y, x


def by(edges: Sequence[int]) -> str:
    return "x".join(map(str, edges))


def why_not_saved(path: Path) -> str | None:
    """Asked before hours of training."""
    if path.suffix not in SAVED_AS:
        return f"weights are saved as {' or '.join(SAVED_AS)}, not as '{path.name}'"
    if path.exists():
        return f"{path} is there already, and isn't written over; choose another name"
    if not path.absolute().parent.is_dir():
        return f"there is no folder {path.parent} to save {path.name} in"
    if not os.access(path.absolute().parent, os.W_OK):
        return f"nothing can be written in {path.absolute().parent}"
    return None
