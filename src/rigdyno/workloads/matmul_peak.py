"""How many floating-point operations a second matrix multiplication reaches here, at the shape that suits it best."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from rigdyno.clock import Clock, SystemClock
from rigdyno.contracts import CannotRun, Options, Place, Requirement, Steps
from rigdyno.schema.system import System
from rigdyno.units import seconds_of_ns
from rigdyno.workloads._options import one_of, whole_number
from rigdyno.workloads._torch import IMPORT_BYTES, IMPORT_SECONDS, is_host, waiter

if TYPE_CHECKING:
    import torch

Dtype = Literal["float64", "float32", "tf32", "bfloat16", "float16"]
Shape = tuple[int, int, int]  # rows, inner, columns
Timer = Callable[[Shape], float]  # -> seconds for one product

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
class MatmulPeak:
    """The arithmetic limit: the quickest matrix product."""

    unit: ClassVar[str] = "flop"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = False
    small: ClassVar[Options] = {"size": 64}

    dtype: Dtype = "float32"
    size: int = 0  # of square matrices; 0: the best of a short search

    def __post_init__(self) -> None:
        one_of("dtype", self.dtype, get_args(Dtype))
        whole_number("size", self.size, least=0)

    def refuses(self, system: System, device: str) -> str | None:
        if self.dtype == "tf32" and not device.startswith("cuda"):
            return "tf32 is a mode of NVIDIA's GPUs"
        if self.dtype == "float64" and device.startswith("mps"):
            return "MPS has no float64"
        return None

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        longest = self.size or 4096  # on a host; a device that gets further has more memory of its own
        return IMPORT_BYTES + 3 * longest * longest * _ITEM_BYTES[self.dtype]

    def start_seconds(self) -> float:
        search = 0.0 if self.size else _SEARCH_SECONDS
        return IMPORT_SECONDS + search + (IMPORT_SECONDS if self._may_crash else 0.0)

    def step_seconds(self, device: str) -> float | None:
        return 1.2 * _LONGEST_STEP_SECONDS if not self.size else None

    def build(self, place: Place) -> Steps:
        self._try(place.device)
        shape = (self.size,) * 3 if self.size else fastest(SHAPES, self._timer(place), SystemClock())
        product = _Product(shape, self.dtype, place)
        return Steps(
            kinds={"step": product.step},
            items_per_step=float(flops(shape)),
            settled={"shape": "x".join(map(str, shape))},
            notes=("a multiply-add counts as 2 flop",),
            check=product.canary,
        )

    @property
    def _may_crash(self) -> bool:
        return self.dtype in ("bfloat16", "float16")

    def _try(self, device: str) -> None:
        # Some virtual machines advertise instructions that they don't deliver: the crash shall be a child's.
        if self._may_crash and is_host(device):
            _try_in_child(self.dtype)
        try:
            _Product((16, 16, 16), self.dtype, Place(device=device)).step()
        except (RuntimeError, TypeError) as error:
            raise CannotRun(f"{self.dtype} products don't work on {device}: {error}") from error

    def _timer(self, place: Place) -> Timer:
        return lambda shape: _shortest_seconds(_Product(shape, self.dtype, place), waiter(place.device), SystemClock())


class _Product:
    """Two matrices of standard normal numbers and their product."""

    def __init__(self, shape: Shape, dtype: Dtype, place: Place) -> None:
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

    def canary(self) -> bool:
        """A few entries against float64. They are about sqrt(inner) in size; rounding is far below inner * epsilon."""
        left, right, product = self._left[::97], self._right[:, ::89], self._product[::97, ::89]
        exact = _double(left) @ _double(right)
        tolerance = self._epsilon * left.shape[1] / 2
        return bool(((_double(product) - exact).abs() <= tolerance).all())


def _double(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.cpu().double()


def flops(shape: Shape) -> int:
    rows, inner, columns = shape
    return 2 * rows * inner * columns


def fastest(shapes: Sequence[Shape], seconds_of: Timer, clock: Clock) -> Shape:
    """The shape with the most operations a second among those that can be tried in time, the small ones first."""
    began_ns = clock.now_ns()
    smallest, *larger = sorted(shapes, key=flops)
    best, best_rate = smallest, flops(smallest) / seconds_of(smallest)
    for shape in larger:
        step_seconds = flops(shape) / best_rate
        if step_seconds > _LONGEST_STEP_SECONDS or seconds_of_ns(clock.now_ns() - began_ns) > _SEARCH_SECONDS:
            break
        rate = flops(shape) / seconds_of(shape)
        if rate > best_rate:
            best, best_rate = shape, rate
    return best


def _shortest_seconds(product: _Product, wait: Callable[[], None], clock: Clock) -> float:
    """Of a few products; the first ones warm up."""
    took_ns = []
    for _ in range(4):
        began_ns = clock.now_ns()
        product.step()
        wait()
        took_ns.append(clock.now_ns() - began_ns)
    return seconds_of_ns(max(1, min(took_ns)))


def _try_in_child(dtype: Dtype) -> None:
    program = f"import torch; a = torch.ones(512, 512, dtype=torch.{dtype}); a @ a"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, timeout=_TRIAL_SECONDS, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"{dtype} products are too slow here: one took over {_TRIAL_SECONDS:.0f} s") from error
    if ended.returncode:
        raise CannotRun(f"{dtype} products don't work on this CPU: {_why(ended)}")


def _why(ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode < 0:
        import signal

        return f"a trial ended by {signal.Signals(-ended.returncode).name}"
    return (ended.stderr.strip().splitlines() or [f"a trial ended with code {ended.returncode}"])[-1]
