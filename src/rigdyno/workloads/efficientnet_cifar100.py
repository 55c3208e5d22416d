"""Trains EfficientNet-B0 on CIFAR-100, the benchmark of private training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from rigdyno.contracts import Options, Requirement, Samples, Training, WorkerPlace, Workload
from rigdyno.contracts.options import Count, Factor, Natural, Share
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import (
    FORWARD_AND_BACKWARD,
    IMPORT_BYTES,
    IMPORT_SECONDS,
    check_target_accuracy,
    count_forward_flop,
    is_host,
    load_weights,
    make_accuracy,
    make_validation,
    shuffled_batches,
)
from rigdyno.workloads.datasets import cifar
from rigdyno.workloads.datasets.labelled import ImageSet, take_share

if TYPE_CHECKING:
    import torch

    from rigdyno.workloads.networks.efficientnet import EfficientNetB0

Norm = Literal["batch", "group"]

Freeze = Literal["none", "backbone"]

PARAMETERS = 5_288_548  # with 1000 classes

_HEAD = 1280  # inputs of the classifier

_SMALLEST_SIDE = 8

_TEST_BATCH = 100

_KEPT_BYTES = 2_200_000  # activations of one image of 32 x 32, kept until its backward pass

_STATES = 5  # copies of a parameter: itself, its gradient, Adam's two moments, and temporaries of the step

_SCALE = (cifar.MEANS, cifar.DEVIATIONS)

_FLOAT32_BYTES = 4

_IMAGE_SECONDS = 0.004  # time of an image of 32 x 32 on a current CPU core


@dataclass(frozen=True, kw_only=True)
class EfficientNetCifar100(Workload):
    """Trains EfficientNet-B0 on CIFAR-100."""

    unit: ClassVar[str] = "image"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("numpy"))
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {
        "batch_size": 32, "learning_rate": 0.0003, "dropout": 0.0, "stochastic_depth": 0.0, "channels_last": True,
    }  # fmt: skip

    batch_size: Count = 64
    image_size: Annotated[int, Meta(ge=_SMALLEST_SIDE)] = cifar.SIDE  # images are resized to this
    learning_rate: Factor = 0.001  # Adam's
    norm: Norm = "batch"  # group: GroupNorm instead of BatchNorm, which mixes samples
    dropout: Share = 0.2
    stochastic_depth: Share = 0.2
    channels_last: bool = False
    compiled: bool = False
    weights: str = ""  # a state-dict file with torchvision's names; empty: random weights
    freeze: Freeze = "none"  # backbone: only the classifier is trained
    data: str = ""  # a folder with CIFAR-100, python or binary version; empty: synthetic images
    target_accuracy: Share = 0.0  # validation accuracy at which training ends; 0: it ends with its budget
    validation: Natural = 0  # number of training images kept apart for validation
    test_images: Natural = 0  # number of test images for the final accuracy; 0: accuracy isn't measured

    def __post_init__(self) -> None:
        super().__post_init__()
        check_target_accuracy(self.target_accuracy, self.validation)

    def refuses(self, system: System, device: str) -> str | None:
        if self.weights and not Path(self.weights).is_file():
            return f"there is no file {self.weights} to load weights from"
        return cifar.refusal(self.data)

    def memory_bytes(self, system: System) -> int:
        enlarged = (self.image_size / cifar.SIDE) ** 2
        kept = self.batch_size * _KEPT_BYTES * enlarged * (0.1 if self.freeze == "backbone" else 1)
        images = (cifar.TRAIN_IMAGES + self.test_images) * cifar.IMAGE_BYTES
        return IMPORT_BYTES + images + int(kept) + _STATES * PARAMETERS * _FLOAT32_BYTES

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 1.0 + (110.0 if self.compiled else 0.0)

    def step_seconds(self, device: str) -> float | None:
        enlarged = (self.image_size / cifar.SIDE) ** 2
        return self.batch_size * _IMAGE_SECONDS * enlarged / (1 if is_host(device) else 30)

    def build(self, place: WorkerPlace) -> Training:
        import torch

        source = cifar.open_dataset(self.data, place.seed, self.test_images)
        kept_apart, train = source.train.take(self.validation), source.train.skip(self.validation)
        mine = take_share(train, place, self.batch_size)
        torch.manual_seed(place.seed)  # every rank starts with the same parameters
        model, weight_notes = self._build_model(place.device)
        torch.manual_seed(place.seed + place.rank)  # but each rank has its own dropout
        samples = self._make_samples(mine, self.batch_size, place.device)
        test = self._make_samples(source.test, _TEST_BATCH, place.device)
        validation = self._make_samples(kept_apart, _TEST_BATCH, place.device)
        return Training(
            model=model,
            loss=torch.nn.functional.cross_entropy,
            optimizer=self._optimizer,
            batches=shuffled_batches(samples, place.seed + place.rank),
            samples=samples,
            accuracy=make_accuracy(model, test) if test.count else None,
            validation=make_validation(model, validation, self.target_accuracy, place),
            per_item={"flop": self._count_flop()},
            settled={"parameters": sum(each.numel() for each in model.parameters()), "samples": samples.count},
            phases=True,
            notes=(*source.notes, *weight_notes),
        )

    def _build_model(self, device: str) -> tuple[torch.nn.Module, tuple[str, ...]]:
        from rigdyno.workloads.networks.efficientnet import EfficientNetB0

        network = EfficientNetB0(cifar.CLASSES, self.dropout, self.stochastic_depth)
        notes = _load_weights(network, Path(self.weights)) if self.weights else ("random weights to begin with",)
        if self.freeze == "backbone":
            network.freeze_features()
        model = self._replace_norm(network).to(device).to(memory_format=self._layout())  # type: ignore[call-overload]
        if self.compiled:
            model.compile()
        return model, notes

    def _replace_norm(self, network: torch.nn.Module) -> torch.nn.Module:
        if self.norm == "batch":
            return network
        from rigdyno.engines.dp import replace_batch_norm

        return replace_batch_norm(network)

    def _layout(self) -> torch.memory_format:
        import torch

        return torch.channels_last if self.channels_last else torch.contiguous_format

    def _count_flop(self) -> float:
        from rigdyno.workloads.networks.efficientnet import EfficientNetB0

        forward = count_forward_flop(lambda: EfficientNetB0(cifar.CLASSES), self.image_size)
        trained = forward if self.freeze == "none" else 2.0 * _HEAD * cifar.CLASSES
        return forward + (FORWARD_AND_BACKWARD - 1) * trained

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adam([each for each in parameters if each.requires_grad], lr=self.learning_rate)

    def _make_samples(self, part: ImageSet, batch_size: int, device: str) -> Samples:
        """Keep the images as bytes on the device, and convert those of a batch to float32 when it is picked."""
        import torch

        images = torch.tensor(part.images, device=device) if not is_host(device) else _as_tensor(part.images)
        labels = torch.tensor(part.labels, dtype=torch.int64, device=device)
        means, deviations = (torch.tensor(each, device=device).view(-1, 1, 1) for each in _SCALE)

        def pick(chosen: Sequence[int]) -> tuple[Any, Any]:
            pixels = images[chosen].float().div_(255).sub_(means).div_(deviations)
            return self._resize(pixels).contiguous(memory_format=self._layout()), labels[chosen]

        return Samples(len(part), batch_size, pick)

    def _resize(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        size = (self.image_size, self.image_size)
        if pixels.shape[2:] == size:
            return pixels
        if not len(pixels):
            return pixels.new_empty(0, cifar.CHANNELS, *size)
        return torch.nn.functional.interpolate(pixels, size, mode="bilinear", align_corners=False)


def _as_tensor(images: Any) -> torch.Tensor:
    """Make a tensor without a copy if possible: the peak memory of the process is measured."""
    import torch

    return torch.from_numpy(images if images.flags.writeable else images.copy())


def _load_weights(network: EfficientNetB0, path: Path) -> tuple[str, ...]:
    """Load the weights and return notes about them. If the file's classifier has another number of classes, the
    network's own random classifier stays, as is usual for fine-tuning."""
    own = {name: value for name, value in network.state_dict().items() if name.startswith("classifier.")}
    notes = [f"weights from {path.name}"]

    def fitting(state: dict[str, Any]) -> dict[str, Any]:
        classes = len(state.get("classifier.1.bias", ()))
        if classes in (0, cifar.CLASSES):
            return state
        notes.append(f"they are for {classes} classes: the classifier starts with random weights")
        return {**state, **own}

    load_weights(network, path, fitting)
    return ("; ".join(notes),)
