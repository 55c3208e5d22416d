"""The trimmed network for blocks of one shape, as a program that compilers take."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.model import Model


class _OneShape(nn.Module):
    def __init__(self, model: Model, size: Zyx, halo: Zyx) -> None:
        super().__init__()
        self._model, self._size, self._halo = model, size, halo

    def forward(self, block: Tensor) -> Tensor:
        return self._model.run(block, self._size, self._halo)


def exported(model: Model, size: Zyx, halo: Zyx, device: str) -> ExportedProgram:
    example = torch.zeros(1, model.channels_in, *model.read_box(size, halo).shape, device=device)
    with torch.no_grad():
        return torch.export.export(_OneShape(model, size, halo).eval(), (example,))
