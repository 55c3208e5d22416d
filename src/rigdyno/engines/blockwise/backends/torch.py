"""The backend `torch`: eager mode with channels last, folded norms and fused kernels; nothing to prepare."""

from __future__ import annotations

import numpy as np
import torch

from rigdyno.engines.blockwise.backends import Floats, shorten_errors
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.model import Model

NETWORK_ERRORS = (RuntimeError, ValueError, TypeError, MemoryError)


class Eager:
    one_shape = False

    def __init__(self, model: Model, device: str) -> None:
        self.model, self.device = model, device
        model.move_to(device)

    @staticmethod
    def why_not(device: str) -> str | None:
        return None

    def predict(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        with torch.inference_mode(), shorten_errors("torch", size, NETWORK_ERRORS):
            given = torch.from_numpy(block)[None].to(self.device)
            answer = self.model.run(given, size, halo)[0]
            return np.ascontiguousarray(answer.float().cpu().numpy())


CHOICE = Eager
