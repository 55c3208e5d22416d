"""The backend `openvino`: OpenVINO on CPUs, in float32."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch

from rigdyno.engines.blockwise.backends import Floats, export_model, shorten_errors
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.model import Model


class OpenVino:
    one_shape = True

    def __init__(self, model: Model, device: str) -> None:
        self.model = model
        model.move_to("cpu")
        self._ready: dict[tuple[Zyx, Zyx], Any] = {}

    @staticmethod
    def why_not(device: str) -> str | None:
        if importlib.util.find_spec("openvino") is None:
            return "OpenVINO isn't installed; pip install 'rigdyno[openvino]'"
        return None if device == "cpu" else f"OpenVINO is used on CPUs only, not on {device}"

    def predict(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        with shorten_errors("OpenVINO", size, (Exception,)):
            answer = self._compiled(size, halo)(block[None])
            return np.ascontiguousarray(answer[0][0])

    def _compiled(self, size: Zyx, halo: Zyx) -> Any:
        if (size, halo) not in self._ready:
            import openvino

            program = openvino.convert_model(export_model(self.model, size, halo, "cpu"))
            # Otherwise OpenVINO would compute in bfloat16 where the processor supports it.
            settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
            self._ready[size, halo] = openvino.Core().compile_model(program, "CPU", settings)
        return self._ready[size, halo]


CHOICE = OpenVino
