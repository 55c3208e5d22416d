"""EfficientNet-B0 on CIFAR-100: what private training is compared on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rigdyno.contracts import Options, Place, Requirement, Samples, Training
from rigdyno.schema.system import System
from rigdyno.workloads import _cifar
from rigdyno.workloads._labelled import Part, share_of
from rigdyno.workloads._options import number_between, one_of, text, whole_number, yes_or_no
from rigdyno.workloads._torch import (
    FORWARD_AND_BACKWARD,
    IMPORT_BYTES,
    IMPORT_SECONDS,
    accuracy_of,
    check_until,
    forward_flop,
    is_host,
    load_weights,
    shuffled,
    validation_of,
)

if TYPE_CHECKING:
    import torch

    from rigdyno.workloads._efficientnet import EfficientNetB0

Norm = Literal["batch", "group"]
Freeze = Literal["none", "backbone"]

PARAMETERS = 5_288_548  # with 1000 classes
_HEAD = 1280  # inputs of the classifier
_SMALLEST_SIDE = 8
_TEST_BATCH = 100
_KEPT_BYTES = 2_200_000  # of one image of 32 x 32, until its backward pass
_STATES = 5  # of a parameter: itself, its gradient, Adam's two, and what it makes on the way
_FLOAT32_BYTES = 4
_IMAGE_SECONDS = 0.004  # of 32 x 32, on a core of today


@dataclass(frozen=True, kw_only=True)
class EfficientNetCifar100:
    """Trains EfficientNet-B0 on CIFAR-100."""

    unit: ClassVar[str] = "image"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("numpy"))
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {
        "batch_size": 32, "learning_rate": 0.0003, "dropout": 0.0, "stochastic_depth": 0.0, "channels_last": True,
    }  # fmt: skip

    batch_size: int = 64
    image_size: int = _cifar.SIDE  # enlarged to this where it isn't CIFAR's own
    learning_rate: float = 0.001  # of Adam
    norm: Norm = "batch"  # group: in BatchNorm's place, which mixes samples
    dropout: float = 0.2
    stochastic_depth: float = 0.2
    channels_last: bool = False
    compiled: bool = False
    weights: str = ""  # a state-dict file with torchvision's names; empty: random weights
    freeze: Freeze = "none"  # backbone: only the classifier learns
    data: str = ""  # a folder with CIFAR-100, python or binary version; empty: synthetic images
    until: float = 0.0  # the accuracy on validation images to stop at; 0: it ends with its budget
    validation: int = 0  # of the training images, kept apart for that
    test_images: int = 0  # that tell the accuracy when all is over; 0: nobody asks for it

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size)
        whole_number("image_size", self.image_size, _SMALLEST_SIDE)
        number_between("learning_rate", self.learning_rate, 0, 1000)
        one_of("norm", self.norm, get_args(Norm))
        number_between("dropout", self.dropout, 0, 1)
        number_between("stochastic_depth", self.stochastic_depth, 0, 1)
        yes_or_no("channels_last", self.channels_last)
        yes_or_no("compiled", self.compiled)
        text("weights", self.weights)
        one_of("freeze", self.freeze, get_args(Freeze))
        text("data", self.data)
        check_until(self.until, self.validation)
        whole_number("test_images", self.test_images, 0)

    def refuses(self, system: System, device: str) -> str | None:
        if self.weights and not Path(self.weights).is_file():
            return f"there is no file {self.weights} to load weights from"
        return _cifar.refusal(self.data)

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        enlarged = (self.image_size / _cifar.SIDE) ** 2
        kept = self.batch_size * _KEPT_BYTES * enlarged * (0.1 if self.freeze == "backbone" else 1)
        images = (_cifar.TRAIN_IMAGES + self.test_images) * _cifar.IMAGE_BYTES
        return IMPORT_BYTES + images + int(kept) + _STATES * PARAMETERS * _FLOAT32_BYTES

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 1.0 + (110.0 if self.compiled else 0.0)

    def step_seconds(self, device: str) -> float | None:
        enlarged = (self.image_size / _cifar.SIDE) ** 2
        return self.batch_size * _IMAGE_SECONDS * enlarged / (1 if is_host(device) else 30)

    def build(self, place: Place) -> Training:
        import torch

        source = _cifar.opened(self.data, place.seed, self.test_images)
        kept_apart, train = source.train.first(self.validation), source.train.behind(self.validation)
        mine = share_of(train, place, self.batch_size)
        torch.manual_seed(place.seed)  # every rank begins with the same parameters
        model, of_weights = self._model(place.device)
        torch.manual_seed(place.seed + place.rank)  # but drops out on its own
        samples = self._samples(mine, self.batch_size, place.device)
        test = self._samples(source.test, _TEST_BATCH, place.device)
        return Training(
            model=model,
            loss=torch.nn.functional.cross_entropy,
            optimizer=self._optimizer,
            batches=shuffled(samples, place.seed + place.rank),
            samples=samples,
            accuracy=accuracy_of(model, test) if test.count else None,
            validation=validation_of(model, self._samples(kept_apart, _TEST_BATCH, place.device), self.until, place),
            per_item={"flop": self._flop()},
            settled={"parameters": sum(each.numel() for each in model.parameters()), "samples": samples.count},
            phases=True,
            notes=(*source.notes, *of_weights),
        )

    def _model(self, device: str) -> tuple[torch.nn.Module, tuple[str, ...]]:
        from rigdyno.workloads._efficientnet import EfficientNetB0

        network = EfficientNetB0(_cifar.CLASSES, self.dropout, self.stochastic_depth)
        notes = _loaded(network, Path(self.weights)) if self.weights else ("random weights to begin with",)
        if self.freeze == "backbone":
            network.freeze_features()
        model = self._with_norm(network).to(device).to(memory_format=self._layout())  # type: ignore[call-overload]
        if self.compiled:
            model.compile()
        return model, notes

    def _with_norm(self, network: torch.nn.Module) -> torch.nn.Module:
        if self.norm == "batch":
            return network
        from rigdyno.engines.dp import replace_batch_norm

        return replace_batch_norm(network)

    def _layout(self) -> torch.memory_format:
        import torch

        return torch.channels_last if self.channels_last else torch.contiguous_format

    def _flop(self) -> float:
        from rigdyno.workloads._efficientnet import EfficientNetB0

        forward = forward_flop(lambda: EfficientNetB0(_cifar.CLASSES), self.image_size)
        learnt = forward if self.freeze == "none" else 2.0 * _HEAD * _cifar.CLASSES
        return forward + (FORWARD_AND_BACKWARD - 1) * learnt

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adam([each for each in parameters if each.requires_grad], lr=self.learning_rate)

    def _samples(self, part: Part, batch_size: int, device: str) -> Samples:
        """Kept as bytes; those of a batch become numbers when they are picked."""
        import torch

        images = torch.tensor(part.images, device=device) if not is_host(device) else _shared(part.images)
        labels = torch.tensor(part.labels, dtype=torch.int64, device=device)
        means, deviations = (torch.tensor(each, device=device).view(-1, 1, 1) for each in _SCALE)

        def pick(chosen: Sequence[int]) -> tuple[Any, Any]:
            pixels = images[chosen].float().div_(255).sub_(means).div_(deviations)
            return self._sized(pixels).contiguous(memory_format=self._layout()), labels[chosen]

        return Samples(len(part), batch_size, pick)

    def _sized(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        size = (self.image_size, self.image_size)
        if pixels.shape[2:] == size:
            return pixels
        if not len(pixels):
            return pixels.new_empty(0, _cifar.CHANNELS, *size)
        return torch.nn.functional.interpolate(pixels, size, mode="bilinear", align_corners=False)


_SCALE = (_cifar.MEANS, _cifar.DEVIATIONS)


def _shared(images: Any) -> torch.Tensor:
    """Without a copy: the peak of the process is a figure."""
    import torch

    return torch.from_numpy(images if images.flags.writeable else images.copy())


def _loaded(network: EfficientNetB0, path: Path) -> tuple[str, ...]:
    """A classifier for other classes stays random: that is what fine-tuning begins with."""
    own = {name: value for name, value in network.state_dict().items() if name.startswith("classifier.")}
    notes = [f"weights from {path.name}"]

    def fitting(state: dict[str, Any]) -> dict[str, Any]:
        classes = len(state.get("classifier.1.bias", ()))
        if classes in (0, _cifar.CLASSES):
            return state
        notes.append(f"they are of {classes} classes: the classifier begins with random weights")
        return {**state, **own}

    load_weights(network, path, fitting)
    return ("; ".join(notes),)
