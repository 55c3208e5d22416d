"""Index arithmetic along one axis: which indices of one map answer which indices of another.

A span is half-open. Indices count from the origin of the block whose answer is wanted, and go below zero into its
halo; at a coarser level index 0 is the voxel that begins at the same place.
"""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> Span:
    starts, stops = zip(*spans, strict=True)
    return min(starts), max(stops)


def common(spans: Iterable[Span]) -> Span:
    starts, stops = zip(*spans, strict=True)
    return max(starts), min(stops)


def length(span: Span) -> int:
    return max(0, span[1] - span[0])


def rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step
