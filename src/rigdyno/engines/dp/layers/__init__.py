"""How each kind of layer tells its per-sample gradients: one file a rule, found by itself.

A rule names the modules that it `handles` and takes over their `forward`. What no rule handles goes the generic way.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from rigdyno.engines.dp.clipping import Clipping

# A weight and its bias. In a tuple, so that autograd doesn't see them: their gradients go another way.
Affine: TypeAlias = "tuple[Tensor, Tensor | None]"


class Layer:
    """One module of the network, run by a rule; `forward` stands in for the module's own."""

    handles: ClassVar[tuple[type[nn.Module], ...]] = ()

    def __init__(self, module: nn.Module, name: str, clipping: Clipping) -> None:
        self.module, self.name, self.clipping = module, name, clipping

    @classmethod
    def can(cls, module: nn.Module) -> bool:
        """Whether the rule covers this module's options; the generic way covers the rest."""
        return True

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        """Why this module can't be trained privately at all."""
        return None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return type(self.module).forward(self.module, *args, **kwargs)
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def kernels_fit(self, inputs: Tensor) -> bool:
        return self.clipping.kernels and inputs.dtype == torch.float32 and inputs.device.type == "cpu"

    def trained(self, parameter: Any) -> bool:
        return parameter is not None and parameter in self.clipping.gradients


@cache
def rules() -> dict[type[nn.Module], type[Layer]]:
    """By the exact type: a subclass may compute something else, and goes the generic way."""
    found: dict[type[nn.Module], type[Layer]] = {}
    for entry in pkgutil.iter_modules(__path__):
        if entry.name.startswith("_"):
            continue
        rule = importlib.import_module(f"{__name__}.{entry.name}").Rule
        found.update(dict.fromkeys(rule.handles, rule))
    return found
