"""Runs of a network that leave no trace: buffers, attributes and random numbers are as before, and users' hooks silent.

A run is repeated with the same random numbers. What draws them from elsewhere than torch, NumPy, Python's `random` or a
generator that a module holds can't be repeated, and is told apart by running the same inputs twice.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from rigdyno.engines.dp.errors import BadSetting

Answer = TypeVar("Answer")

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MOST_READINGS = 32  # of inputs of which it isn't clear whether they carry samples


class Inputs:
    """Of one call of a network: which of its tensors carry samples, along which axis; the first along `axis`."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], axis: int) -> None:
        self._leaves, self._form = tree_flatten((args, kwargs))
        self.axis = axis
        first = self._first()
        self.samples = int(self._leaves[first].shape[axis])
        self._options = {first: [axis], **{place: axes for place, axes in self._possible() if place != first and axes}}
        self.places = {place: axes[0] for place, axes in self._options.items()}

    def _first(self) -> int:
        for place, leaf in enumerate(self._leaves):
            if _may_carry(leaf) and leaf.dim() > self.axis:
                return place
        raise BadSetting(
            f"the network was called without a tensor that has an axis {self.axis}: the number of samples isn't known"
        )

    def _possible(self) -> Iterator[tuple[int, list[int]]]:
        """Beside samples along the second axis there may be labels and masks that have them along the first."""
        for place, leaf in enumerate(self._leaves):
            if _may_carry(leaf):
                axes = [axis for axis in dict.fromkeys((self.axis, 0)) if axis < leaf.dim()]
                yield place, [axis for axis in axes if int(leaf.shape[axis]) == self.samples]

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]

    @property
    def unclear(self) -> bool:
        """Whether more tensors than one are as long as the batch is large."""
        return len(self._options) > 1

    def by_sample(self) -> list[Tensor]:
        """Those that may carry samples, with a sample a row."""
        return [self._leaves[place].movedim(axis, 0) for place, axis in self.places.items()]

    def readings(self) -> Iterator[Inputs]:
        """This one, then those in which fewer tensors carry samples: a mask may be as long as the batch is large."""
        first, *others = self._options
        choices = [[*self._options[place], None] for place in others]
        for axes in itertools.islice(itertools.product(*choices), MOST_READINGS):
            chosen = {place: axis for place, axis in zip(others, axes, strict=True) if axis is not None}
            yield self.read({first: self.axis, **chosen})

    def read(self, places: dict[int, int]) -> Inputs:
        """With samples in these places alone, as far as they can be there."""
        reading = copy.copy(self)
        reading.places = {place: axis for place, axis in places.items() if axis in self._options.get(place, ())}
        return reading

    def picked(self, rows: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call with these samples, by number."""
        leaves = list(self._leaves)
        for place, axis in self.places.items():
            leaf = leaves[place].detach()
            leaves[place] = leaf.index_select(axis, torch.tensor(rows, device=leaf.device, dtype=torch.long))
        args, kwargs = tree_unflatten(leaves, self._form)
        return args, kwargs


def _may_carry(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter) and leaf.dim() > 0


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
            # A checkpoint around the network counts what is kept for its backward pass: that isn't meant. And what a
            # hook changes in place is what the network goes on with.
            with _seeded(seed, self.network), saved_tensors_hooks(_apart, _as_it_is):
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


class Listening:
    """To the users' hooks in a pass that they are run in anyway: which of them change what they are given."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._heard: list[object] = []
        self._held = [vars(module)[name] for module in modules for name in HOOKS[:2] if vars(module)[name]]
        self._before = [dict(hooks) for hooks in self._held]
        for hooks in self._held:
            hooks.update({key: self._listened(hook) for key, hook in hooks.items()})

    def stop(self) -> list[object]:
        for hooks, before in zip(self._held, self._before, strict=True):
            hooks.update({key: hook for key, hook in before.items() if key in hooks})
        return self._heard

    def _listened(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            tensors = [leaf for leaf in tree_leaves(given[1:]) if isinstance(leaf, Tensor)]
            versions = [tensor._version for tensor in tensors]
            answer = hook(*given)
            if answer is not None or versions != [tensor._version for tensor in tensors]:
                self._heard.append(hook)
            return answer

        return run


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


def _apart(value: Tensor) -> Tensor:
    """The same memory, without its history: an answer that is kept by the very step that found it would keep that step,
    and all that came before, for ever."""
    return value.detach()


def _as_it_is(value: Tensor) -> Tensor:
    return value


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
            # Not torch.manual_seed, which keeps a traceback for each kind of accelerator that there might be.
            torch.default_generator.manual_seed(seed)
            if cards:
                torch.cuda.manual_seed_all(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
