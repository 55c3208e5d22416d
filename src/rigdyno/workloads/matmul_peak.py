"""Measures the floating-point operations per second of matrix multiplication, at the fastest of several shapes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rigdyno.base.clock import Clock, Stopwatch, SystemClock
from rigdyno.base.units import seconds_of_ns
from rigdyno.contracts import CannotRun, Options, Steps, WorkerPlace, Workload
from rigdyno.contracts.options import Natural
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import IMPORT_BYTES, IMPORT_SECONDS, is_host, waiter

if TYPE_CHECKING:
    import torch

Dtype = Literal["float64", "float32", "tf32", "bfloat16", "float16"]

Shape = tuple[int, int, int]  # rows, inner, columns

Timer = Callable[[Shape], float]  # returns seconds for one product

_ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}

_TF32_EPSILON = 2.0**-10

_SEARCH_SECONDS = 3.0

_LONGEST_STEP_SECONDS = 0.25

_TRIAL_SECONDS = 60.0

SHAPES: tuple[Shape, ...] = (
    (512, 512, 512),
    (512, 2048, 512),
    (1024, 1024, 1024),
    (2048, 512, 2048),
    (2048, 2048, 2048),
    (4096, 1024, 4096),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)


@dataclass(frozen=True, kw_only=True)
class MatmulPeak(Workload):
    """The arithmetic limit: the quickest matrix product."""

    unit: ClassVar[str] = "flop"
    small: ClassVar[Options] = {"size": 64}

    dtype: Dtype = "float32"
    size: Natural = 0  # edge of square matrices; 0: the fastest shape of a short search

    def refuses(self, system: System, device: str) -> str | None:
        if self.dtype == "tf32" and not device.startswith("cuda"):
            return "tf32 is a mode of NVIDIA GPUs"
        if self.dtype == "float64" and device.startswith("mps"):
            return "MPS has no float64"
        return None

    def memory_bytes(self, system: System) -> int:
        longest = self.size or 4096  # on a CPU; devices that try larger shapes have their own memory
        return IMPORT_BYTES + 3 * longest * longest * _ITEM_BYTES[self.dtype]

    def start_seconds(self) -> float:
        search = 0.0 if self.size else _SEARCH_SECONDS
        return IMPORT_SECONDS + search + (IMPORT_SECONDS if self._may_crash else 0.0)

    def step_seconds(self, device: str) -> float | None:
        return 1.2 * _LONGEST_STEP_SECONDS if not self.size else None

    def build(self, place: WorkerPlace) -> Steps:
        self._require_working_dtype(place.device)
        shape = (self.size,) * 3 if self.size else find_fastest_shape(SHAPES, self._make_timer(place), SystemClock())
        product = _Product(shape, self.dtype, place)
        return Steps(
            kinds={"step": product.step},
            items_per_step=float(count_flop(shape)),
            settled={"shape": "x".join(map(str, shape))},
            notes=("a multiply-add counts as 2 flop",),
            check=product.is_correct,
        )

    @property
    def _may_crash(self) -> bool:
        return self.dtype in ("bfloat16", "float16")

    def _require_working_dtype(self, device: str) -> None:
        # Some virtual machines advertise instructions that they don't support: let a child process crash instead.
        if self._may_crash and is_host(device):
            _try_in_child(self.dtype)
        try:
            _Product((16, 16, 16), self.dtype, WorkerPlace(device=device)).step()
        except (RuntimeError, TypeError) as error:
            raise CannotRun(f"{self.dtype} products don't work on {device}: {error}") from error

    def _make_timer(self, place: WorkerPlace) -> Timer:
        return lambda shape: _shortest_seconds(_Product(shape, self.dtype, place), waiter(place.device), SystemClock())


class _Product:
    """Multiplies two matrices of standard normal numbers."""

    def __init__(self, shape: Shape, dtype: Dtype, place: WorkerPlace) -> None:
        import torch

        if dtype == "tf32":
            torch.set_float32_matmul_precision("high")
        rows, inner, columns = shape
        stored = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        generator = torch.Generator().manual_seed(place.seed)
        self._epsilon = _TF32_EPSILON if dtype == "tf32" else torch.finfo(stored).eps
        self._left = torch.randn(rows, inner, generator=generator).to(place.device, stored)
        self._right = torch.randn(inner, columns, generator=generator).to(place.device, stored)
        self._product = torch.zeros(rows, columns, dtype=stored, device=place.device)
        self._matmul = torch.matmul

    def step(self) -> None:
        self._matmul(self._left, self._right, out=self._product)

    def is_correct(self) -> bool:
        """Compare a few entries with float64. They are about sqrt(inner) in size, and rounding errors are far below
        inner * epsilon."""
        left, right, product = self._left[::97], self._right[:, ::89], self._product[::97, ::89]
        exact = _to_float64(left) @ _to_float64(right)
        tolerance = self._epsilon * left.shape[1] / 2
        return bool(((_to_float64(product) - exact).abs() <= tolerance).all())


def _to_float64(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.cpu().double()


def count_flop(shape: Shape) -> int:
    rows, inner, columns = shape
    return 2 * rows * inner * columns


def find_fastest_shape(shapes: Sequence[Shape], seconds_of: Timer, clock: Clock) -> Shape:
    """Return the shape with the most operations per second. Try small shapes first, and stop when time is up or a
    product would take too long."""
    stopwatch = Stopwatch(clock)
    smallest, *larger = sorted(shapes, key=count_flop)
    best, best_rate = smallest, count_flop(smallest) / seconds_of(smallest)
    for shape in larger:
        step_seconds = count_flop(shape) / best_rate
        if step_seconds > _LONGEST_STEP_SECONDS or stopwatch.seconds > _SEARCH_SECONDS:
            break
        rate = count_flop(shape) / seconds_of(shape)
        if rate > best_rate:
            best, best_rate = shape, rate
    return best


def _shortest_seconds(product: _Product, wait: Callable[[], None], clock: Clock) -> float:
    """Return the shortest time of a few products; the first ones warm up."""
    times_ns = []
    for _ in range(4):
        began_ns = clock.now_ns()
        product.step()
        wait()
        times_ns.append(clock.now_ns() - began_ns)
    return seconds_of_ns(max(1, min(times_ns)))


def _try_in_child(dtype: Dtype) -> None:
    program = f"import torch; a = torch.ones(512, 512, dtype=torch.{dtype}); a @ a"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, timeout=_TRIAL_SECONDS, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"{dtype} products are too slow here: one took over {_TRIAL_SECONDS:.0f} s") from error
    if ended.returncode:
        raise CannotRun(f"{dtype} products don't work on this CPU: {_describe_failure(ended)}")


def _describe_failure(ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode < 0:
        import signal

        return f"a trial ended by {signal.Signals(-ended.returncode).name}"
    return (ended.stderr.strip().splitlines() or [f"a trial ended with code {ended.returncode}"])[-1]
