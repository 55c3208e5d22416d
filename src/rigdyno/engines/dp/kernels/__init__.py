"""Kernels: loops for which torch has no fast operation, compiled by Numba if it is installed.

A kernel is written once, with `numba.prange` for its parallel loop, and compiled twice: with threads and without.
Numba's `omp` threading layer uses torch's own threads, so the two don't compete for cores; with its other layers a step
is slower than without threads. The serial variant runs if `omp` is missing, and after a fork, as OpenMP's threads don't
survive one.

This module can be imported without Numba. The other modules of this folder can't: call `explain_unavailable()` first.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.context
import os
from collections.abc import Callable, Collection
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.dp.errors import BadSetting

Arguments = ParamSpec("Arguments")

Result = TypeVar("Result")

Function = TypeVar("Function", bound=Callable[..., Any])

Array = NDArray[np.generic]

# Allows fused multiply-add, and ignores the sign of zero: no result changes by more than a rounding.
CAREFUL = frozenset({"contract", "nsz"})

# The hook below isn't called in a process that was forked by multiprocessing before this import.
_forked = isinstance(multiprocessing.current_process(), multiprocessing.context.ForkProcess)


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def explain_unavailable() -> str | None:
    """Return why kernels can't be used in this process; None if they can."""
    try:
        import numba
    except ImportError as reason:  # also if Numba doesn't support this version of NumPy
        return f"Numba can't be imported ({reason}); try `pip install 'rigdyno[private]'`"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set, and kernels that aren't compiled take minutes"
    return None


def should_use_kernels(asked: bool | None, device: torch.device) -> bool:
    """Return `asked`, or raise if it is impossible. None: use kernels if the device and this process allow it."""
    if asked and device.type != "cpu":
        raise BadSetting(f"the kernels are for the CPU, not for {device}; try kernels=None")
    reason = explain_unavailable()
    if asked and reason is not None:
        raise MissingExtra(f"no kernels here: {reason}")
    return asked is not False and device.type == "cpu" and reason is None


def threads() -> int:
    """Return the number of threads for a parallel kernel, after setting it in Numba: as many as torch uses now.

    With 1 thread the serial variant runs.
    """
    wanted = torch.get_num_threads()
    if wanted == 1 or _forked or not _has_omp():
        return 1
    import numba

    count = min(wanted, int(numba.config.NUMBA_NUM_THREADS))
    numba.set_num_threads(count)  # every time: Numba has a separate number for each Python thread
    return count


@cache
def _has_omp() -> bool:
    if explain_unavailable() is not None:
        return False
    import numba

    try:
        return bool(numba.threading_layer() == "omp")
    except ValueError:  # no threading layer is running yet
        return _launch_omp()


def _launch_omp() -> bool:
    """Launch the `omp` layer. If that fails, restore the setting, so that the user's own kernels get theirs."""
    import numba

    asked_for, undecided = numba.config.THREADING_LAYER, not multiprocessing.get_start_method(allow_none=True)
    numba.config.THREADING_LAYER = "omp"
    try:
        numba.get_num_threads()
    except ValueError:
        numba.config.THREADING_LAYER = asked_for
        return False
    finally:
        if undecided:  # Numba's query has fixed the start method, so that a later set_start_method would be refused
            multiprocessing.set_start_method(None, force=True)
    return True


class Kernel(Generic[Arguments, Result]):
    """A compiled function, called like the original. Nothing is compiled before the first call of a variant."""

    def __init__(self, function: Callable[Arguments, Result], fastmath: bool | Collection[str]) -> None:
        self._function, self._fastmath = function, fastmath
        self.__doc__ = function.__doc__

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        variant = self.parallel if threads() > 1 else self.serial
        try:
            return variant(*args, **kwargs)
        except OSError:  # a full disk, for example: it is compiled but hasn't run, because caching failed
            return variant(*args, **kwargs)

    @cached_property
    def parallel(self) -> Callable[Arguments, Result]:
        _has_omp()  # otherwise Numba would launch another layer
        return _compile(_copy_named(self._function, "parallel"), parallel=True, **_options(self._fastmath))

    @cached_property
    def serial(self) -> Callable[Arguments, Result]:
        return _compile(_copy_named(self._function, "serial"), parallel=False, **_options(self._fastmath))


def kernel(
    *, fastmath: bool | Collection[str] = False
) -> Callable[[Callable[Arguments, Result]], Kernel[Arguments, Result]]:
    """Compile a function over NumPy arrays and numbers, to run on all of torch's threads:

        @kernel(fastmath=CAREFUL)
        def row_sums(rows: Array, sums: Array) -> None:
            for row in prange(len(rows)):
                sums[row] = _sum(rows[row])

        row_sums(rows.numpy(), sums.numpy())

    Choosing a variant takes about 2 microseconds, and Numba's own call a few tenths for each array. Tests may call each
    variant by name, such as `row_sums.serial(...)`. The machine code is cached in `__pycache__`, or in NUMBA_CACHE_DIR.
    Global numbers are constants; indices aren't checked; a division by zero gives infinity or NaN. Functions that a
    kernel calls must be decorated with `helper` or `inlined`.

    `fastmath` lists LLVM's fast-math flags; True sets all of them. "reassoc" lets sums run in vectors, but breaks code
    that relies on the order of operations, such as a hand-written exp. "nnan" and "ninf" hide a NaN.
    """
    return lambda function: Kernel(function, fastmath)


def helper(*, fastmath: bool | Collection[str] = False) -> Callable[[Function], Function]:
    """Compile a function that kernels call. It has its own fast-math flags and no threads."""
    import numba

    compiled = numba.njit(**_options(fastmath))

    def compile_helper(function: Function) -> Function:
        return cast(Function, compiled(_name_by_contents(function)))

    return compile_helper


def inlined(function: Function, fastmath: bool | Collection[str] = False) -> Function:
    """Inline a formula into a kernel's loop: LLVM vectorises a loop only if it contains no call.

    The formula has no fast-math flags unless they are given, whatever those of the kernel are.
    """
    import numba

    return cast(Function, numba.njit(forceinline=True, **_options(fastmath))(_name_by_contents(function)))


def _name_by_contents(function: Function) -> Function:
    """Make the name of a function depend on its closure.

    Numba links cached code by name, and within a process by a number that the next process gives to other code. Without
    this, two functions of the same name, as made by a factory, could be mistaken for each other.
    """
    contents = [_describe(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ()]
    if contents:
        function.__qualname__ += "_" + hashlib.sha256("|".join(contents).encode()).hexdigest()[:8]
    return function


def _describe(value: Any) -> str:
    """Return the name of a function or a type, else the value as text."""
    return str(getattr(getattr(value, "py_func", value), "__qualname__", None) or repr(value))


def _options(fastmath: bool | Collection[str]) -> dict[str, Any]:
    flags = fastmath if isinstance(fastmath, bool) else set(fastmath)
    return {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": flags}


def _compile(function: Callable[Arguments, Result], **options: Any) -> Callable[Arguments, Result]:
    import numba

    try:
        return cast(Callable[Arguments, Result], numba.njit(cache=True, **options)(function))
    except RuntimeError:  # there is no writable folder for the cache
        return cast(Callable[Arguments, Result], numba.njit(**options)(function))


def _copy_named(function: Callable[Arguments, Result], variant: str) -> Callable[Arguments, Result]:
    """Copy a function under another name: Numba's cache identifies functions by name and line, not by their options,
    and would confuse the variants."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__qualname__ = f"{function.__qualname__}_{variant}_{_hash_sources()}"
    return copy


@cache
def _hash_sources() -> str:
    """Return a hash of all kernel files: Numba's cache notices a change of a kernel's own file, but not of the helpers
    it imports."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]
