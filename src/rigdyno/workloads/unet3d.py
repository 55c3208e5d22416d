"""Trains a 3D U-Net to predict which neighbouring voxels belong together: the training half of the volume benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from rigdyno.contracts import CannotRun, Options, Requirement, Training, WorkerPlace, Workload
from rigdyno.contracts.options import Count, Factor, Natural
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import IMPORT_BYTES, IMPORT_SECONDS, is_host
from rigdyno.workloads.networks import unet

if TYPE_CHECKING:
    import torch

    from rigdyno.engines.segmentation.loading import Loader, PatchSource
    from rigdyno.engines.segmentation.pairs import LabelledVolume

Network = Literal["published", "isotropic"]

Background = Literal["ignored", "cut"]

_STATES = 5  # copies of a parameter: itself, its gradient, Adam's two moments, and temporaries of a step

_FLOAT32_BYTES = 4

_EVALUATED = 4  # number of held-out patches to evaluate

_LEAST_VOLUME = (24, 120, 180)  # smallest synthetic volume

_VOXELS_PER_SECOND = 1e6  # speed of making the synthetic volume


@dataclass(frozen=True, kw_only=True)
class Unet3d(Workload):
    """Trains a 3D U-Net on affinities of a labelled volume."""

    unit: ClassVar[str] = "patch"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("numpy"))
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {"features": "4,8", "patch": "4x18x18", "learning_rate": 0.01, "workers": 0}

    network: Network = "published"  # anisotropic with ELU, or isotropic with BatchNorm
    features: str = ""  # feature maps per level, such as 12,60,300,1500; empty: the network's default
    patch: str = ""  # voxels, z x y x x; empty: a small patch. The published patch is 40x432x432
    batch_size: Count = 1  # per device
    learning_rate: Factor = 1e-4
    weight_decay: Factor = 5e-4
    workers: Natural = 4  # processes per device that load and augment; 0: the training process does it
    augment: bool = True  # flips and rotations by 90 degrees
    elastic_alpha: Annotated[float, Meta(ge=0, lt=1000000.0)] = 2000.0  # strength of the elastic deformation; 0: none
    elastic_sigma: Annotated[float, Meta(ge=0.1, lt=10000.0)] = 50.0
    data: str = ""  # in CREMI's layout, or a raw volume with `labels`; zarr, N5 or HDF5; empty: synthetic cells
    labels: str = ""
    background: Background = "ignored"  # meaning of label 0: not labelled, or membrane
    held_out: Annotated[float, Meta(ge=0, lt=0.95)] = (
        0.33  # share of the volume, at the far end of x, that isn't trained on
    )
    weights: str = ""  # state dict to start with
    save: str = ""  # file for the trained weights

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.patch_zyx

    @property
    def architecture(self) -> unet.Architecture:
        return unet.find_architecture(self.network, self.features)

    @property
    def patch_zyx(self) -> unet.Zyx:
        return unet.parse_patch(self.network, self.patch, self.architecture)

    @property
    def _voxels(self) -> int:
        return self.batch_size * prod(self.patch_zyx)

    @property
    def _synthetic_shape(self) -> unet.Zyx:
        """Return a shape with room for patches at different positions, and for a held-out patch."""
        z, y, x = self.patch_zyx
        wanted = (
            z + max(4, z // 2),
            y + y // 2,
            int(2.1 * x / min(1 - self.held_out, 0.66)) if self.held_out else 2 * x,
        )
        z, y, x = map(max, wanted, _LEAST_VOLUME)
        return z, y, x

    def refuses(self, system: System, device: str) -> str | None:
        for name, path in (("data", self.data), ("labels", self.labels)):
            if path and "://" not in path and not _exists(path):
                return f"{name}: there is no {path}"
        if self.labels and not self.data:
            return "labels need a raw volume: add --set data=FILE"
        if self.weights and not Path(self.weights).is_file():
            return f"there is no file {self.weights} to load weights from"
        return unet.check_save_path(Path(self.save)) if self.save else None

    def memory_bytes(self, system: System) -> int:
        built = self.architecture
        volume = 0 if self.data else 12 * prod(self._synthetic_shape)
        states = _STATES * _FLOAT32_BYTES * built.parameters()
        loaders = (IMPORT_BYTES // 2) * self.workers  # most of a forked process is shared
        return IMPORT_BYTES + loaders + volume + states + int(built.kept_bytes_per_voxel() * self._voxels)

    def start_seconds(self) -> float:
        making = 0.0 if self.data else prod(self._synthetic_shape) / _VOXELS_PER_SECOND
        return IMPORT_SECONDS + 4.0 + making + (4.0 if self.workers else 0.0)

    def step_seconds(self, device: str) -> float | None:
        built = self.architecture
        flop = 2 * unet.FORWARD_AND_BACKWARD * built.products_per_voxel() * self._voxels
        changed = built.parameters() * _FLOAT32_BYTES * _STATES
        return flop / 60e9 + changed / 3e9 if is_host(device) else flop / 4e12 + changed / 3e11

    def build(self, place: WorkerPlace) -> Training:
        import torch

        from rigdyno.engines.blockwise.errors import BlockwiseError
        from rigdyno.engines.segmentation.affinities import dice_loss

        torch.manual_seed(place.seed)  # every rank starts with the same parameters
        try:
            model, volume = self._build_model().to(place.device), self._open_volume(place.seed)
            loader, held_out = self._make_loader(volume, place), self._held_out_patches(volume)
        except BlockwiseError as error:
            raise CannotRun(str(error)) from error
        return Training(
            model=model,
            loss=dice_loss,
            optimizer=self._optimizer,
            batches=iter(loader),
            accuracy=None if held_out is None else _make_accuracy(model, held_out, place.device),
            finish=self._make_finish(model, loader, place),
            per_item={
                "flop": 2 * unet.FORWARD_AND_BACKWARD * self.architecture.products_per_voxel() * prod(self.patch_zyx),
                "voxel": float(prod(self.patch_zyx)),
            },
            settled={"parameters": self.architecture.parameters(), "patch": unet.format_shape(self.patch_zyx)},
            notes=(*volume.notes, *(() if held_out else ("nothing is held out: no accuracy",))),
            phases=True,
        )

    def _build_model(self) -> torch.nn.Module:
        from rigdyno.engines.blockwise.network.loading import load_weights_into, read_weights
        from rigdyno.engines.blockwise.network.unet import UNet3d

        model = UNet3d(**self.architecture.settings)
        if self.weights:
            load_weights_into(model, read_weights(Path(self.weights)).tensors, Path(self.weights))
        return model

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)

    def _open_volume(self, seed: int) -> LabelledVolume:
        from rigdyno.engines.segmentation.pairs import make_synthetic_pair, open_stored_pair

        return (
            open_stored_pair(self.data, self.labels) if self.data else make_synthetic_pair(self._synthetic_shape, seed)
        )

    def _split_x(self, volume: LabelledVolume) -> int:
        """Return the x coordinate at which the held-out part begins."""
        length = volume.shape[2]
        return length - round(length * self.held_out)

    def _make_loader(self, volume: LabelledVolume, place: WorkerPlace) -> Loader:
        from rigdyno.engines.blockwise.boxes import Box
        from rigdyno.engines.segmentation.augmenting import Augmentation
        from rigdyno.engines.segmentation.loading import Loader, PatchSource

        part = Box((0, 0, 0), (*volume.shape[:2], self._split_x(volume)))
        augmentation = Augmentation(self.augment, self.augment, self.elastic_alpha, self.elastic_sigma)
        patches = PatchSource(volume, part, self.patch_zyx, place.seed, place.rank, augmentation, self.background)
        return Loader(patches, self.batch_size, self.workers, place.device)

    def _held_out_patches(self, volume: LabelledVolume) -> PatchSource | None:
        """Return the held-out patches, without augmentation; None if the held-out part is smaller than a patch."""
        from rigdyno.engines.blockwise.boxes import Box
        from rigdyno.engines.segmentation.loading import PatchSource

        part = Box((0, 0, self._split_x(volume)), volume.shape)
        if any(edge > length for edge, length in zip(self.patch_zyx, part.shape, strict=True)):
            return None
        return PatchSource(volume, part, self.patch_zyx, background=self.background)

    def _make_finish(self, model: torch.nn.Module, loader: Loader, place: WorkerPlace) -> Callable[[], None]:
        def finish() -> None:
            from rigdyno.engines.blockwise.network.unet import save_weights

            loader.close()
            if self.save and place.rank == 0:
                save_weights(Path(self.save), model, self.architecture.settings)

        return finish


def _exists(path: str) -> bool:
    """Return whether the file exists. The path may go on inside the file: file.h5/raw."""
    return any(
        Path(path[:end]).exists() for end in (len(path), *(i for i, sign in enumerate(path) if sign in "/:" and i))
    )


def _make_accuracy(model: torch.nn.Module, held_out: PatchSource, device: str) -> Callable[[], float | None]:
    """Return a function that computes the balanced accuracy: chance gives one half."""
    import torch

    from rigdyno.engines.segmentation.affinities import AccuracyTally

    @torch.no_grad()
    def accuracy() -> float | None:
        model.eval()
        tally = AccuracyTally()
        for number in range(_EVALUATED):
            raw, targets = held_out.patch_number(number)
            tally.add(model(raw[None].to(device)), targets[None].to(device))
        model.train()
        return tally.balanced

    return accuracy
