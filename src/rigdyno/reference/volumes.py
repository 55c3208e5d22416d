"""The published volume benchmark, and the famous volumes that one would run it over, as data with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from rigdyno.reference.published import table_rows

ITERATIONS = 1001
VOLUME = (200, 3072, 3072)
VOXELS = prod(VOLUME)
# How the published script lays its blocks: as far apart as it reads, and writes less than that.
APART, WRITES = (65, 675, 675), (55, 575, 575)
PATCH = (40, 432, 432)

Certainty = Literal["stated", "derived", "uncertain"]


def written_share() -> float:
    """Of the published volume: the rest lies between two blocks, and was never written."""
    along = [
        sum(min(block, length - start) for start in range(0, length, apart))
        for length, apart, block in zip(VOLUME, APART, WRITES, strict=True)
    ]
    return prod(along) / VOXELS


@dataclass(frozen=True)
class PublishedUnet:
    """One line of the published tables."""

    source: str
    system: str
    device: str
    devices: int
    cuda: str
    pytorch: str
    training_seconds: float  # of 1001 iterations, a patch of each device in each of them
    inference_seconds: float | None

    @property
    def iterations_per_minute(self) -> float:
        return 60 * ITERATIONS / self.training_seconds

    @property
    def patches_per_minute(self) -> float:
        return self.devices * self.iterations_per_minute

    @property
    def voxels_per_s(self) -> float | None:
        """As published: all voxels of the volume, written or not."""
        return None if self.inference_seconds is None else VOXELS / self.inference_seconds

    @property
    def written_per_s(self) -> float | None:
        return None if self.voxels_per_s is None else written_share() * self.voxels_per_s

    def efficiency(self, rows: tuple[PublishedUnet, ...]) -> float | None:
        """Patches of all devices together, against as many times those of one in the same system."""
        alone = next((row for row in rows if row.system == self.system and row.devices == 1), None)
        return None if alone is None else self.patches_per_minute / (self.devices * alone.patches_per_minute)


@dataclass(frozen=True)
class FamousVolume:
    name: str
    voxels: float
    resolution: str  # of a voxel, in nanometres
    certainty: Certainty
    source: str
    note: str


def unet3d() -> tuple[PublishedUnet, ...]:
    return tuple(
        PublishedUnet(
            source=row["source"],
            system=row["system"],
            device=row["device"],
            devices=int(row["devices"]),
            cuda=row["cuda"],
            pytorch=row["pytorch"],
            training_seconds=float(row["training_1001_iters_s"]),
            inference_seconds=float(seconds) if (seconds := row["inference_1_9_gigavoxel_s"]) else None,
        )
        for row in table_rows("unet3d.csv")
    )


def famous_volumes() -> tuple[FamousVolume, ...]:
    certainties: dict[str, Certainty] = {"stated": "stated", "derived": "derived", "uncertain": "uncertain"}
    return tuple(
        FamousVolume(
            name=row["name"],
            voxels=float(row["voxels"]),
            resolution=row["resolution_nm"],
            certainty=certainties[row["certainty"]],
            source=row["source"],
            note=row["note"],
        )
        for row in table_rows("famous_volumes.csv")
    )
