"""The backend `compile`: torch.compile with frozen weights, which takes a minute to prepare for each shape."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rigdyno.engines.blockwise.backends import Floats, export_model, shorten_errors
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.model import Model


class Compiled:
    one_shape = True

    def __init__(self, model: Model, device: str) -> None:
        self.model, self.device = model, device
        model.move_to(device)
        self._ready: dict[tuple[Zyx, Zyx], Callable[[Tensor], Tensor]] = {}

    @staticmethod
    def why_not(device: str) -> str | None:
        if device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
            return "torch.compile needs a C++ compiler for CPUs; install g++"
        return None

    def predict(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        from torch._inductor import config

        # A compiler can fail in many ways, and its errors have no common base class.
        with torch.no_grad(), config.patch(freezing=True), shorten_errors("torch.compile", size, (Exception,)):
            given = torch.from_numpy(block)[None].to(self.device)
            answer = self._compiled(size, halo)(given)[0]
            return np.ascontiguousarray(answer.float().cpu().numpy())

    def _compiled(self, size: Zyx, halo: Zyx) -> Callable[[Tensor], Tensor]:
        if (size, halo) not in self._ready:
            module = export_model(self.model, size, halo, self.device).module()
            self._ready[size, halo] = torch.compile(module, dynamic=False)
        return self._ready[size, halo]


CHOICE = Compiled
