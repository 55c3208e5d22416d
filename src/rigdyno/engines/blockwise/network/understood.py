"""A network whose layers we know: trimmed, folded, fused."""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
import torch
from torch import Tensor

from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.network.building import network_of
from rigdyno.engines.blockwise.network.calls import Calls, raw_bytes
from rigdyno.engines.blockwise.network.graph import Network
from rigdyno.engines.blockwise.network.layers.layer import cropped
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise
from rigdyno.engines.blockwise.network.layers.weighted import Weighted
from rigdyno.engines.blockwise.network.model import Floats
from rigdyno.engines.blockwise.network.running import run
from rigdyno.engines.blockwise.network.simplify import simplified
from rigdyno.engines.blockwise.network.trimming import Trimming

BOUNDED = ("sigmoid", "softmax")
LARGE = 1024  # voxels along an edge: layers' products are counted for such a cube, where nothing is rounded


class Understood:
    def __init__(self, calls: Calls) -> None:
        self._calls, self._device = calls, "cpu"
        self.network = simplified(network_of(calls))
        self.trimming = Trimming(self.network)
        self.channels_in, self.channels_out = self.network.channels_in, self.network.channels_out
        self.step, self.least_halo = self.trimming.step, self.trimming.least_halo()
        self.exact_halo: Zyx | None = self.trimming.exact_halo
        self.bounded = _bounded(self.network)
        self.block_dependent = (
            "it has InstanceNorm or GroupNorm, whose mean and variance are each block's own"
            if self.network.sees_block
            else None
        )
        self.products_per_voxel = _products_per_voxel(self.network)

    def read_box(self, size: Zyx, halo: Zyx) -> Box:
        return self.trimming.placement(size, halo).read

    def products(self, size: Zyx, halo: Zyx) -> int:
        return max(prod(size), self.trimming.multiply_adds(size, halo))

    def peak_bytes(self, size: Zyx, halo: Zyx) -> int:
        return self.trimming.peak_bytes(size, halo)

    def run(self, block: Tensor, size: Zyx, halo: Zyx) -> Tensor:
        return run(self.network, self.trimming.placement(size, halo), block)

    def reference(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        network = network_of(self._calls)
        placement = Trimming(network).placement(size, halo)
        given = cropped(torch.from_numpy(block)[None], self.read_box(size, halo), placement.read)
        with torch.inference_mode():
            return np.ascontiguousarray(run(network, placement, given)[0].numpy())

    def place(self, device: str) -> None:
        if device == self._device:  # weights that kernels have put in order stay so
            return
        self._device = device
        constants = {name: tensor.to(device) for name, tensor in self._calls.constants.items()}
        calls = Calls(self._calls.calls, self._calls.input, self._calls.output, constants, self._calls.shapes)
        self.network = simplified(network_of(calls))
        self.trimming = Trimming(self.network)

    def identity(self) -> str:
        digest = hashlib.sha256(repr((self._calls.calls, self._calls.input, self._calls.output)).encode())
        for name, tensor in sorted(self._calls.constants.items()):
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(raw_bytes(tensor))
        return digest.hexdigest()


def _bounded(network: Network) -> bool:
    last = network.nodes[-1].layer
    if isinstance(last, Weighted):
        return last.then is not None and last.then.name in BOUNDED
    return isinstance(last, Pointwise) and last.name in BOUNDED


def _products_per_voxel(network: Network) -> float:
    coarse, cube = network.coarsening(), (LARGE, LARGE, LARGE)
    products = (node.layer.multiply_adds(cube) / prod(coarse[number]) for number, node in network.numbered())
    return max(1.0, float(sum(products) / LARGE**3))  # whoever multiplies nothing also takes time
