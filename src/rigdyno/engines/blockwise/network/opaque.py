"""A network with unknown layers: it is run unchanged, and its receptive field is measured.

NaN spreads through sums, products, maxima and activations. One half of a block is filled with NaN; how far it spreads
into the other half is how far the network sees, whatever its weights are. Where NaN is lost, as in comparisons, other
numbers in its place show the same with high probability.
"""

from __future__ import annotations

import hashlib
import inspect
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from rigdyno.engines.blockwise.boxes import Box, Zyx, round_up, zyx
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting
from rigdyno.engines.blockwise.network.calls import raw_bytes
from rigdyno.engines.blockwise.network.layers.layer import AXES
from rigdyno.engines.blockwise.network.model import Floats

STEPS = (32, 27, 64)  # for networks that pool by 2 up to 5 times, by 3 up to 3 times, by 2 up to 6 times

LENGTHS = (4, 16)  # in steps, of the blocks that are half filled with NaN

ROUNDING = 1e-4  # as a share of the output range; smaller differences are rounding

SEED = 0


@dataclass(frozen=True)
class MeasuredReach:
    step: int
    tried: Zyx  # shape of a block that the network runs on
    channels: int  # of the output
    margin: Zyx  # voxels that the output is shorter at each side
    reach: Zyx | None  # voxels farther away have no influence; None if the whole block has
    shift_invariant: bool  # True if blocks that begin one step apart give the same output where they overlap


def measure_reach(module: nn.Module, channels: int) -> MeasuredReach:
    """Measure with the first step that makes the network shift invariant, else the first on which it runs."""
    variant, errors = [], []
    for step in STEPS:
        try:
            found = _measure_with_step(module, channels, step)
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            errors.append(error)
            continue
        if found.shift_invariant or found.reach is None:
            return found
        variant.append(found)
    if not variant:
        raise errors[0]
    return variant[0]


def _measure_with_step(module: nn.Module, channels: int, step: int) -> MeasuredReach:
    less, more = (2 * step, 3 * step) if step <= STEPS[0] else (step, 2 * step)
    shapes: list[Zyx] = [(less, more, less), (more, less, more)]
    answers = [_predict(module, torch.zeros(1, channels, *shape)) for shape in shapes]
    margin = _find_margin(shapes, answers)
    probe = _Probe(module, channels, step, margin)
    reaches = [probe.find_reach(axis) for axis in AXES]
    known = [reach for reach in reaches if reach is not None]
    reach = zyx(known) if len(known) == len(AXES) else None
    shift_invariant = reach is not None and all(probe.is_shift_invariant(axis, reach[axis]) for axis in AXES)
    return MeasuredReach(step, shapes[0], int(answers[0].shape[1]), margin, reach, shift_invariant)


def _predict(module: nn.Module, block: Tensor) -> Tensor:
    with torch.no_grad():
        answer = module(block)
    if not isinstance(answer, Tensor) or answer.dim() != block.dim() or answer.shape[0] != 1:
        raise BadNetwork("the network must return one tensor: batch, channels, z, y, x")
    return answer


def _find_margin(shapes: Sequence[Zyx], answers: Sequence[Tensor]) -> Zyx:
    lost = {zyx(map(int.__sub__, shape, answer.shape[2:])) for shape, answer in zip(shapes, answers, strict=True)}
    if len(lost) != 1 or any(number < 0 or number % 2 for number in next(iter(lost))):
        raise BadNetwork(
            f"the network gives {tuple(answers[0].shape[2:])} voxels for {shapes[0]}; "
            "it must give one for each, or the same number less at both ends"
        )
    return zyx(number // 2 for number in next(iter(lost)))


class _Probe:
    """Measurements on blocks that are long along one axis and as thin as possible along the others."""

    def __init__(self, module: nn.Module, channels: int, step: int, margin: Zyx) -> None:
        self.module, self.channels, self.step, self.margin = module, channels, step, margin
        self.generator = torch.Generator().manual_seed(SEED)

    def find_reach(self, axis: int) -> int | None:
        for length in LENGTHS:
            try:
                reach = self._reach_in_block(axis, length * self.step)
            except (RuntimeError, ValueError, AssertionError, IndexError):
                if length == LENGTHS[0]:
                    raise
                return None  # the network doesn't run on blocks of every length
            if reach is not None:
                return round_up(reach, self.step)
        return None

    def is_shift_invariant(self, axis: int, reach: int) -> bool:
        """Compare two blocks that begin one step apart.

        They differ if the network pools by more than the step, or stretches its maps over the block.
        """
        length = 2 * reach + 2 * self.step + 2 * round_up(self.margin[axis], self.step)
        noise = self._make_noise(axis, length + self.step)
        first, later = (
            _predict(self.module, noise.narrow(axis + 2, start, length).contiguous()) for start in (0, self.step)
        )
        inside = reach - min(reach, self.margin[axis])
        size = first.shape[axis + 2] - self.step - 2 * inside
        one = first.narrow(axis + 2, self.step + inside, size)
        other = later.narrow(axis + 2, inside, size)
        return not bool(_differ(one, other).any())

    def _reach_in_block(self, axis: int, length: int) -> int | None:
        """Return how far a change in one half of a block spreads into the other, or None if it spreads everywhere."""
        block, cut, margin = self._make_noise(axis, length), length // 2, self.margin[axis]
        answer, furthest = _predict(self.module, block), 0
        for start in (0, cut):
            where = self._find_changed(block, answer, axis, start) + margin
            if len(where) == length - 2 * margin:
                return None
            if len(where):
                furthest = max(furthest, int(where.max()) - cut + 1 if start == 0 else cut - int(where.min()))
        return furthest

    def _find_changed(self, block: Tensor, answer: Tensor, axis: int, start: int) -> Tensor:
        """Return the indices along the axis where the output changes if one half of the block does."""
        spoilt, other, size = block.clone(), block.clone(), block.shape[axis + 2] // 2
        spoilt.narrow(axis + 2, start, size).fill_(torch.nan)
        other.narrow(axis + 2, start, size).mul_(-3.0).add_(1.0)
        changed = _differ(answer, _predict(self.module, other))
        changed |= _predict(self.module, spoilt).isnan()
        return changed.amax([dimension for dimension in range(5) if dimension != axis + 2]).nonzero().flatten()

    def _make_noise(self, axis: int, length: int) -> Tensor:
        across = [self.step + round_up(2 * margin, self.step) for margin in self.margin]
        shape = [length if own == axis else across[own] for own in AXES]
        return torch.randn(1, self.channels, *shape, generator=self.generator)


def _differ(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs() > ROUNDING * float(one.max() - one.min())


class Opaque:
    """A `Model` that runs a module of unknown layers as it is."""

    def __init__(self, module: nn.Module, channels: int) -> None:
        self.module, self.channels_in = module.eval(), channels
        found = measure_reach(self.module, channels)
        self.step: Zyx = (found.step, found.step, found.step)
        self.bounded = False
        self.channels_out, self.margin = found.channels, found.margin
        self.least_halo = zyx(round_up(margin, found.step) for margin in self.margin)
        self.exact_halo, self.block_dependent = found.reach, _explain_dependence(found)
        products, peak = _measure_costs(self.module, channels, found.tried)
        self.products_per_voxel = max(1.0, products / prod(found.tried))  # without multiplications it takes time, too
        self._bytes_per_voxel = peak / prod(found.tried)

    def read_box(self, size: Zyx, halo: Zyx) -> Box:
        if any(halo[axis] < self.margin[axis] for axis in AXES):
            raise BadSetting(f"a halo of {halo} is too small for this network: it loses {self.margin} at each side")
        stop = zyx(round_up(size[axis], self.step[axis]) + halo[axis] for axis in AXES)
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

    def predict_reference(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        with torch.inference_mode():
            own = next(iter(self.module.parameters()), torch.empty(0)).device
            return np.ascontiguousarray(self.run(torch.from_numpy(block)[None].to(own), size, halo)[0].cpu().numpy())

    def move_to(self, device: str) -> None:
        self.module.to(device)

    def identity(self) -> str:
        digest = hashlib.sha256(repr(self.module).encode())
        for source in sorted({_source_code(kind) for part in self.module.modules() for kind in type(part).__mro__}):
            digest.update(source.encode())
        for name, tensor in self.module.state_dict().items():
            digest.update(name.encode())
            digest.update(raw_bytes(tensor))
        return digest.hexdigest()


def _source_code(kind: type) -> str:
    """Return the source code of a class: another `forward` makes another network. torch's own classes are known."""
    if kind.__module__.split(".")[0] in ("torch", "builtins"):
        return kind.__qualname__
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # defined in an interactive shell
        return kind.__qualname__


def _explain_dependence(found: MeasuredReach) -> str | None:
    if found.reach is None:
        return "each of its voxels sees the whole block"
    return None if found.shift_invariant else "its output depends on where a block begins, or on how large it is"


def _measure_costs(module: nn.Module, channels: int, shape: Zyx) -> tuple[float, int]:
    """Measure multiply-adds and the peak bytes of live tensors on one block."""
    counter, watch = FlopCounterMode(display=False), LiveTensorCounter()
    with torch.no_grad(), counter, watch:
        module(torch.zeros(1, channels, *shape))
    return counter.get_total_flops() / 2, watch.peak


class LiveTensorCounter(TorchDispatchMode):
    """Count the bytes of all tensors that operators returned and that are still referenced."""

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
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
