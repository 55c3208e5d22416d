"""Recognise samples by their content, for network inputs that are copies of the drawn tensors.

A mark is a hash of a row, or of some of its values, in integers, so it doesn't depend on the number of rows. Rows of
few values, or of fewer than three different values (masks, classes), may be equal by chance and have no mark.
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

MOST_VALUES = 32  # values hashed per row: enough to distinguish samples, in negligible time


@dataclass(frozen=True)
class Marks:
    """The marks of one tensor: a hash for each row, None for rows that may be equal by chance."""

    width: int  # values per row; marks of different widths can't be compared
    by_row: tuple[int | None, ...]

    @cached_property
    def known(self) -> list[int]:
        return [mark for mark in self.by_row if mark is not None]

    @cached_property
    def distinct(self) -> frozenset[int]:
        return frozenset(self.known)

    @property
    def are_distinctive(self) -> bool:
        """True if most rows differ from each other. Positions, for example, are the same for all samples."""
        return 0 < len(self.known) <= 2 * len(self.distinct)

    @cached_property
    def most_copies(self) -> int:
        """Number of copies of the most frequent row."""
        return max(Counter(self.known).values(), default=0)

    def count_shared(self, others: Marks) -> int:
        """Count the distinct rows that both have."""
        if self.width != others.width or self.distinct.isdisjoint(others.distinct):
            return 0
        return len(self.distinct & others.distinct)

    def match_rows(self, others: Marks) -> list[int | None]:
        """Return, for each row of `others`, the row here that equals it; None if there is none.

        The row of the same number is preferred, and each row is used once.
        """
        free: dict[int | None, list[int]] = {}
        for row, mark in enumerate(self.by_row):
            free.setdefault(mark, []).append(row)
        found: list[int | None] = [None] * len(others.by_row)
        for here, mark in enumerate(others.by_row):
            if mark is not None and here in free.get(mark, ()):
                free[mark].remove(here)
                found[here] = here
        for here, mark in enumerate(others.by_row):
            if mark is not None and found[here] is None and free.get(mark):
                found[here] = free[mark].pop(0)
        return found


def mark_rows(rows: Tensor) -> Marks | None:
    """Return the marks of a tensor; None if it can't have any."""
    if rows.layout != torch.strided or rows.is_nested or rows.dim() < 2 or rows.is_complex() or len(rows) == 0:
        return None
    width = rows[0].numel()
    if width < LEAST_VALUES:
        return None
    columns, factors = _hash_parameters(width)
    values = rows.detach().reshape(len(rows), width)
    values = values if columns is None else values.index_select(1, columns.to(values.device))
    exact = values.cpu().double().numpy() + 0.0  # -0.0 is 0.0
    marks = (exact.view(np.int64) * factors).sum(axis=1).tolist()
    ends = exact.min(axis=1, keepdims=True), exact.max(axis=1, keepdims=True)
    three_values = ((exact != ends[0]) & (exact != ends[1])).any(axis=1).tolist()
    return Marks(width, tuple(mark if enough else None for mark, enough in zip(marks, three_values, strict=True)))


def mark_tensors(tensors: Sequence[Tensor], samples: int) -> list[Marks]:
    """Return the marks of the tensors that have a row for each sample and distinguish samples."""
    found = [mark_rows(tensor) for tensor in tensors if len(tensor) == samples]
    return [marks for marks in found if marks is not None and marks.are_distinctive]


@cache
def _hash_parameters(width: int) -> tuple[Tensor | None, NDArray[np.int64]]:
    """Return the columns to hash (None: all) and a random odd factor for each."""
    generator = torch.Generator().manual_seed(width)
    count = min(width, MOST_VALUES)
    columns = None if count == width else torch.randperm(width, generator=generator)[:count].sort().values
    return columns, (torch.randint(-(2**62), 2**62, (count,), generator=generator) * 2 + 1).numpy()
