"""How far a network sees whose layers we don't know, found by trying.

Not-a-number spreads through sums, products, maxima and activations alike. One half of a block is filled with it, and
how far it spreads into the other half is how far the network sees, whatever its weights are. Where it is lost, as in
comparisons, other numbers in its place show the same with high probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rigdyno.engines.blockwise.boxes import Zyx, zyx
from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.layers.layer import AXES
from rigdyno.engines.blockwise.network.spans import rounded_up

STEPS = (32, 27, 64)  # what networks are cut by: halves, thirds, many halves
LENGTHS = (4, 16)  # in steps, of the blocks that are half filled
ALIKE = 1e-4  # of the answer's range: less than this is rounding
SEED = 0


@dataclass(frozen=True)
class Found:
    step: int
    tried: Zyx  # a block that it runs on
    channels: int  # of what it gives
    margin: Zyx  # what it gives less, at both ends
    reach: Zyx | None  # beyond this nothing counts; None: everything does
    steady: bool  # a block that begins one step later gives the same where both lie


def probed(module: nn.Module, channels: int) -> Found:
    """With the first step that will do; if there is none, with the first that the network runs on."""
    unsteady, errors = [], []
    for step in STEPS:
        try:
            found = _probed(module, channels, step)
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            errors.append(error)
            continue
        if found.steady or found.reach is None:
            return found
        unsteady.append(found)
    if not unsteady:
        raise errors[0]
    return unsteady[0]


def _probed(module: nn.Module, channels: int, step: int) -> Found:
    less, more = (2 * step, 3 * step) if step <= STEPS[0] else (step, 2 * step)
    shapes: list[Zyx] = [(less, more, less), (more, less, more)]
    answers = [_answer(module, torch.zeros(1, channels, *shape)) for shape in shapes]
    margin = _margin(shapes, answers)
    probe = _Probe(module, channels, step, margin)
    reaches = [probe.reach(axis) for axis in AXES]
    known = [reach for reach in reaches if reach is not None]
    reach = zyx(known) if len(known) == len(AXES) else None
    steady = reach is not None and all(probe.is_steady(axis, reach[axis]) for axis in AXES)
    return Found(step, shapes[0], int(answers[0].shape[1]), margin, reach, steady)


def _answer(module: nn.Module, block: Tensor) -> Tensor:
    with torch.no_grad():
        answer = module(block)
    if not isinstance(answer, Tensor) or answer.dim() != block.dim() or answer.shape[0] != 1:
        raise BadNetwork("the network must give one tensor: batch, channels, z, y, x")
    return answer


def _margin(shapes: Sequence[Zyx], answers: Sequence[Tensor]) -> Zyx:
    lost = {zyx(map(int.__sub__, shape, answer.shape[2:])) for shape, answer in zip(shapes, answers, strict=True)}
    if len(lost) != 1 or any(number < 0 or number % 2 for number in next(iter(lost))):
        raise BadNetwork(
            f"the network gives {tuple(answers[0].shape[2:])} voxels for {shapes[0]}; "
            "it must give one for each, or the same number less at both ends"
        )
    return zyx(number // 2 for number in next(iter(lost)))


class _Probe:
    """Blocks that are long along one axis and as thin as they can be along the others."""

    def __init__(self, module: nn.Module, channels: int, step: int, margin: Zyx) -> None:
        self.module, self.channels, self.step, self.margin = module, channels, step, margin
        self.chance = torch.Generator().manual_seed(SEED)

    def reach(self, axis: int) -> int | None:
        for length in LENGTHS:
            try:
                reach = self._reach(axis, length * self.step)
            except (RuntimeError, ValueError, AssertionError, IndexError):
                if length == LENGTHS[0]:
                    raise
                return None  # it doesn't run on blocks of any length
            if reach is not None:
                return rounded_up(reach, self.step)
        return None

    def is_steady(self, axis: int, reach: int) -> bool:
        """A network that cuts by more than the step, or stretches its maps over the block, isn't."""
        length = 2 * reach + 2 * self.step + 2 * rounded_up(self.margin[axis], self.step)
        noise = self._noise(axis, length + self.step)
        first, later = (
            _answer(self.module, noise.narrow(axis + 2, start, length).contiguous()) for start in (0, self.step)
        )
        inside = reach - min(reach, self.margin[axis])
        size = first.shape[axis + 2] - self.step - 2 * inside
        one = first.narrow(axis + 2, self.step + inside, size)
        other = later.narrow(axis + 2, inside, size)
        return not bool(_differ(one, other).any())

    def _reach(self, axis: int, length: int) -> int | None:
        """The furthest that a change in one half gets into the other, both ways; None if it gets everywhere."""
        block, cut, margin = self._noise(axis, length), length // 2, self.margin[axis]
        answer, furthest = _answer(self.module, block), 0
        for start in (0, cut):
            where = self._changed(block, answer, axis, start) + margin
            if len(where) == length - 2 * margin:
                return None
            if len(where):
                furthest = max(furthest, int(where.max()) - cut + 1 if start == 0 else cut - int(where.min()))
        return furthest

    def _changed(self, block: Tensor, answer: Tensor, axis: int, start: int) -> Tensor:
        """Where along the axis the answer is another if one half of the block is."""
        spoilt, other, size = block.clone(), block.clone(), block.shape[axis + 2] // 2
        spoilt.narrow(axis + 2, start, size).fill_(torch.nan)
        other.narrow(axis + 2, start, size).mul_(-3.0).add_(1.0)
        changed = _differ(answer, _answer(self.module, other))
        changed |= _answer(self.module, spoilt).isnan()
        return changed.amax([dimension for dimension in range(5) if dimension != axis + 2]).nonzero().flatten()

    def _noise(self, axis: int, length: int) -> Tensor:
        across = [self.step + rounded_up(2 * margin, self.step) for margin in self.margin]
        shape = [length if own == axis else across[own] for own in AXES]
        return torch.randn(1, self.channels, *shape, generator=self.chance)


def _differ(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs() > ALIKE * float(one.max() - one.min())
