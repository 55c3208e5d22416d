"""Trains the small network of PyTorch's classic MNIST example: cheap enough for any machine, and it really learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rigdyno.contracts import Requirement, Samples, Training, WorkerPlace, Workload
from rigdyno.contracts.options import Count, Factor, Share
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import (
    IMPORT_BYTES,
    IMPORT_SECONDS,
    make_accuracy,
    make_validation,
    shuffled_batches,
)
from rigdyno.workloads.datasets import mnist
from rigdyno.workloads.datasets.labelled import ImageSet, take_share

if TYPE_CHECKING:
    import torch

_TEST_BATCH = 1000


class Variant(NamedTuple):
    dropout: float = 0.5
    target_accuracy: float = 0.0  # validation accuracy at which training ends; 0: it ends with its budget
    validation: int = 0  # number of training images kept apart for validation


@dataclass(frozen=True, kw_only=True)
class MnistCnn(Workload):
    """Trains the classic MNIST example's small CNN."""

    unit: ClassVar[str] = "image"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("numpy"))
    trains: ClassVar[bool] = True

    batch_size: Count = 64
    learning_rate: Factor = 0.01
    momentum: Share = 0.5
    data: str = ""  # a folder with MNIST's idx files, or 'fashion' (Debian's Fashion-MNIST); empty: synthetic images

    def refuses(self, system: System, device: str) -> str | None:
        return mnist.refusal(self.data)

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + mnist.memory_bytes(self.batch_size)

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0  # the images, and the imports of the first optimizer

    def step_seconds(self, device: str) -> float | None:
        return 0.05

    def build(self, place: WorkerPlace) -> Training:
        import torch

        source = mnist.open_dataset(self.data, place.seed)
        variant = self.variant()
        kept_apart, train = source.train.take(variant.validation), source.train.skip(variant.validation)
        mine = take_share(train, place, self.batch_size)
        torch.manual_seed(place.seed)  # every rank starts with the same parameters
        model = _build_network(variant.dropout).to(place.device)
        torch.manual_seed(place.seed + place.rank)  # but each rank has its own dropout
        samples = _make_samples(mine, self.batch_size, place.device)
        validation = _make_samples(kept_apart, _TEST_BATCH, place.device)
        return Training(
            model=model,
            loss=torch.nn.functional.nll_loss,
            optimizer=self._optimizer,
            batches=shuffled_batches(samples, place.seed + place.rank),
            samples=samples,
            accuracy=make_accuracy(model, _make_samples(source.test, _TEST_BATCH, place.device)),
            validation=make_validation(model, validation, variant.target_accuracy, place),
            settled={
                "parameters": mnist.count_parameters([each.shape for each in model.parameters()]),
                "samples": samples.count,
            },
            notes=source.notes,
        )

    def variant(self) -> Variant:
        """Return the settings that a subclass may change."""
        return Variant()

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)


def _build_network(dropout: float = 0.5) -> torch.nn.Module:
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
        nn.Linear(50, mnist.CLASSES),
        nn.LogSoftmax(dim=1),
    )


def _move_to_device(part: ImageSet, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normalised images (count x 1 x 28 x 28) and labels on the device."""
    import torch

    pixels = torch.from_numpy(mnist.normalise(part)).unsqueeze(1)
    return pixels.to(device), torch.tensor(part.labels, dtype=torch.int64).to(device)


def _make_samples(part: ImageSet, batch_size: int, device: str) -> Samples:
    images, labels = _move_to_device(part, device)
    return Samples(len(labels), batch_size, lambda chosen: (images[chosen], labels[chosen]))
