"""Network, optimizer and ledger in one file: what a run needs to go on, and nothing that it could forget."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.ledger import Ledger

FORM = "rigdyno private training 1"


def save(path: Path, module: nn.Module, optimizer: Optimizer | None, ledger: Ledger, extra: dict[str, Any]) -> None:
    """Whole or not at all: it is put in the place of an older one only when it is on the disk."""
    content = {
        "form": FORM,
        "module": module.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "ledger": ledger.state_dict(),
        "extra": extra,
    }
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def load(path: Path, module: nn.Module, optimizer: Optimizer | None, ledger: Ledger) -> dict[str, Any]:
    """Gives back what was saved beside. Nothing in the file is executed, and the ledger never counts less than before:
    what was released after the checkpoint was released all the same."""
    content = _read(path)
    if optimizer is not None and content["optimizer"] is None:
        raise BadSetting(f"{path} was saved without an optimizer: leave it out")
    ledger.load_state_dict(content["ledger"])  # first: whatever fails below, nothing was forgotten
    module.load_state_dict(content["module"])
    if optimizer is not None:
        optimizer.load_state_dict(content["optimizer"])
    extra: dict[str, Any] = content["extra"]
    return extra


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadSetting(f"can't read {path}: {(error.strerror or str(error)).lower()}") from error
    except Exception as error:  # torch raises many kinds for a file that isn't its own
        raise BadSetting(f"{path} is no checkpoint of private training, or is damaged") from error
    if not isinstance(content, dict) or content.get("form") != FORM:
        raise BadSetting(f"{path} is no checkpoint of private training; engine.save_checkpoint writes one")
    return content
