"""The fast path of the step meter, for steps that are one row each: it records only when each step ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


def do_nothing() -> None:
    pass


def return_same(number: int) -> int:
    return number


class FastPath(NamedTuple):
    step: Callable[..., None]
    open: Callable[[float, int, float], None]  # takes the items per step, the number of steps, and the end in ns


def make_fast_path(
    now_ns: Callable[[], int], ends_ns: list[int], otherwise: Callable[[float, int], None], look: Callable[[], None]
) -> FastPath:
    """Return a fast path that appends the end of each step to `ends_ns`.

    `step` calls `otherwise` until the path is opened, and for every step with a different number of items. It calls
    `look` after the given number of steps, or at the given time.

    These are closures, because every measured step pays for this function: a step leaves cold caches behind, and each
    attribute of an object is one more cache line to fetch. So is each variable of a closure; values that never change
    are default arguments instead.
    """
    usual_items, steps_left, look_ns = math.nan, 0, 0.0
    append = ends_ns.append

    def step(
        items: float = 1.0,
        kind: int = 0,
        _now_ns: Callable[[], int] = now_ns,
        _record: Callable[[int], None] = append,
    ) -> None:
        nonlocal steps_left
        if items != usual_items:
            otherwise(items, kind)
            return
        end_ns = _now_ns()
        _record(end_ns)
        steps_left -= 1
        if end_ns >= look_ns or not steps_left:
            look()

    def open_path(items: float, steps: int, until_ns: float) -> None:
        nonlocal usual_items, steps_left, look_ns
        usual_items, steps_left, look_ns = items, steps, until_ns

    return FastPath(step, open_path)
