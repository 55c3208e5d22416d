"""A 3D U-Net that learns which neighbouring voxels belong together: the training half of the volume benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from rigdyno.contracts import CannotRun, Options, Place, Requirement, Training
from rigdyno.schema.system import System
from rigdyno.workloads import _unet
from rigdyno.workloads._options import number_between, one_of, text, whole_number, yes_or_no
from rigdyno.workloads._torch import IMPORT_BYTES, IMPORT_SECONDS, is_host

if TYPE_CHECKING:
    import torch

    from rigdyno.engines.segmentation.loading import Loader, Patches
    from rigdyno.engines.segmentation.pairs import Pair

Network = Literal["published", "isotropic"]
Background = Literal["ignored", "cut"]

_STATES = 5  # of a parameter: itself, its gradient, two of Adam, and what a step makes on the way
_FLOAT32_BYTES = 4
_EVALUATED = 4  # patches of what was held out
_LEAST_VOLUME = (24, 120, 180)  # of the synthetic volume
_VOXELS_PER_SECOND = 1e6  # that are made of it


@dataclass(frozen=True, kw_only=True)
class Unet3d:
    """Trains a 3D U-Net on affinities of a labelled volume."""

    unit: ClassVar[str] = "patch"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("numpy"))
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {"features": "4,8", "patch": "4x18x18", "learning_rate": 0.01, "workers": 0}

    network: Network = "published"  # anisotropic with ELU, or isotropic with BatchNorm
    features: str = ""  # maps by level, such as 12,60,300,1500; empty: the network's own
    patch: str = ""  # voxels, z x y x x; empty: a small one. The published one is 40x432x432
    batch_size: int = 1  # of a device
    learning_rate: float = 1e-4
    weight_decay: float = 5e-4
    workers: int = 4  # processes that load and augment, of each device; 0: the training process itself
    augment: bool = True  # flips and quarter turns
    elastic_alpha: float = 2000.0  # of the elastic deformation; 0: none
    elastic_sigma: float = 50.0
    data: str = ""  # in CREMI's layout, or a raw volume with `labels`; zarr, N5 or HDF5; empty: synthetic cells
    labels: str = ""
    background: Background = "ignored"  # what a label 0 means: not labelled, or membrane
    held_out: float = 0.33  # share of the volume, at the far end of x, that isn't trained on
    weights: str = ""  # a state dict to begin with
    save: str = ""  # where the trained weights go

    def __post_init__(self) -> None:
        one_of("network", self.network, get_args(Network))
        one_of("background", self.background, get_args(Background))
        for name in ("features", "patch", "data", "labels", "weights", "save"):
            text(name, getattr(self, name))
        whole_number("batch_size", self.batch_size)
        whole_number("workers", self.workers, 0)
        yes_or_no("augment", self.augment)
        number_between("learning_rate", self.learning_rate, 0, 1000)
        number_between("weight_decay", self.weight_decay, 0, 1000)
        number_between("elastic_alpha", self.elastic_alpha, 0, 1e6)
        number_between("elastic_sigma", self.elastic_sigma, 0.1, 1e4)
        number_between("held_out", self.held_out, 0, 0.95)
        _ = self.patch_zyx

    @property
    def architecture(self) -> _unet.Architecture:
        return _unet.architecture(self.network, self.features)

    @property
    def patch_zyx(self) -> _unet.Zyx:
        return _unet.patch_of(self.network, self.patch, self.architecture)

    @property
    def _voxels(self) -> int:
        return self.batch_size * prod(self.patch_zyx)

    @property
    def _synthetic_shape(self) -> _unet.Zyx:
        """Room for patches to differ by their place, and for one that is held out."""
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
            if path and "://" not in path and not _is_there(path):
                return f"{name}: there is no {path}"
        if self.labels and not self.data:
            return "labels are of a volume: add --set data=FILE"
        if self.weights and not Path(self.weights).is_file():
            return f"there is no file {self.weights} to load weights from"
        return _unet.why_not_saved(Path(self.save)) if self.save else None

    def traps(self) -> tuple[str, ...]:
        return ()

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
        flop = 2 * _unet.FORWARD_AND_BACKWARD * built.products_per_voxel() * self._voxels
        changed = built.parameters() * _FLOAT32_BYTES * _STATES
        return flop / 60e9 + changed / 3e9 if is_host(device) else flop / 4e12 + changed / 3e11

    def build(self, place: Place) -> Training:
        import torch

        from rigdyno.engines.blockwise.errors import BlockwiseError
        from rigdyno.engines.segmentation.affinities import dice_loss

        torch.manual_seed(place.seed)  # every rank begins with the same parameters
        try:
            model, pair = self._model().to(place.device), self._pair(place.seed)
            loader, held_out = self._loader(pair, place), self._held_out(pair)
        except BlockwiseError as error:
            raise CannotRun(str(error)) from error
        return Training(
            model=model,
            loss=dice_loss,
            optimizer=self._optimizer,
            batches=iter(loader),
            accuracy=None if held_out is None else _accuracy(model, held_out, place.device),
            finish=self._finish(model, loader, place),
            per_item={
                "flop": 2 * _unet.FORWARD_AND_BACKWARD * self.architecture.products_per_voxel() * prod(self.patch_zyx),
                "voxel": float(prod(self.patch_zyx)),
            },
            settled={"parameters": self.architecture.parameters(), "patch": _unet.by(self.patch_zyx)},
            notes=(*pair.notes, *(() if held_out else ("nothing is held out: no accuracy",))),
            phases=True,
        )

    def _model(self) -> torch.nn.Module:
        from rigdyno.engines.blockwise.network.loading import fill, read_weights
        from rigdyno.engines.blockwise.network.unet import UNet3d

        model = UNet3d(**self.architecture.settings)
        if self.weights:
            fill(model, read_weights(Path(self.weights)).tensors, Path(self.weights))
        return model

    def _optimizer(self, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)

    def _pair(self, seed: int) -> Pair:
        from rigdyno.engines.segmentation.pairs import stored, synthetic

        return stored(self.data, self.labels) if self.data else synthetic(self._synthetic_shape, seed)

    def _split(self, pair: Pair) -> int:
        """Where along x what is held out begins."""
        length = pair.shape[2]
        return length - round(length * self.held_out)

    def _loader(self, pair: Pair, place: Place) -> Loader:
        from rigdyno.engines.blockwise.boxes import Box
        from rigdyno.engines.segmentation.augmenting import Augmentation
        from rigdyno.engines.segmentation.loading import Loader, Patches

        part = Box((0, 0, 0), (*pair.shape[:2], self._split(pair)))
        augmentation = Augmentation(self.augment, self.augment, self.elastic_alpha, self.elastic_sigma)
        patches = Patches(pair, part, self.patch_zyx, place.seed, place.rank, augmentation, self.background)
        return Loader(patches, self.batch_size, self.workers, place.device)

    def _held_out(self, pair: Pair) -> Patches | None:
        """As they are; None: there is no room for one."""
        from rigdyno.engines.blockwise.boxes import Box
        from rigdyno.engines.segmentation.loading import Patches

        part = Box((0, 0, self._split(pair)), pair.shape)
        if any(edge > length for edge, length in zip(self.patch_zyx, part.shape, strict=True)):
            return None
        return Patches(pair, part, self.patch_zyx, background=self.background)

    def _finish(self, model: torch.nn.Module, loader: Loader, place: Place) -> Callable[[], None]:
        def finish() -> None:
            from rigdyno.engines.blockwise.network.saving import save_weights

            loader.close()
            if self.save and place.rank == 0:
                save_weights(Path(self.save), model, self.architecture.settings)

        return finish


def _is_there(path: str) -> bool:
    """A file, or what is inside of one: file.h5/raw."""
    return any(
        Path(path[:end]).exists() for end in (len(path), *(i for i, sign in enumerate(path) if sign in "/:" and i))
    )


def _accuracy(model: torch.nn.Module, held_out: Patches, device: str) -> Callable[[], float | None]:
    """Balanced: chance gives one half."""
    import torch

    from rigdyno.engines.segmentation.affinities import Tally

    @torch.no_grad()
    def accuracy() -> float | None:
        model.eval()
        tally = Tally()
        for number in range(_EVALUATED):
            raw, targets = held_out.patch_number(number)
            tally.add(model(raw[None].to(device)), targets[None].to(device))
        model.train()
        return tally.balanced

    return accuracy
