"""torch.compile with frozen weights; each shape takes a minute to prepare."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rigdyno.engines.blockwise.backends import Floats
from rigdyno.engines.blockwise.backends._exported import exported
from rigdyno.engines.blockwise.backends._refusing import one_line
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.model import Model


class Compiled:
    one_shape = True

    def __init__(self, model: Model, device: str) -> None:
        self.model, self.device = model, device
        model.place(device)
        self._ready: dict[tuple[Zyx, Zyx], Callable[[Tensor], Tensor]] = {}

    @staticmethod
    def why_not(device: str) -> str | None:
        if device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
            return "torch.compile needs a C++ compiler for CPUs; install g++"
        return None

    def predict(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        from torch._inductor import config

        # A compiler has many ways to fail, and no common name for them.
        with torch.no_grad(), config.patch(freezing=True), one_line("torch.compile", size, (Exception,)):
            given = torch.from_numpy(block)[None].to(self.device)
            answer = self._compiled(size, halo)(given)[0]
            return np.ascontiguousarray(answer.float().cpu().numpy())

    def _compiled(self, size: Zyx, halo: Zyx) -> Callable[[Tensor], Tensor]:
        if (size, halo) not in self._ready:
            module = exported(self.model, size, halo, self.device).module()
            self._ready[size, halo] = torch.compile(module, dynamic=False)
        return self._ready[size, halo]


CHOICE = Compiled
