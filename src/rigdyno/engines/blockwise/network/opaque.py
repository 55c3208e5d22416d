"""A network with layers that we don't know: run as it is, with a reach that was found by trying (see probing.py)."""

from __future__ import annotations

import hashlib
import inspect
import weakref
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from rigdyno.engines.blockwise.boxes import Box, Zyx, zyx
from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.blockwise.network.calls import raw_bytes
from rigdyno.engines.blockwise.network.layers.layer import AXES
from rigdyno.engines.blockwise.network.model import Floats
from rigdyno.engines.blockwise.network.probing import Found, probed
from rigdyno.engines.blockwise.network.spans import rounded_up


class Opaque:
    def __init__(self, module: nn.Module, channels: int) -> None:
        self.module, self.channels_in = module.eval(), channels
        found = probed(self.module, channels)
        self.step: Zyx = (found.step, found.step, found.step)
        self.bounded = False
        self.channels_out, self.margin = found.channels, found.margin
        self.least_halo = zyx(rounded_up(margin, found.step) for margin in self.margin)
        self.exact_halo, self.block_dependent = found.reach, _why_dependent(found)
        products, peak = _costs(self.module, channels, found.tried)
        self.products_per_voxel = max(1.0, products / prod(found.tried))  # whoever multiplies nothing also takes time
        self._bytes_per_voxel = peak / prod(found.tried)

    def read_box(self, size: Zyx, halo: Zyx) -> Box:
        if any(halo[axis] < self.margin[axis] for axis in AXES):
            raise BadSetting(f"a halo of {halo} is too small for this network: it uses up {self.margin} itself")
        stop = zyx(rounded_up(size[axis], self.step[axis]) + halo[axis] for axis in AXES)
        return Box(zyx(-number for number in halo), stop)

    def products(self, size: Zyx, halo: Zyx) -> int:
        return round(self.products_per_voxel * self.read_box(size, halo).voxels)

    def peak_bytes(self, size: Zyx, halo: Zyx) -> int:
        return round(self._bytes_per_voxel * self.read_box(size, halo).voxels)

    def run(self, block: Tensor, size: Zyx, halo: Zyx) -> Tensor:
        answer: Tensor = self.module(block)
        for axis in AXES:
            answer = answer.narrow(axis + 2, halo[axis] - self.margin[axis], size[axis])
        return answer

    def reference(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        with torch.inference_mode():
            own = next(iter(self.module.parameters()), torch.empty(0)).device
            return np.ascontiguousarray(self.run(torch.from_numpy(block)[None].to(own), size, halo)[0].cpu().numpy())

    def place(self, device: str) -> None:
        self.module.to(device)

    def identity(self) -> str:
        digest = hashlib.sha256(repr(self.module).encode())
        for source in sorted({_source(kind) for part in self.module.modules() for kind in type(part).__mro__}):
            digest.update(source.encode())
        for name, tensor in self.module.state_dict().items():
            digest.update(name.encode())
            digest.update(raw_bytes(tensor))
        return digest.hexdigest()


def _source(kind: type) -> str:
    """Another forward is another network, though its layers and weights are the same; torch's own layers are known."""
    if kind.__module__.split(".")[0] in ("torch", "builtins"):
        return kind.__qualname__
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed into a shell
        return kind.__qualname__


def _why_dependent(found: Found) -> str | None:
    if found.reach is None:
        return "each of its voxels sees the whole block"
    return None if found.steady else "what it gives depends on where a block begins, or on how large it is"


def _costs(module: nn.Module, channels: int, shape: Zyx) -> tuple[float, int]:
    """Multiply-adds and the most bytes of tensors alive at once, seen on one block."""
    counter, watch = FlopCounterMode(display=False), Alive()
    with torch.no_grad(), counter, watch:
        module(torch.zeros(1, channels, *shape))
    return counter.get_total_flops() / 2, watch.peak


class Alive(TorchDispatchMode):
    """Counts the bytes of all tensors that operators gave, and that somebody still holds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                self.watch(tensor)
        return result

    def watch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
