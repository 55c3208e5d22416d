"""Which samples the rows of a tensor are, by what is in them: for inputs that no longer lie in the drawn memory.

A mark is a hash of a row, or of some of its values, in integers: it doesn't depend on how many rows there are.
Rows of few values or of fewer than three different ones (masks, classes) are alike by chance, and have no mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST_VALUES = 4
MOST_VALUES = 32  # of a row: so much tells samples apart, and a step doesn't notice it


@dataclass(frozen=True)
class Marks:
    """Of one tensor: a hash for each row, None where it says nothing."""

    width: int  # values in a row: marks of other widths can't be compared
    of_rows: tuple[int | None, ...]

    @cached_property
    def known(self) -> list[int]:
        return [mark for mark in self.of_rows if mark is not None]

    @cached_property
    def distinct(self) -> frozenset[int]:
        return frozenset(self.known)

    @property
    def telling(self) -> bool:
        """Whether rows differ from each other: positions, say, are the same for all samples."""
        return 0 < len(self.known) <= 2 * len(self.distinct)

    @cached_property
    def copies(self) -> int:
        """How often the most frequent row is there."""
        return max(Counter(self.known).values(), default=0)

    def shared(self, others: Marks) -> int:
        """How many rows both have."""
        if self.width != others.width or self.distinct.isdisjoint(others.distinct):
            return 0
        return len(self.distinct & others.distinct)

    def places_of(self, others: Marks) -> list[int | None]:
        """In which of these rows each of the others is; the same place where that fits, each place once."""
        free: dict[int | None, list[int]] = {}
        for place, mark in enumerate(self.of_rows):
            free.setdefault(mark, []).append(place)
        found: list[int | None] = [None] * len(others.of_rows)
        for here, mark in enumerate(others.of_rows):
            if mark is not None and here in free.get(mark, ()):
                free[mark].remove(here)
                found[here] = here
        for here, mark in enumerate(others.of_rows):
            if mark is not None and found[here] is None and free.get(mark):
                found[here] = free[mark].pop(0)
        return found


def marks_of(rows: Tensor) -> Marks | None:
    """None where nothing can be told."""
    if rows.layout != torch.strided or rows.is_nested or rows.dim() < 2 or rows.is_complex() or len(rows) == 0:
        return None
    width = rows[0].numel()
    if width < LEAST_VALUES:
        return None
    places, factors = _hash(width)
    values = rows.detach().reshape(len(rows), width)
    values = values if places is None else values.index_select(1, places.to(values.device))
    exact = values.cpu().double().numpy() + 0.0  # -0.0 is 0.0
    marks = (exact.view(np.int64) * factors).sum(axis=1).tolist()
    ends = exact.min(axis=1, keepdims=True), exact.max(axis=1, keepdims=True)
    says = ((exact != ends[0]) & (exact != ends[1])).any(axis=1).tolist()
    return Marks(width, tuple(mark if one else None for mark, one in zip(marks, says, strict=True)))


def all_marks(tensors: Sequence[Tensor], samples: int) -> list[Marks]:
    """Of those that have a row for each sample, and tell samples apart."""
    found = [marks_of(tensor) for tensor in tensors if len(tensor) == samples]
    return [marks for marks in found if marks is not None and marks.telling]


@cache
def _hash(width: int) -> tuple[Tensor | None, NDArray[np.int64]]:
    chance = torch.Generator().manual_seed(width)
    count = min(width, MOST_VALUES)
    places = None if count == width else torch.randperm(width, generator=chance)[:count].sort().values
    return places, (torch.randint(-(2**62), 2**62, (count,), generator=chance) * 2 + 1).numpy()
