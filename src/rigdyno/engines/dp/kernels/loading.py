"""Loads kernels before the first step, and gives back the memory that their compiler took.

A kernel is loaded by its first call, and LLVM comes with it: some 75 MB of a library's pages, and as much of the heap.
Loaded in the middle of a step, it would come on top of all activations. Loaded before, its pages can be given back:
they are read from disk again in case another kernel is compiled.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from rigdyno.engines.dp.kernels import Array

SMAPS = Path("/proc/self/smaps")
COMPILER = "libllvmlite"
MADV_DONTNEED = 4
HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) .*$")


def load(names: Iterable[str]) -> None:
    """Those of the files of this folder; each is called with nothing to do."""
    for name in sorted(set(names)):
        CALLS[name]()
    _give_back()


def _singles(axes: int) -> Array:
    return np.zeros((0, *(1,) * (axes - 1)), np.float32)


def _doubles(*shape: int) -> Array:
    return np.zeros(shape, np.float64)


def _whole(count: int) -> Array:
    return np.zeros(count, np.int64)


def _load_norms() -> None:
    from rigdyno.engines.dp.kernels import gram, norms

    norms.squares(_singles(2), _doubles(0))
    gram.gram(_singles(3), _singles(3), _doubles(0), 1.0)


def _load_noise() -> None:
    from rigdyno.engines.dp.kernels import noise

    noise.release_single(_singles(1), np.zeros(8, np.uint32), 1, 1.0, 1.0)


def _load_depthwise() -> None:
    from rigdyno.engines.dp.kernels import depthwise

    maps, taps, one, sums = _singles(4), np.zeros((1, 1, 1), np.float32), np.zeros(1, np.float32), _singles(2)
    rest = (maps, taps, maps, maps, _doubles(0), _whole(10))
    depthwise.forward(maps, taps, maps, _whole(10))
    depthwise.backward(maps, *rest)
    depthwise.backward_again(_singles(3), *rest, one, one, sums, sums, 0)


def _load_convolution() -> None:
    from rigdyno.engines.dp.kernels import convolution

    convolution.weight_gradients(_singles(4), _singles(4), _singles(4), _doubles(0), _whole(5))


def _load_group_norm() -> None:
    from rigdyno.engines.dp.kernels import group_norm

    maps, sums, one = _singles(3), _singles(2), np.zeros(1, np.float32)
    group_norm.forward(maps, one, one, maps, sums, sums, 1.0, 0)
    group_norm.backward(maps, maps, one, one, sums, sums, maps, sums, sums, _doubles(2, 0), 0)


def _load_layer_norm() -> None:
    from rigdyno.engines.dp.kernels import layer_norm

    rows, sums, one = _singles(3), _singles(2), np.zeros(1, np.float32)
    layer_norm.backward(rows, rows, one, sums, sums, rows, sums, sums, _doubles(2, 0))


CALLS: dict[str, Callable[[], None]] = {
    "norms": _load_norms,
    "noise": _load_noise,
    "depthwise": _load_depthwise,
    "convolution": _load_convolution,
    "group_norm": _load_group_norm,
    "layer_norm": _load_layer_norm,
}


def _give_back() -> None:
    """Unused parts of the heap, and the compiler's code; elsewhere than on Linux all stays as it is."""
    if not sys.platform.startswith("linux") or not SMAPS.exists():
        return
    system = ctypes.CDLL(None)
    for start, end in code_pages(SMAPS.read_text()):
        system.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)
    if hasattr(system, "malloc_trim"):
        system.malloc_trim(0)


def code_pages(smaps: str) -> list[tuple[int, int]]:
    """Where the compiler's code and its constants lie. Pages that this process has changed aren't in its file, and
    would be lost: a stretch that has any of them is left alone, and so is whatever may be written to."""
    found: list[tuple[int, int]] = []
    inside = False
    for line in smaps.splitlines():
        head = HEAD.match(line)
        if head:
            inside = COMPILER in line and head[3] in ("r-xp", "r--p")
            if inside:
                found.append((int(head[1], 16), int(head[2], 16)))
        elif inside and line.startswith(("Private_Dirty:", "Anonymous:")) and line.split()[1] != "0":
            found.pop()
            inside = False
    return found
