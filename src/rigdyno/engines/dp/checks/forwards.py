"""Replaced forwards of modules, and their copies.

A copy of a private network (by deepcopy or torch.save) uses the forwards of its classes, so it can serve as a teacher
or as an average of weights. It isn't private: a gradient that reaches one of its parameters is refused.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rigdyno.engines.dp.errors import Unprotected


class ReplacedForward:
    """The forward of a module that is run by a rule. `user_forward` is one that the user had set on the module."""

    def __init__(self, module: nn.Module, run: Callable[..., Any]) -> None:
        self._module, self._run = module, run
        self.user_forward = find_user_forward(module)
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def undo(self) -> None:
        if self.user_forward is None:
            vars(self._module).pop("forward", None)
        else:
            self._module.forward = self.user_forward

    def __deepcopy__(self, memo: dict[int, Any]) -> CopiedForward:
        return CopiedForward(memo.get(id(self._module), self._module), copy.deepcopy(self.user_forward, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedForward, (self._module, self.user_forward)


class NetworkForward(ReplacedForward):
    """The forward of the whole network: a direct call of `network.forward(...)` also passes the input guard."""

    def __init__(self, network: nn.Module) -> None:
        functools.update_wrapper(self, network.forward)  # trainers inspect the names of its arguments
        self._before = vars(network).get("forward")
        self._calls = _OpenCalls()
        super().__init__(network, network.forward)
        if isinstance(self._before, ReplacedForward):
            self.user_forward = self._before.user_forward

    def enter(self) -> None:
        self._calls.open += 1

    def leave(self) -> None:
        self._calls.open -= 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._calls.open:
            return self._run(*args, **kwargs)
        self._calls.open += 1
        try:
            return self._module(*args, **kwargs)
        finally:
            self._calls.open -= 1

    def undo(self) -> None:
        if self._before is None:
            vars(self._module).pop("forward", None)
        else:
            self._module.forward = self._before


class _OpenCalls(threading.local):
    open = 0  # number of calls of this thread that have passed the input guard


def is_private(network: nn.Module) -> bool:
    """Return True if an engine runs the network or a part of it."""
    return any(isinstance(vars(module).get("forward"), ReplacedForward) for module in network.modules())


class CopiedForward:
    """The forward of a module of a copied network."""

    def __init__(self, module: nn.Module, user_forward: Callable[..., Any] | None = None) -> None:
        self._module, self._user_forward = module, user_forward
        self._watched: set[int] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._watch()
        if self._user_forward is not None:
            return self._user_forward(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)

    def _watch(self) -> None:
        for parameter in self._module.parameters():
            if parameter.requires_grad and id(parameter) not in self._watched:
                parameter.register_hook(_refuse_gradient)
                self._watched.add(id(parameter))

    def __deepcopy__(self, memo: dict[int, Any]) -> CopiedForward:
        return CopiedForward(memo.get(id(self._module), self._module), copy.deepcopy(self._user_forward, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedForward, (self._module, self._user_forward)


def find_user_forward(module: nn.Module) -> Callable[..., Any] | None:
    """Return the forward that the user has set on this module instance; None if there is none."""
    found: Callable[..., Any] | None = vars(module).get("forward")
    return None if isinstance(found, CopiedForward | ReplacedForward) else found


def _refuse_gradient(gradient: Tensor) -> None:
    raise Unprotected(
        "a copy of a private network would be trained without clipping and noise: load its state dict into a new "
        "network and call make_private for that one; as a teacher or an average, freeze it with requires_grad_(False)"
    )
