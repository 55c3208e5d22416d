"""The small network of PyTorch's classic MNIST example: cheap enough for any rig, real enough to learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rigdyno.contracts import Options, Place, Requirement, Samples, Training
from rigdyno.schema.system import System
from rigdyno.workloads import _mnist
from rigdyno.workloads._labelled import Part, share_of
from rigdyno.workloads._options import number_between, text, whole_number
from rigdyno.workloads._torch import (
    IMPORT_BYTES,
    IMPORT_SECONDS,
    accuracy_of,
    shuffled,
    validation_of,
)

if TYPE_CHECKING:
    import torch

_TEST_BATCH = 1000


class Variant(NamedTuple):
    dropout: float = 0.5
    until: float = 0.0  # the accuracy on validation images to stop at; 0: it ends with its budget
    validation: int = 0  # of the training images, kept apart for that


@dataclass(frozen=True, kw_only=True)
class MnistCnn:
    """Trains the classic MNIST example's small CNN."""

    unit: ClassVar[str] = "image"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("numpy"))
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {}

    batch_size: int = 64
    learning_rate: float = 0.01
    momentum: float = 0.5
    data: str = ""  # a folder with MNIST's idx files, or 'fashion' (Debian's Fashion-MNIST); empty: synthetic images

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size)
        number_between("learning_rate", self.learning_rate, 0, 1000)
        number_between("momentum", self.momentum, 0, 1)
        text("data", self.data)

    def refuses(self, system: System, device: str) -> str | None:
        return _mnist.refusal(self.data)

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + _mnist.memory_bytes(self.batch_size)

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0  # the images, and what a first optimizer imports

    def step_seconds(self, device: str) -> float | None:
        return 0.05

    def build(self, place: Place) -> Training:
        import torch

        source = _mnist.opened(self.data, place.seed)
        variant = self.variant()
        kept_apart, train = source.train.first(variant.validation), source.train.behind(variant.validation)
        mine = share_of(train, place, self.batch_size)
        torch.manual_seed(place.seed)  # every rank begins with the same parameters
        model = _network(variant.dropout).to(place.device)
        torch.manual_seed(place.seed + place.rank)  # but drops out on its own
        samples = _samples(mine, self.batch_size, place.device)
        return Training(
            model=model,
            loss=torch.nn.functional.nll_loss,
            optimizer=self._optimizer,
            batches=shuffled(samples, place.seed + place.rank),
            samples=samples,
            accuracy=accuracy_of(model, _samples(source.test, _TEST_BATCH, place.device)),
            validation=validation_of(model, _samples(kept_apart, _TEST_BATCH, place.device), variant.until, place),
            settled={"parameters": _mnist.count([each.shape for each in model.parameters()]), "samples": samples.count},
            notes=source.notes,
        )

    def variant(self) -> Variant:
        """For workloads that train the same network to another end."""
        return Variant()

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)


def _network(dropout: float = 0.5) -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),
        nn.Dropout2d(dropout),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(50, _mnist.CLASSES),
        nn.LogSoftmax(dim=1),
    )


def _on_device(part: Part, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised images (count x 1 x 28 x 28) and labels."""
    import torch

    pixels = torch.from_numpy(_mnist.normalised(part)).unsqueeze(1)
    return pixels.to(device), torch.tensor(part.labels, dtype=torch.int64).to(device)


def _samples(part: Part, batch_size: int, device: str) -> Samples:
    images, labels = _on_device(part, device)
    return Samples(len(labels), batch_size, lambda chosen: (images[chosen], labels[chosen]))
