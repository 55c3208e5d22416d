"""torch as it is: channels last, folded norms, fused kernels, inference mode; there is nothing to prepare."""

from __future__ import annotations

import numpy as np
import torch

from rigdyno.engines.blockwise.backends import Floats
from rigdyno.engines.blockwise.backends._refusing import one_line
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.model import Model

NETWORK_ERRORS = (RuntimeError, ValueError, TypeError, MemoryError)


class Eager:
    one_shape = False

    def __init__(self, model: Model, device: str) -> None:
        self.model, self.device = model, device
        model.place(device)

    @staticmethod
    def why_not(device: str) -> str | None:
        return None

    def predict(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        with torch.inference_mode(), one_line("torch", size, NETWORK_ERRORS):
            given = torch.from_numpy(block)[None].to(self.device)
            answer = self.model.run(given, size, halo)[0]
            return np.ascontiguousarray(answer.float().cpu().numpy())


CHOICE = Eager
