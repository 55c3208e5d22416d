"""Load kernels before the first step, and return the memory of their compiler to the system.

A kernel is loaded by its first call, together with LLVM: about 75 MB of library pages, and as much of the heap. Loaded
during a step, these would add to the activations' memory. Loaded before, the pages can be returned: they are read from
disk again if another kernel is compiled.
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


def load_kernels(names: Iterable[str]) -> None:
    """Load the kernels of these files of this folder, by calling each with empty arrays."""
    for name in sorted(set(names)):
        CALLS[name]()
    _return_compiler_memory()


def _make_singles(axes: int) -> Array:
    return np.zeros((0, *(1,) * (axes - 1)), np.float32)


def _make_doubles(*shape: int) -> Array:
    return np.zeros(shape, np.float64)


def _make_integers(count: int) -> Array:
    return np.zeros(count, np.int64)


def _load_norms() -> None:
    from rigdyno.engines.dp.kernels import gram
    from rigdyno.engines.dp.kernels import sums as norms

    norms.squares(_make_singles(2), _make_doubles(0))
    gram.gram(_make_singles(3), _make_singles(3), _make_doubles(0), 1.0)


def _load_noise() -> None:
    from rigdyno.engines.dp.kernels import noise

    noise.release_single(_make_singles(1), np.zeros(8, np.uint32), 1, 1.0, 1.0)


def _load_depthwise() -> None:
    from rigdyno.engines.dp.kernels import depthwise

    maps, taps, one, sums = _make_singles(4), np.zeros((1, 1, 1), np.float32), np.zeros(1, np.float32), _make_singles(2)
    rest = (maps, taps, maps, maps, _make_doubles(0), _make_integers(10))
    depthwise.forward(maps, taps, maps, _make_integers(10))
    depthwise.backward(maps, *rest)
    depthwise.backward_again(_make_singles(3), *rest, one, one, sums, sums, 0)


def _load_convolution() -> None:
    from rigdyno.engines.dp.kernels import convolution

    convolution.weight_gradients(
        _make_singles(4), _make_singles(4), _make_singles(4), _make_doubles(0), _make_integers(5)
    )


def _load_group_norm() -> None:
    from rigdyno.engines.dp.kernels import group_norm

    maps, sums, one = _make_singles(3), _make_singles(2), np.zeros(1, np.float32)
    group_norm.forward(maps, one, one, maps, sums, sums, 1.0, 0)
    group_norm.backward(maps, maps, one, one, sums, sums, maps, sums, sums, _make_doubles(2, 0), 0)


def _load_layer_norm() -> None:
    from rigdyno.engines.dp.kernels import layer_norm

    rows, sums, one = _make_singles(3), _make_singles(2), np.zeros(1, np.float32)
    layer_norm.backward(rows, rows, one, sums, sums, rows, sums, sums, _make_doubles(2, 0))


CALLS: dict[str, Callable[[], None]] = {
    "norms": _load_norms,
    "noise": _load_noise,
    "depthwise": _load_depthwise,
    "convolution": _load_convolution,
    "group_norm": _load_group_norm,
    "layer_norm": _load_layer_norm,
}


def _return_compiler_memory() -> None:
    """Return unused parts of the heap and the compiler's code to the system. Does nothing except on Linux."""
    if not sys.platform.startswith("linux") or not SMAPS.exists():
        return
    system = ctypes.CDLL(None)
    for start, end in find_code_pages(SMAPS.read_text()):
        system.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)
    if hasattr(system, "malloc_trim"):
        system.malloc_trim(0)


def find_code_pages(smaps: str) -> list[tuple[int, int]]:
    """Return the address ranges of the compiler's code and constants.

    Pages that this process has changed aren't in the library's file and would be lost. So ranges with such pages, and
    writable ranges, are left out.
    """
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
