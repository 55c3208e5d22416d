"""Recipes to compute a feature map again.

A layer that needs a map in its backward pass keeps the map's recipe instead of the map; the tensors of the recipe are
kept anyway. Computing the map again, one sample at a time in the processor's cache, is faster than reading it from
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

_NAME = "_rigdyno_recipe"


@dataclass(frozen=True)
class Recipe:
    """The recipe of a GroupNorm's output with its activation: the norm's input, and mean and rstd of each group."""

    tensors: tuple[Tensor, ...]
    scale: Tensor
    shift: Tensor
    after: int

    def without_tensors(self) -> Recipe:
        """Return the recipe without its tensors, which are saved by autograd."""
        return replace(self, tensors=())

    def arguments(self, figures: Tensor) -> tuple[Any, ...]:
        """Return the arguments for the kernels."""
        mean, rstd = figures.numpy()
        return self.scale.detach().numpy(), self.shift.detach().numpy(), mean, rstd, self.after


def attach_recipe(made: Tensor, recipe: Recipe) -> None:
    setattr(made, _NAME, (recipe, made._version))


def find_recipe(made: Tensor) -> Recipe | None:
    """Return the recipe of a map; None if it has none, or was changed in place since."""
    recipe, version = getattr(made, _NAME, (None, 0))
    return recipe if version == made._version else None
