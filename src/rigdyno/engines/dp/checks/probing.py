"""Run a network without side effects: buffers, attributes and random states are restored, and user hooks are disabled.

A run can be repeated with the same random numbers if they come from torch, NumPy, Python's `random`, or a generator
that is an attribute of a module. Other random numbers are detected by running the same inputs twice.
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

Result = TypeVar("Result")

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

MOST_READINGS = 32  # readings to try if it isn't clear which inputs carry samples


class Inputs:
    """The inputs of one call of a network: which tensors carry samples, and along which axis. The first does so along
    `axis`."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], axis: int) -> None:
        self._leaves, self._form = tree_flatten((args, kwargs))
        self.axis = axis
        first = self._find_first()
        self.samples = int(self._leaves[first].shape[axis])
        self._options = {
            first: [axis],
            **{place: axes for place, axes in self._possible_axes() if place != first and axes},
        }
        self.places = {place: axes[0] for place, axes in self._options.items()}

    def _find_first(self) -> int:
        for place, leaf in enumerate(self._leaves):
            if _may_carry(leaf) and leaf.dim() > self.axis:
                return place
        raise BadSetting(
            f"the network was called without a tensor that has an axis {self.axis}: the number of samples isn't known"
        )

    def _possible_axes(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the possible sample axes of each tensor.

        If the samples are along the second axis, labels and masks may have them along the first.
        """
        for place, leaf in enumerate(self._leaves):
            if _may_carry(leaf):
                axes = [axis for axis in dict.fromkeys((self.axis, 0)) if axis < leaf.dim()]
                yield place, [axis for axis in axes if int(leaf.shape[axis]) == self.samples]

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]

    @property
    def is_ambiguous(self) -> bool:
        """True if more than one tensor is as long as the batch."""
        return len(self._options) > 1

    def sample_tensors(self) -> list[Tensor]:
        """Return the tensors that may carry samples, with one sample per row."""
        return [self._leaves[place].movedim(axis, 0) for place, axis in self.places.items()]

    def readings(self) -> Iterator[Inputs]:
        """Yield this reading, then those in which fewer tensors carry samples: a mask may be as long as the batch."""
        first, *others = self._options
        choices = [[*self._options[place], None] for place in others]
        for axes in itertools.islice(itertools.product(*choices), MOST_READINGS):
            chosen = {place: axis for place, axis in zip(others, axes, strict=True) if axis is not None}
            yield self.with_places({first: self.axis, **chosen})

    def with_places(self, places: dict[int, int]) -> Inputs:
        """Return a reading with samples in these tensors only, along the given axes, as far as that is possible."""
        reading = copy.copy(self)
        reading.places = {place: axis for place, axis in places.items() if axis in self._options.get(place, ())}
        return reading

    def select(self, rows: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with these samples only."""
        leaves = list(self._leaves)
        for place, axis in self.places.items():
            leaf = leaves[place].detach()
            leaves[place] = leaf.index_select(axis, torch.tensor(rows, device=leaf.device, dtype=torch.long))
        args, kwargs = tree_unflatten(leaves, self._form)
        return args, kwargs


def _may_carry(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter) and leaf.dim() > 0


class NetworkProbe:
    """Runs one network. `active_hooks` are hooks that change what the network computes, and so are run too."""

    def __init__(self, network: nn.Module, active_hooks: Sequence[object] = ()) -> None:
        self.network, self._active_hooks = network, active_hooks

    def run(self, function: Callable[[], Result], seed: int = 0) -> Result:
        modules = list(self.network.modules())
        kept = [_SavedModule(module) for module in modules]
        fast = torch.backends.mha.get_fastpath_enabled()
        try:
            for module in modules:
                self._disable_hooks(module)
            torch.backends.mha.set_fastpath_enabled(False)  # otherwise layers are run without being called
            # Hide saved tensors from a checkpoint around the network, which counts them; and accept a hook's in-place
            # changes of saved tensors, as the network continues with the changed values.
            with _fixed_seeds(seed, self.network), saved_tensors_hooks(_detach, _return_unchanged):
                return function()
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for state in kept:
                state.restore()

    def _disable_hooks(self, module: nn.Module) -> None:
        for name in HOOKS:
            hooks = vars(module)[name]
            for key in [key for key, hook in hooks.items() if not any(hook is active for active in self._active_hooks)]:
                del hooks[key]


class HookListener:
    """Watches the user's forward hooks in an ordinary pass, to find those that change the values they get."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._changing: list[object] = []
        self._held = [vars(module)[name] for module in modules for name in HOOKS[:2] if vars(module)[name]]
        self._before = [dict(hooks) for hooks in self._held]
        for hooks in self._held:
            hooks.update({key: self._wrap(hook) for key, hook in hooks.items()})

    def stop(self) -> list[object]:
        for hooks, before in zip(self._held, self._before, strict=True):
            hooks.update({key: hook for key, hook in before.items() if key in hooks})
        return self._changing

    def _wrap(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            tensors = [leaf for leaf in tree_leaves(given[1:]) if isinstance(leaf, Tensor)]
            versions = [tensor._version for tensor in tensors]
            result = hook(*given)
            if result is not None or versions != [tensor._version for tensor in tensors]:
                self._changing.append(hook)
            return result

        return run


class _SavedModule:
    """A module's saved attributes, one level deep, with the values of its buffers."""

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
                if not torch.equal(buffer, value):  # don't bump the version of a buffer that another pass has saved
                    buffer.copy_(value)


def _detach(value: Tensor) -> Tensor:
    """Return the tensor in the same memory, without its graph: an operation that saves its own output would otherwise
    keep itself, and everything before it, alive for ever."""
    return value.detach()


def _return_unchanged(value: Tensor) -> Tensor:
    return value


def _refill(held: Any, before: Any) -> None:
    if isinstance(held, list):
        held[:] = before
    else:
        held.clear()
        held.update(before)


@contextmanager
def _fixed_seeds(seed: int, network: nn.Module) -> Iterator[None]:
    gpus = sorted({p.device.index or 0 for p in network.parameters() if p.device.type == "cuda"})
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=gpus):
            # Not torch.manual_seed, which keeps a traceback for each kind of accelerator.
            torch.default_generator.manual_seed(seed)
            if gpus:
                torch.cuda.manual_seed_all(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
