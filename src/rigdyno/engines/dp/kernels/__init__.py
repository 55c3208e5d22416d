"""Loops that torch has no fast operation for, compiled by Numba where it is installed.

A kernel is written once, with `numba.prange` where the work divides, and compiled twice: with threads and without.
Numba's `omp` threads are torch's own, so the two don't fight for cores; its other layers make a step slower than no
threads at all. Where `omp` is missing, or after a fork, which OpenMP's threads don't survive, the serial variant runs.

This module can be imported without Numba; the others of this folder can't, so ask `why_not()` first.
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

from rigdyno.engines.dp.errors import BadSetting, MissingExtra

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Function = TypeVar("Function", bound=Callable[..., Any])

Array = NDArray[np.generic]
# Fused multiply-add, and no sign of zero: no result moves by more than a rounding.
CAREFUL = frozenset({"contract", "nsz"})

# Whoever is forked by multiprocessing and imports this only then isn't seen by the hook below.
_forked = isinstance(multiprocessing.current_process(), multiprocessing.context.ForkProcess)


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def why_not() -> str | None:
    """The reason, in words, why kernels can't be used in this process; None where they can."""
    try:
        import numba
    except ImportError as reason:  # also a Numba that refuses this NumPy
        return f"Numba can't be imported ({reason}); try `pip install 'rigdyno[private]'`"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set, and kernels that aren't compiled take minutes"
    return None


def usable(asked: bool | None, device: torch.device) -> bool:
    """As asked for; None leaves it to what the device and this process can do."""
    if asked and device.type != "cpu":
        raise BadSetting(f"the kernels are for the CPU, not for {device}; try kernels=None")
    reason = why_not()
    if asked and reason is not None:
        raise MissingExtra(f"no kernels here: {reason}")
    return asked is not False and device.type == "cpu" and reason is None


def threads() -> int:
    """How many threads a parallel kernel uses now, and Numba is told so: as many as torch, which may change between
    two calls. With 1 the serial variant runs."""
    wanted = torch.get_num_threads()
    if wanted == 1 or _forked or not _omp_runs():
        return 1
    import numba

    count = min(wanted, int(numba.config.NUMBA_NUM_THREADS))
    numba.set_num_threads(count)  # every time: Numba keeps the number per thread of Python
    return count


@cache
def _omp_runs() -> bool:
    if why_not() is not None:
        return False
    import numba

    try:
        return bool(numba.threading_layer() == "omp")
    except ValueError:  # no layer runs yet
        return _launch_omp()


def _launch_omp() -> bool:
    """Leaves no trace where it fails: somebody else's kernels keep the layer they asked for."""
    import numba

    asked_for, undecided = numba.config.THREADING_LAYER, not multiprocessing.get_start_method(allow_none=True)
    numba.config.THREADING_LAYER = "omp"
    try:
        numba.get_num_threads()
    except ValueError:
        numba.config.THREADING_LAYER = asked_for
        return False
    finally:
        if undecided:  # Numba asks for the start method, which settles it: a later set_start_method would be refused
            multiprocessing.set_start_method(None, force=True)
    return True


class Kernel(Generic[Arguments, Answer]):
    """Called like the function it was made of. Nothing is compiled before the first call of a variant."""

    def __init__(self, function: Callable[Arguments, Answer], fastmath: bool | Collection[str]) -> None:
        self._function, self._fastmath = function, fastmath
        self.__doc__ = function.__doc__

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        variant = self.parallel if threads() > 1 else self.serial
        try:
            return variant(*args, **kwargs)
        except OSError:  # a full disk, say: it is compiled and hasn't run, only keeping it failed
            return variant(*args, **kwargs)

    @cached_property
    def parallel(self) -> Callable[Arguments, Answer]:
        _omp_runs()  # or else Numba launches a layer of its own choice
        return _compiled(_copy_named(self._function, "parallel"), parallel=True, **_options(self._fastmath))

    @cached_property
    def serial(self) -> Callable[Arguments, Answer]:
        return _compiled(_copy_named(self._function, "serial"), parallel=False, **_options(self._fastmath))


def kernel(
    *, fastmath: bool | Collection[str] = False
) -> Callable[[Callable[Arguments, Answer]], Kernel[Arguments, Answer]]:
    """For a function over NumPy arrays and numbers that is to run on all of torch's threads:

        @kernel(fastmath=CAREFUL)
        def row_sums(rows: Array, sums: Array) -> None:
            for row in prange(len(rows)):
                sums[row] = _sum(rows[row])

        row_sums(rows.numpy(), sums.numpy())

    It takes about 2 microseconds to choose a variant, and Numba's own call a few tenths for each array. Both variants
    can be had by name, `row_sums.serial(...)`, for tests. The machine code is kept on disk, in `__pycache__` or where
    NUMBA_CACHE_DIR says. Global numbers are constants; indices aren't checked; a division by zero gives infinity or
    NaN. What it calls is a `helper` or `inlined`.

    `fastmath` names the liberties that LLVM may take, True is all of them. "reassoc" lets sums run in vectors, and
    breaks what relies on the order of operations, such as a hand-written exp. "nnan" and "ninf" hide a NaN.
    """
    return lambda function: Kernel(function, fastmath)


def helper(*, fastmath: bool | Collection[str] = False) -> Callable[[Function], Function]:
    """For what a kernel calls: compiled as part of it, with liberties of its own, and without threads."""
    import numba

    compiled = numba.njit(**_options(fastmath))

    def made(function: Function) -> Function:
        return cast(Function, compiled(_named_by_contents(function)))

    return made


def inlined(function: Function, fastmath: bool | Collection[str] = False) -> Function:
    """For a formula inside of a kernel's loop: LLVM makes vectors of a loop only if no call is left in it. Whatever the
    kernel's liberties, its own are none, unless they are named."""
    import numba

    return cast(Function, numba.njit(forceinline=True, **_options(fastmath))(_named_by_contents(function)))


def _named_by_contents(function: Function) -> Function:
    """What Numba has compiled and kept is linked by name, and within a process by a number that the next process gives
    to something else. Two functions of one name, such as a factory makes, would stand in for each other."""
    contents = [_told(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ()]
    if contents:
        function.__qualname__ += "_" + hashlib.sha256("|".join(contents).encode()).hexdigest()[:8]
    return function


def _told(value: Any) -> str:
    """A function or a type by its name, anything else by its value."""
    return str(getattr(getattr(value, "py_func", value), "__qualname__", None) or repr(value))


def _options(fastmath: bool | Collection[str]) -> dict[str, Any]:
    liberties = fastmath if isinstance(fastmath, bool) else set(fastmath)
    return {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": liberties}


def _compiled(function: Callable[Arguments, Answer], **options: Any) -> Callable[Arguments, Answer]:
    import numba

    try:
        return cast(Callable[Arguments, Answer], numba.njit(cache=True, **options)(function))
    except RuntimeError:  # there's no folder that it may write to
        return cast(Callable[Arguments, Answer], numba.njit(**options)(function))


def _copy_named(function: Callable[Arguments, Answer], variant: str) -> Callable[Arguments, Answer]:
    """Numba's cache knows functions by name and line, not by their options: it would hand out one variant for the
    other."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__qualname__ = f"{function.__qualname__}_{variant}_{_edition()}"
    return copy


@cache
def _edition() -> str:
    """Of all kernels together: Numba's cache sees that a kernel's own file changed, but not the helpers it imports."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]
