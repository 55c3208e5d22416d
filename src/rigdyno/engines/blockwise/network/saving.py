"""Weights of our U-Net in a file that also says which U-Net: whoever loads it need not remember its settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rigdyno.engines.blockwise.errors import BadOutput, MissingExtra

SETTINGS = "unet3d"  # the key beside the state dict, and in the header of a .safetensors file


def save_weights(path: Path, module: nn.Module, settings: Mapping[str, Any]) -> None:
    """Under another name first: a file of this name is a whole one."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.suffix == ".safetensors":
            _safetensors(beside, state, settings)
        else:
            torch.save({"state_dict": state, SETTINGS: dict(settings)}, beside)
        beside.replace(path)
    except (OSError, RuntimeError) as error:  # torch's own for a full disk
        beside.unlink(missing_ok=True)
        raise BadOutput(f"can't save {path}: {str(error).partition(chr(10))[0]}") from error


def _safetensors(path: Path, state: dict[str, torch.Tensor], settings: Mapping[str, Any]) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtra("writing .safetensors needs safetensors; pip install 'rigdyno[volume]'") from None
    save_file(state, path, metadata={SETTINGS: json.dumps(dict(settings))})


def settings_in(content: Any) -> dict[str, Any]:
    """Of what a .pt file held; empty where it says nothing."""
    found = content.get(SETTINGS) if isinstance(content, dict) else None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def settings_in_header(header: Mapping[str, str] | None) -> dict[str, Any]:
    try:
        return settings_in({SETTINGS: json.loads((header or {}).get(SETTINGS, "{}"))})
    except ValueError:
        return {}
