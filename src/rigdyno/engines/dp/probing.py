"""Runs of a network that leave no trace: buffers, attributes and random numbers are as before, and users' hooks silent.

A run is repeated with the same random numbers. What draws them from elsewhere than torch, NumPy, Python's `random` or a
generator that a module holds can't be repeated, and is told apart by running the same inputs twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from rigdyno.engines.dp.errors import BadSetting

Answer = TypeVar("Answer")

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MOST_UNCLEAR = 4  # inputs of which it isn't clear whether they carry samples: each doubles the tries


class Inputs:
    """Of one call of a network: which of its tensors carry a sample in each place of an axis."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], axis: int) -> None:
        self._leaves, self._form = tree_flatten((args, kwargs))
        self.axis = axis
        self.samples = self._count()
        self._places = [place for place, leaf in enumerate(self._leaves) if self._may_carry(leaf)]

    def _count(self) -> int:
        for leaf in self._leaves:
            if isinstance(leaf, Tensor) and leaf.dim() > self.axis and not isinstance(leaf, nn.Parameter):
                return int(leaf.shape[self.axis])
        raise BadSetting(
            f"the network was called without a tensor that has an axis {self.axis}, so the number of samples isn't known"
        )

    def _may_carry(self, leaf: Any) -> bool:
        if not isinstance(leaf, Tensor) or isinstance(leaf, nn.Parameter) or leaf.dim() <= self.axis:
            return False
        return int(leaf.shape[self.axis]) == self.samples

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]

    def readings(self) -> Iterator[Inputs]:
        """This one, then those in which fewer tensors carry samples: a mask may be as long as the batch is large. The
        first tensor always does."""
        first, *unclear = self._places
        if len(unclear) > MOST_UNCLEAR:
            unclear = []
        for number in range(2 ** len(unclear)):
            reading = object.__new__(Inputs)
            reading._leaves, reading._form, reading.axis, reading.samples = (
                self._leaves, self._form, self.axis, self.samples,
            )  # fmt: skip
            reading._places = [first, *(place for bit, place in enumerate(unclear) if not number >> bit & 1)]
            yield reading

    def picked(self, rows: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call with these samples, by number."""
        leaves = list(self._leaves)
        for place in self._places:
            leaf = leaves[place].detach()
            leaves[place] = leaf.index_select(self.axis, torch.tensor(rows, device=leaf.device, dtype=torch.long))
        args, kwargs = tree_unflatten(leaves, self._form)
        return args, kwargs


class Probe:
    """Of one network. `speaking` are hooks that take part in what the network computes, and so are run too."""

    def __init__(self, network: nn.Module, speaking: Sequence[object] = ()) -> None:
        self.network, self._speaking = network, speaking

    def run(self, work: Callable[[], Answer], seed: int = 0) -> Answer:
        modules = list(self.network.modules())
        kept = [_Kept(module) for module in modules]
        fast = torch.backends.mha.get_fastpath_enabled()
        try:
            for module in modules:
                self._silence(module)
            torch.backends.mha.set_fastpath_enabled(False)  # or else layers are run without being called
            with _seeded(seed, self.network):
                return work()
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for state in kept:
                state.restore()

    def _silence(self, module: nn.Module) -> None:
        for name in HOOKS:
            hooks = vars(module)[name]
            for key in [key for key, hook in hooks.items() if not any(hook is spoken for spoken in self._speaking)]:
                del hooks[key]


class _Kept:
    """A module's attributes as they were, one level deep; buffers by their values."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._attributes = module, dict(vars(module))
        self._buffers = [(held, held.detach().clone()) for held in module._buffers.values() if held is not None]
        self._inside = [
            (held, held.copy()) for held in self._attributes.values() if isinstance(held, dict | list | set)
        ]
        self._generators = [(g, g.get_state()) for g in self._attributes.values() if isinstance(g, torch.Generator)]

    def restore(self) -> None:
        attributes = vars(self._module)
        if attributes.keys() != self._attributes.keys():
            for name in [name for name in attributes if name not in self._attributes]:
                del attributes[name]
        attributes.update(self._attributes)
        for held, before in self._inside:
            _refill(held, before)
        for generator, state in self._generators:
            generator.set_state(state)
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):  # what another pass has saved must not seem to be changed
                    buffer.copy_(value)


def _refill(held: Any, before: Any) -> None:
    if isinstance(held, list):
        held[:] = before
    else:
        held.clear()
        held.update(before)


@contextmanager
def _seeded(seed: int, network: nn.Module) -> Iterator[None]:
    cards = sorted({p.device.index or 0 for p in network.parameters() if p.device.type == "cuda"})
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=cards):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
