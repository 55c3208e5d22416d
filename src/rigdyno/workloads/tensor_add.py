"""Runs the published tensor add in three ways: as it ran, as it was meant, and measured properly.

The published function takes no argument and is scripted, so TorchScript folds it into a constant: every call returns
the same tensor, and the loop's `z0 += zz` adds that tensor to itself in place (2, 4, 8, ... inf). Only `as_published`
is comparable with the published figures.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rigdyno.base.units import show_bytes
from rigdyno.contracts import CannotRun, Options, Step, Steps, WorkerPlace, Workload
from rigdyno.contracts.options import Count
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import FILL_BYTES_PER_SECOND, IMPORT_BYTES, IMPORT_SECONDS, is_filled_with, is_host

if TYPE_CHECKING:
    import torch

Variant = Literal["as_published", "as_intended", "corrected"]

Check = Callable[[], bool]

_FLOAT32_BYTES = 4

_PEAK_TENSORS = {"as_published": 3, "as_intended": 4, "corrected": 3}

_FIRST_EXPONENT_OF_INF = 128  # 2**128 overflows float32

_BYTES_PER_SECOND, _FRESH_BYTES_PER_SECOND = 20e9, 7e9  # on a CPU: reused memory, and newly allocated memory

_EVEN_NUMBERS_END = 2**25  # adding 2 to this float32 doesn't change it

_PUBLISHED = """
def foo():
    x = torch.ones(({size}, {size}), dtype=torch.float32)
    y = torch.ones(({size}, {size}), dtype=torch.float32)
{move}
    z = x + y
    return z
"""

_MOVE = '    x = x.to("{device}")\n    y = y.to("{device}")'


@dataclass(frozen=True, kw_only=True)
class TensorAdd(Workload):
    """Adds two large float32 matrices, in three variants."""

    unit: ClassVar[str] = "iteration"
    small: ClassVar[Options] = {"size": 64}

    size: Count = 12288
    variant: Variant = "corrected"

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + _PEAK_TENSORS[self.variant] * self._tensor_bytes

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + _PEAK_TENSORS[self.variant] * self._tensor_bytes / FILL_BYTES_PER_SECOND

    def step_seconds(self, device: str) -> float | None:
        reads, writes = _count_traffic(self.variant, device)
        rate = _FRESH_BYTES_PER_SECOND if self.variant == "as_intended" else _BYTES_PER_SECOND
        return (reads + writes) * self._tensor_bytes / rate

    def build(self, place: WorkerPlace) -> Steps:
        step, check = _BUILD[self.variant](self.size, place.device)
        reads, writes = _count_traffic(self.variant, place.device)
        return Steps(
            kinds={"step": step},
            per_item={"byte": float((reads + writes) * self._tensor_bytes)},
            notes=self._notes(reads, writes),
            check=check,
        )

    @property
    def _tensor_bytes(self) -> int:
        return self.size * self.size * _FLOAT32_BYTES

    def _notes(self, reads: int, writes: int) -> tuple[str, ...]:
        tensor = f"a tensor of {show_bytes(self._tensor_bytes)}"
        accesses = f"{_format_count(reads, 'read')} and {_format_count(writes, 'write')}"
        counted = f"bytes counted per iteration: {accesses} of {tensor}"
        if self.variant == "as_published":
            return counted, "the scripted function is a constant: each iteration adds one tensor to itself in place"
        return (counted,)


def _format_count(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")


def _count_traffic(variant: Variant, device: str) -> tuple[int, int]:
    """Return how many tensors one iteration reads and writes."""
    if variant == "as_published":
        return 1, 1
    if variant == "corrected":
        return 2, 1
    # Two fills (2 writes), the sum and the accumulation (2 reads and 1 write each).
    return (4, 4) if is_host(device) else (6, 6)  # on an accelerator also two copies from the host


def _build_as_published(size: int, device: str) -> tuple[Step, Check]:
    foo = _script_function(size, device)
    z0 = foo()
    if any(foo().data_ptr() != z0.data_ptr() for _ in range(3)):
        raise CannotRun(
            "this TorchScript doesn't fold the published function into a constant, so the result wouldn't be "
            "comparable with the published one"
        )
    done = 0

    def step() -> None:
        nonlocal z0, done
        zz = foo()
        z0 += zz
        done += 1

    def is_correct() -> bool:
        exponent = done + 1
        return is_filled_with(z0, 2.0**exponent if exponent < _FIRST_EXPONENT_OF_INF else math.inf)

    return step, is_correct


def _script_function(size: int, device: str) -> Callable[[], torch.Tensor]:
    """Script the published function from a string: a decorated function would depend on finding its source file."""
    import torch

    move = "" if is_host(device) else _MOVE.format(device=device)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch\\.jit.*")  # deprecated in later versions
            unit = torch.jit.CompilationUnit(_PUBLISHED.format(size=size, move=move))
        return unit.foo  # type: ignore[no-any-return]
    except (AttributeError, RuntimeError) as error:
        raise CannotRun(f"torch {torch.__version__} doesn't script the published function: {error}") from error


def _build_as_intended(size: int, device: str) -> tuple[Step, Check]:
    import torch

    def foo() -> torch.Tensor:
        x = torch.ones((size, size), dtype=torch.float32)
        y = torch.ones((size, size), dtype=torch.float32)
        x = x.to(device)
        y = y.to(device)
        return x + y

    z0 = foo()
    done = 0

    def step() -> None:
        nonlocal z0, done
        z0 += foo()
        done += 1

    def is_correct() -> bool:
        return is_filled_with(z0, min(2.0 * (done + 1), _EVEN_NUMBERS_END))

    return step, is_correct


def _build_corrected(size: int, device: str) -> tuple[Step, Check]:
    import torch

    x, y = (torch.ones((size, size), dtype=torch.float32, device=device) for _ in range(2))
    z = torch.zeros_like(x)

    def step() -> None:
        torch.add(x, y, out=z)

    return step, lambda: is_filled_with(z, 2.0)


_BUILD: dict[Variant, Callable[[int, str], tuple[Step, Check]]] = {
    "as_published": _build_as_published,
    "as_intended": _build_as_intended,
    "corrected": _build_corrected,
}
