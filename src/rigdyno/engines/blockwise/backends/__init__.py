"""Backends that run the network, one file each, named like the backend; and what they share."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# Not `import torch`: in this package that name becomes the module torch.py as soon as it is imported.
from torch import OutOfMemoryError, Tensor, nn, no_grad, zeros
from torch.export import ExportedProgram, export

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadNetwork, BlockwiseError, TooLittleMemory
from rigdyno.engines.blockwise.network.calls import first_line
from rigdyno.engines.blockwise.network.model import Model

Floats = NDArray[np.float32]

NO_MEMORY = "can't allocate memory"  # torch's CPU allocator raises a plain RuntimeError with this text


class Backend(Protocol):
    one_shape: bool  # True if prepared for one shape: all blocks are computed equally large, and cropped afterwards

    def __init__(self, model: Model, device: str) -> None: ...

    @staticmethod
    def why_not(device: str) -> str | None:
        """Return why the backend can't be used on this device and what to try, or None if it can."""

    def predict(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        """Predict a block: from the voxels in the model's `read_box` to those of the block, both channels, z, y, x."""


def list_names() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))


def load_backend(name: str) -> type[Backend]:
    """Import the backend of this name."""
    found: type[Backend] = importlib.import_module(f"{__name__}.{name}").CHOICE
    return found


class _FixedShape(nn.Module):
    """The trimmed network for blocks of one shape."""

    def __init__(self, model: Model, size: Zyx, halo: Zyx) -> None:
        super().__init__()
        self._model, self._size, self._halo = model, size, halo

    def forward(self, block: Tensor) -> Tensor:
        return self._model.run(block, self._size, self._halo)


def export_model(model: Model, size: Zyx, halo: Zyx, device: str) -> ExportedProgram:
    """Export the trimmed network for blocks of one shape, as a program for compilers."""
    example = zeros(1, model.channels_in, *model.read_box(size, halo).shape, device=device)
    with no_grad():
        return export(_FixedShape(model, size, halo).eval(), (example,))


@contextmanager
def shorten_errors(name: str, size: Zyx, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn errors of these kinds into a BlockwiseError of one line: torch's messages are pages long."""
    try:
        yield
    except BlockwiseError:
        raise
    except kinds as error:
        block = "x".join(map(str, size))
        if isinstance(error, (MemoryError, OutOfMemoryError)) or NO_MEMORY in str(error):
            raise TooLittleMemory(
                f"blocks of {block} need more memory than is free; allow less with --memory"
            ) from error
        raise BadNetwork(f"{name} can't run the network on blocks of {block}: {first_line(error)}") from error
