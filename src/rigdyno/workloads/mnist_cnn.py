"""The small network of PyTorch's classic MNIST example: cheap enough for any rig, real enough to learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rigdyno.contracts import CannotRun, Options, Place, Requirement, Samples, Training
from rigdyno.schema.system import System
from rigdyno.workloads import _mnist
from rigdyno.workloads._options import number_between, text, whole_number
from rigdyno.workloads._torch import IMPORT_BYTES, IMPORT_SECONDS

if TYPE_CHECKING:
    import torch

_FLOAT32_BYTES = 4
_IMAGES = _mnist.TRAIN_IMAGES + _mnist.TEST_IMAGES
_TEST_BATCH = 1000


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
    data: str = ""  # a folder with MNIST's idx files, gzipped or not; empty: synthetic images

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size)
        number_between("learning_rate", self.learning_rate, 0, 1000)
        number_between("momentum", self.momentum, 0, 1)
        text("data", self.data)

    def refuses(self, system: System, device: str) -> str | None:
        return _mnist.missing_file(Path(self.data)) if self.data else None

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        pixels = _mnist.SIDE * _mnist.SIDE
        return IMPORT_BYTES + _IMAGES * pixels * (_FLOAT32_BYTES + 2) + self.batch_size * pixels * 100

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0  # the images, and what a first optimizer imports

    def step_seconds(self, device: str) -> float | None:
        return 0.05

    def build(self, place: Place) -> Training:
        import torch

        train, test = _mnist.from_folder(Path(self.data)) if self.data else _mnist.synthetic(place.seed)
        mine = train.share(place.rank, place.world_size)
        if self.batch_size > len(mine):
            raise CannotRun(f"batch_size {self.batch_size} is more than the {len(mine)} images of a rank")
        torch.manual_seed(place.seed)  # every rank begins with the same parameters
        model = _network().to(place.device)
        torch.manual_seed(place.seed + place.rank)  # but drops out on its own
        images, labels = _on_device(mine, place.device)
        return Training(
            model=model,
            loss=torch.nn.functional.nll_loss,
            optimizer=self._optimizer,
            batches=_batches((images, labels), self.batch_size, place.seed + place.rank),
            samples=Samples(len(labels), self.batch_size, lambda chosen: (images[chosen], labels[chosen])),
            accuracy=_accuracy(model, _on_device(test, place.device)),
            notes=self._notes(),
        )

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)

    def _notes(self) -> tuple[str, ...]:
        resident = "all images lie on the device from the start: loading isn't measured"
        return (resident,) if self.data else ("synthetic images, not MNIST: the accuracy says nothing", resident)


def _network() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),
        nn.Dropout2d(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(50, _mnist.CLASSES),
        nn.LogSoftmax(dim=1),
    )


def _on_device(part: _mnist.Part, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised images (count x 1 x 28 x 28) and labels."""
    import torch

    pixels = torch.tensor(part.images, dtype=torch.float32).unsqueeze(1)
    pixels.div_(255).sub_(_mnist.MEAN).div_(_mnist.DEVIATION)
    return pixels.to(device), torch.tensor(part.labels, dtype=torch.int64).to(device)


def _batches(
    data: tuple[torch.Tensor, torch.Tensor], size: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Epoch after epoch, each in a new order; the last batch of an epoch may be smaller."""
    import torch

    images, labels = data
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        for chosen in torch.split(order, size):
            yield images[chosen], labels[chosen]


def _accuracy(model: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> Callable[[], float]:
    """The share of the test images that the model names rightly."""
    import torch

    @torch.no_grad()
    def accuracy() -> float:
        model.eval()
        pairs = zip(*(torch.split(tensor, _TEST_BATCH) for tensor in data), strict=True)
        right = sum(int((model(images).argmax(dim=1) == labels).sum()) for images, labels in pairs)
        model.train()
        return right / len(data[1])

    return accuracy
