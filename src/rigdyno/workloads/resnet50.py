"""Trains ResNet-50 on synthetic images, the benchmark of scaling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from rigdyno.contracts import Options, Training, WorkerPlace, Workload
from rigdyno.contracts.options import Count, Factor, Share
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import (
    FORWARD_AND_BACKWARD,
    IMPORT_BYTES,
    IMPORT_SECONDS,
    count_forward_flop,
    is_host,
    load_weights,
)

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_AUTOCAST = {"bf16": "bfloat16", "fp16": "float16"}

SIDE, CLASSES = 224, 1000

PARAMETERS = 25_557_032  # with 1000 classes

_SMALLEST_SIDE = 32  # one pixel after halving five times

_BATCHES = 4  # batches kept on the device and used in turn

_KEPT_BYTES = 100_000_000  # activations of one image at full size, kept until its backward pass

_STATES = 4  # copies of a parameter: itself, its gradient, its momentum, and temporaries of the optimizer

_FLOAT32_BYTES = 4

_MULTIPLY_ADDS = 4.09e9  # forward pass of an image of 224 x 224


@dataclass(frozen=True, kw_only=True)
class ResNet50(Workload):
    """Trains ResNet-50 on synthetic images."""

    unit: ClassVar[str] = "image"
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {
        "batch_size": 8, "image_size": 32, "classes": 10, "learning_rate": 0.003,
    }  # fmt: skip

    batch_size: Count = 32  # per device
    image_size: Annotated[int, Meta(ge=_SMALLEST_SIDE)] = SIDE
    classes: Annotated[int, Meta(ge=2)] = CLASSES
    learning_rate: Factor = 0.1
    momentum: Share = 0.9
    weight_decay: Factor = 1e-5
    precision: Precision = "fp32"
    channels_last: bool = False
    compiled: bool = False
    weights: str = ""  # a state-dict file with torchvision's names; empty: random weights

    def refuses(self, system: System, device: str) -> str | None:
        if self.precision == "tf32" and not device.startswith("cuda"):
            return f"precision tf32 is a number format of NVIDIA GPUs, and the device is {device}"
        if self.weights and not Path(self.weights).is_file():
            return f"there is no file {self.weights} to load weights from"
        return None

    def traps(self) -> tuple[str, ...]:
        """Name the features that crash some machines; they are tried before a worker is started."""
        return (self.precision,) if self.precision in _AUTOCAST else ()

    def memory_bytes(self, system: System) -> int:
        shrunk = (self.image_size / SIDE) ** 2
        images = self.batch_size * (_KEPT_BYTES * shrunk + _BATCHES * 3 * self.image_size**2 * _FLOAT32_BYTES)
        return IMPORT_BYTES + int(images) + _STATES * PARAMETERS * _FLOAT32_BYTES

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0 + (60.0 if self.compiled else 0.0)

    def step_seconds(self, device: str) -> float | None:
        per_image = 3 * 2 * _MULTIPLY_ADDS * (self.image_size / 224) ** 2  # a backward pass costs two forward passes
        return self.batch_size * per_image / (30e9 if is_host(device) else 3e12)

    def build(self, place: WorkerPlace) -> Training:
        import torch

        torch.manual_seed(place.seed)  # every rank starts with the same parameters
        model = self._build_model(place.device)
        if self.precision == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        return Training(
            model=model,
            loss=_loss,
            optimizer=self._optimizer,
            batches=self._make_batches(place),
            per_item={"flop": FORWARD_AND_BACKWARD * self._count_forward_flop()},
            scaler=torch.amp.GradScaler(place.device.partition(":")[0]) if self.precision == "fp16" else None,
            phases=True,
            notes=("synthetic images that are on the device from the start: loading isn't measured",),
        )

    def _build_model(self, device: str) -> torch.nn.Module:
        import torch

        from rigdyno.workloads.networks.resnet import ResNet

        model: torch.nn.Module = ResNet(self.classes)
        if self.weights:
            load_weights(model, Path(self.weights))
        model = model.to(device).to(memory_format=self._layout())  # type: ignore[call-overload]
        if self.precision in _AUTOCAST:
            kind, dtype = device.partition(":")[0], getattr(torch, _AUTOCAST[self.precision])
            model.forward = torch.autocast(kind, dtype=dtype)(model.forward)
        if self.compiled:
            model.compile()
        return model

    def _count_forward_flop(self) -> float:
        from rigdyno.workloads.networks.resnet import ResNet

        return count_forward_flop(lambda: ResNet(self.classes), self.image_size)

    def _layout(self) -> torch.memory_format:
        import torch

        return torch.channels_last if self.channels_last else torch.contiguous_format

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(
            parameters, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )

    def _make_batches(self, place: WorkerPlace) -> Iterator[tuple[Any, Any]]:
        """Make the images on the CPU, so that the same seed gives the same images on every device."""
        import torch

        generator = torch.Generator().manual_seed(place.seed + place.rank)
        shape = (self.batch_size, 3, self.image_size, self.image_size)
        batches = [
            (
                torch.randn(shape, generator=generator).to(place.device, memory_format=self._layout()),
                torch.randint(self.classes, (self.batch_size,), generator=generator).to(place.device),
            )
            for _ in range(_BATCHES)
        ]
        return cycle(batches)


def _loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute cross entropy in float32, whatever the network's precision: a sum over 1000 classes needs it."""
    import torch

    return torch.nn.functional.cross_entropy(outputs.float(), targets)
