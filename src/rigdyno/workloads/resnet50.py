"""ResNet-50 on synthetic images: what scaling tables are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rigdyno.contracts import Options, Place, Requirement, Training
from rigdyno.schema.system import System
from rigdyno.workloads._options import number_between, one_of, text, whole_number, yes_or_no
from rigdyno.workloads._torch import (
    FORWARD_AND_BACKWARD,
    IMPORT_BYTES,
    IMPORT_SECONDS,
    forward_flop,
    is_host,
    load_weights,
)

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_AUTOCAST = {"bf16": "bfloat16", "fp16": "float16"}

SIDE, CLASSES = 224, 1000
PARAMETERS = 25_557_032  # with as many classes
_SMALLEST_SIDE = 32  # halved five times, that is one pixel
_BATCHES = 4  # resident, taken in turns
_KEPT_BYTES = 100_000_000  # of one image at full size, until its backward pass
_STATES = 4  # of a parameter: itself, its gradient, its momentum, and what the optimizer makes on the way
_FLOAT32_BYTES = 4

_MULTIPLY_ADDS = 4.09e9  # of an image of 224 x 224, forward


@dataclass(frozen=True, kw_only=True)
class ResNet50:
    """Trains ResNet-50 on synthetic images."""

    unit: ClassVar[str] = "image"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {
        "batch_size": 8, "image_size": 32, "classes": 10, "learning_rate": 0.003,
    }  # fmt: skip

    batch_size: int = 32  # of a device
    image_size: int = SIDE
    classes: int = CLASSES
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-5
    precision: Precision = "fp32"
    channels_last: bool = False
    compiled: bool = False
    weights: str = ""  # a state-dict file with torchvision's names; empty: random weights

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size)
        whole_number("image_size", self.image_size, _SMALLEST_SIDE)
        whole_number("classes", self.classes, 2)
        number_between("learning_rate", self.learning_rate, 0, 1000)
        number_between("momentum", self.momentum, 0, 1)
        number_between("weight_decay", self.weight_decay, 0, 1000)
        one_of("precision", self.precision, get_args(Precision))
        yes_or_no("channels_last", self.channels_last)
        yes_or_no("compiled", self.compiled)
        text("weights", self.weights)

    def refuses(self, system: System, device: str) -> str | None:
        if self.precision == "tf32" and not device.startswith("cuda"):
            return f"precision tf32 is a number format of NVIDIA GPUs, and the device is {device}"
        if self.weights and not Path(self.weights).is_file():
            return f"there is no file {self.weights} to load weights from"
        return None

    def traps(self) -> tuple[str, ...]:
        """What may kill a worker on some rigs, and is tried before one is started."""
        return (self.precision,) if self.precision in _AUTOCAST else ()

    def memory_bytes(self, system: System) -> int:
        shrunk = (self.image_size / SIDE) ** 2
        images = self.batch_size * (_KEPT_BYTES * shrunk + _BATCHES * 3 * self.image_size**2 * _FLOAT32_BYTES)
        return IMPORT_BYTES + int(images) + _STATES * PARAMETERS * _FLOAT32_BYTES

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0 + (60.0 if self.compiled else 0.0)

    def step_seconds(self, device: str) -> float | None:
        per_image = 3 * 2 * _MULTIPLY_ADDS * (self.image_size / 224) ** 2  # the backward pass is worth two forward ones
        return self.batch_size * per_image / (30e9 if is_host(device) else 3e12)

    def build(self, place: Place) -> Training:
        import torch

        torch.manual_seed(place.seed)  # every rank begins with the same parameters
        model = self._model(place.device)
        if self.precision == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        return Training(
            model=model,
            loss=_loss,
            optimizer=self._optimizer,
            batches=self._batches(place),
            per_item={"flop": FORWARD_AND_BACKWARD * self._forward_flop()},
            scaler=torch.amp.GradScaler(place.device.partition(":")[0]) if self.precision == "fp16" else None,
            phases=True,
            notes=("synthetic images that lie on the device from the start: loading isn't measured",),
        )

    def _model(self, device: str) -> torch.nn.Module:
        import torch

        from rigdyno.workloads._resnet import Network

        model: torch.nn.Module = Network(self.classes)
        if self.weights:
            load_weights(model, Path(self.weights))
        model = model.to(device).to(memory_format=self._layout())  # type: ignore[call-overload]
        if self.precision in _AUTOCAST:
            kind, dtype = device.partition(":")[0], getattr(torch, _AUTOCAST[self.precision])
            model.forward = torch.autocast(kind, dtype=dtype)(model.forward)
        if self.compiled:
            model.compile()
        return model

    def _forward_flop(self) -> float:
        from rigdyno.workloads._resnet import Network

        return forward_flop(lambda: Network(self.classes), self.image_size)

    def _layout(self) -> torch.memory_format:
        import torch

        return torch.channels_last if self.channels_last else torch.contiguous_format

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(
            parameters, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )

    def _batches(self, place: Place) -> Iterator[tuple[Any, Any]]:
        """Made on the host, so that the same seed gives the same images everywhere."""
        import torch

        chance = torch.Generator().manual_seed(place.seed + place.rank)
        shape = (self.batch_size, 3, self.image_size, self.image_size)
        made = [
            (
                torch.randn(shape, generator=chance).to(place.device, memory_format=self._layout()),
                torch.randint(self.classes, (self.batch_size,), generator=chance).to(place.device),
            )
            for _ in range(_BATCHES)
        ]
        return cycle(made)


def _loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """In float32 whatever the network computes in: a sum over a thousand classes needs its digits."""
    import torch

    return torch.nn.functional.cross_entropy(outputs.float(), targets)
