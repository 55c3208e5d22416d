"""Rigdyno's 3D U-Net, and files of its weights that also store the settings of the network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rigdyno.base.errors import MissingExtra
from rigdyno.base.files import atomic_write
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadOutput

SETTINGS = "unet3d"  # key of the settings in a .pt file, and in the header of a .safetensors file

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "leaky_relu": nn.LeakyReLU, "silu": nn.SiLU}


def save_weights(path: Path, module: nn.Module, settings: Mapping[str, Any]) -> None:
    """Save the weights together with the settings of the network, atomically."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    try:
        with atomic_write(path) as file:
            if path.suffix == ".safetensors":
                _safetensors(Path(file.name), state, settings)
            else:
                torch.save({"state_dict": state, SETTINGS: dict(settings)}, file)
    except (OSError, RuntimeError) as error:  # torch's own for a full disk
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise BadOutput(f"can't save {path}: {reason}") from error


def _safetensors(path: Path, state: dict[str, torch.Tensor], settings: Mapping[str, Any]) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtra("writing .safetensors needs safetensors; pip install 'rigdyno[volume]'") from None
    save_file(state, path, metadata={SETTINGS: json.dumps(dict(settings))})


def settings_in(content: Any) -> dict[str, Any]:
    """Return the settings in the content of a .pt file; empty if there are none."""
    found = content.get(SETTINGS) if isinstance(content, dict) else None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def settings_in_header(header: Mapping[str, str] | None) -> dict[str, Any]:
    try:
        return settings_in({SETTINGS: json.loads((header or {}).get(SETTINGS, "{}"))})
    except ValueError:
        return {}


class UNet3d(nn.Module):
    """Two convolutions per level, max pooling down, nearest neighbour up, skips by concatenation.

    `factor` is how much coarser each level is: (1, 3, 3) if slices are thick.
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 1,
        features: Sequence[int] = (32, 64, 128, 256),
        factor: Zyx = (2, 2, 2),
        norm: bool = True,
        activation: str = "relu",
        sigmoid: bool = True,
    ) -> None:
        super().__init__()
        widths = [in_channels, *features]
        block = _Block if norm else _PlainBlock
        if activation not in ACTIVATIONS:
            raise ValueError(f"no activation named '{activation}'; there are {', '.join(ACTIVATIONS)}")
        self.down = nn.ModuleList(block(a, b, ACTIVATIONS[activation]) for a, b in pairwise(widths))
        steps = list(zip(features[::-1], features[-2::-1], strict=False))
        self.up = nn.ModuleList(block(coarse + fine, fine, ACTIVATIONS[activation]) for coarse, fine in steps)
        self.pool, self.grow = nn.MaxPool3d(factor), nn.Upsample(scale_factor=tuple(float(f) for f in factor))
        self.last = nn.Conv3d(features[0], out_channels, 1)
        self.sigmoid = nn.Sigmoid() if sigmoid else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            skips.append(x)
        skips.pop()
        for block in self.up:
            x = block(torch.cat([self.grow(x), skips.pop()], dim=1))
        answer: Tensor = self.sigmoid(self.last(x))
        return answer


class _Block(nn.Sequential):
    def __init__(self, before: int, after: int, activation: type[nn.Module]) -> None:
        super().__init__(
            nn.Conv3d(before, after, 3, padding=1, bias=False), nn.BatchNorm3d(after), activation(),
            nn.Conv3d(after, after, 3, padding=1, bias=False), nn.BatchNorm3d(after), activation(),
        )  # fmt: skip


class _PlainBlock(nn.Sequential):
    def __init__(self, before: int, after: int, activation: type[nn.Module]) -> None:
        super().__init__(
            nn.Conv3d(before, after, 3, padding=1), activation(), nn.Conv3d(after, after, 3, padding=1), activation()
        )
