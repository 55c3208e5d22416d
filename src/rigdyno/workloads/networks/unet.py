"""The two U-Net architectures for volumes, and formulas for their cost, so that planning doesn't need torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from rigdyno.base.errors import BadValue

Zyx = tuple[int, int, int]

SAVED_AS = (".pt", ".safetensors")

KERNEL = 27  # 3 x 3 x 3

AFFINITIES = 3  # outputs of the network per voxel

PUBLISHED_PATCH: Zyx = (40, 432, 432)

FORWARD_AND_BACKWARD = 3  # cost relative to a forward pass

_FLOAT32_BYTES = 4

_SLACK = 1.4  # factor for gradients of maps and workspaces of kernels, in addition to the maps that are kept


class Architecture(NamedTuple):
    features: tuple[int, ...]
    factor: Zyx  # downsampling from level to level
    norm: bool
    activation: str

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of the blockwise engine's UNet3d."""
        return {
            "out_channels": AFFINITIES,
            "features": list(self.features),
            "factor": list(self.factor),
            "norm": self.norm,
            "activation": self.activation,
        }

    @property
    def multiples(self) -> Zyx:
        """Return what the edges of a patch must be multiples of."""
        z, y, x = (step ** (len(self.features) - 1) for step in self.factor)
        return z, y, x

    def _convolutions(self) -> list[tuple[int, int, int]]:
        """Return (input channels, output channels, level) of each convolution: two per level down, two per level up."""
        down = [(a, b, level) for level, (a, b) in enumerate(pairwise((1, *self.features)))]
        up = [(coarse + fine, fine, level) for level, (fine, coarse) in enumerate(pairwise(self.features))]
        return [each for a, b, level in (*down, *up) for each in ((a, b, level), (b, b, level))]

    def parameters(self) -> int:
        extra = 2 if self.norm else 1  # scale and shift of the norm, or a bias
        inner = sum(KERNEL * a * b + extra * b for a, b, _ in self._convolutions())
        return inner + AFFINITIES * (self.features[0] + 1)

    def products_per_voxel(self) -> float:
        """Return the multiply-adds of a forward pass per voxel, for a large patch."""
        coarser = prod(self.factor)
        inner = (KERNEL * a * b / coarser**level for a, b, level in self._convolutions())
        return float(sum(inner)) + AFFINITIES * self.features[0]

    def kept_bytes_per_voxel(self) -> float:
        """Return the bytes per voxel that are kept until the backward pass: the input of each convolution and of each
        activation."""
        coarser = prod(self.factor)
        kept = ((a + (2 if self.norm else 1) * b) / coarser**level for a, b, level in self._convolutions())
        return _SLACK * _FLOAT32_BYTES * float(sum(kept))


ARCHITECTURES = {
    "published": Architecture((12, 60, 300, 1500), (1, 3, 3), norm=False, activation="elu"),
    "isotropic": Architecture((32, 64, 128, 256), (2, 2, 2), norm=True, activation="relu"),
}

PATCHES: dict[str, Zyx] = {"published": (8, 54, 54), "isotropic": (24, 48, 48)}  # small defaults


def find_architecture(name: str, features: str) -> Architecture:
    base = ARCHITECTURES[name]
    return base._replace(features=parse_numbers("features", features)) if features else base


def parse_numbers(name: str, text: str, count: int | None = None) -> tuple[int, ...]:
    """Parse '12,60,300' or '8x54x54'."""
    parts = text.replace("x", ",").split(",")
    try:
        found = tuple(int(part) for part in parts)
    except ValueError:
        found = ()
    if not found or min(found) < 1 or (count is not None and len(found) != count):
        wanted = f"{count} whole numbers such as 8x54x54" if count else "whole numbers such as 12,60,300"
        raise BadValue(f"{name} takes {wanted}, not '{text}'", key=f"set.{name}")
    return found


def parse_patch(network: str, text: str, built: Architecture) -> Zyx:
    z, y, x = parse_numbers("patch", text, 3) if text else PATCHES[network]
    wrong = [edge % step for edge, step in zip((z, y, x), built.multiples, strict=True)]
    if any(wrong):
        steps = format_shape(built.multiples)
        raise BadValue(
            f"patch must be a multiple of {steps} for this network, not {format_shape((z, y, x))}", key="set.patch"
        )
    return z, y, x


def format_shape(edges: Sequence[int]) -> str:
    return "x".join(map(str, edges))


def check_save_path(path: Path) -> str | None:
    """Return why weights can't be saved there, or None. It is checked before hours of training."""
    if path.suffix not in SAVED_AS:
        return f"weights are saved as {' or '.join(SAVED_AS)}, not as '{path.name}'"
    if path.exists():
        return f"{path} exists already and won't be overwritten; choose another name"
    if not path.absolute().parent.is_dir():
        return f"there is no folder {path.parent} to save {path.name} in"
    if not os.access(path.absolute().parent, os.W_OK):
        return f"the folder {path.absolute().parent} isn't writable"
    return None
