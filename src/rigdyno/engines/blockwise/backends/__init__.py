"""Who does the multiplying, one file each; the file's name is the backend's."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.model import Model

Floats = NDArray[np.float32]


class Backend(Protocol):
    one_shape: bool  # prepared for a single shape: all blocks are made alike, and cut afterwards

    def __init__(self, model: Model, device: str) -> None: ...

    @staticmethod
    def why_not(device: str) -> str | None:
        """Why it can't be used here, with what to try."""

    def predict(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        """From channels, z, y, x of what `read_box` says to channels, z, y, x of the block."""


def names() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))


def backend(name: str) -> type[Backend]:
    found: type[Backend] = importlib.import_module(f"{__name__}.{name}").CHOICE
    return found
