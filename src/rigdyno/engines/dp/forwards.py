"""What stands in a module for its own forward, and what becomes of it in a copy.

A copy of a private network (deepcopy, torch.save) computes as its classes do, so it serves as a teacher or an average
of weights. It is not private: a gradient that reaches one of its parameters is refused.
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


class Forward:
    """Of a module that a rule runs; `own` is a forward that the user had put into the module itself."""

    def __init__(self, module: nn.Module, run: Callable[..., Any]) -> None:
        self._module, self._run = module, run
        self.own = own_forward(module)
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def undo(self) -> None:
        if self.own is None:
            vars(self._module).pop("forward", None)
        else:
            self._module.forward = self.own

    def __deepcopy__(self, memo: dict[int, Any]) -> Copied:
        return Copied(memo.get(id(self._module), self._module), copy.deepcopy(self.own, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Copied, (self._module, self.own)


class Whole(Forward):
    """Of the network itself: whoever calls `network.forward(...)` goes in by its door all the same."""

    def __init__(self, network: nn.Module) -> None:
        functools.update_wrapper(self, network.forward)  # trainers ask for the names of its arguments
        self._before = vars(network).get("forward")
        self._here = _Calls()
        super().__init__(network, network.forward)
        if isinstance(self._before, Forward):
            self.own = self._before.own

    def enter(self) -> None:
        self._here.open += 1

    def leave(self) -> None:
        self._here.open -= 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._here.open:
            return self._run(*args, **kwargs)
        self._here.open += 1
        try:
            return self._module(*args, **kwargs)
        finally:
            self._here.open -= 1

    def undo(self) -> None:
        if self._before is None:
            vars(self._module).pop("forward", None)
        else:
            self._module.forward = self._before


class _Calls(threading.local):
    open = 0  # of this thread, that came in by the door


def is_private(network: nn.Module) -> bool:
    """Whether an engine runs a part of it now."""
    return any(isinstance(vars(module).get("forward"), Forward) for module in network.modules())


class Copied:
    """Forward of a copy."""

    def __init__(self, module: nn.Module, own: Callable[..., Any] | None = None) -> None:
        self._module, self._own = module, own
        self._watched: set[int] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._watch()
        if self._own is not None:
            return self._own(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)

    def _watch(self) -> None:
        for parameter in self._module.parameters():
            if parameter.requires_grad and id(parameter) not in self._watched:
                parameter.register_hook(_refuse)
                self._watched.add(id(parameter))

    def __deepcopy__(self, memo: dict[int, Any]) -> Copied:
        return Copied(memo.get(id(self._module), self._module), copy.deepcopy(self._own, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Copied, (self._module, self._own)


def own_forward(module: nn.Module) -> Callable[..., Any] | None:
    """That the user has put into this very module, past its class."""
    found: Callable[..., Any] | None = vars(module).get("forward")
    return None if isinstance(found, Copied | Forward) else found


def _refuse(gradient: Tensor) -> None:
    raise Unprotected(
        "a copy of a private network would be trained without clipping and noise: load its state dict into a new "
        "network and call make_private for that one; as a teacher or an average, freeze it with requires_grad_(False)"
    )
