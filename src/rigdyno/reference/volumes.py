"""The published volume benchmark, and famous volumes to extrapolate to, as data with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from rigdyno.reference.published import read_table

ITERATIONS = 1001

VOLUME = (200, 3072, 3072)

VOXELS = prod(VOLUME)

# Block spacing and written block of the published script: blocks are as far apart as it reads, but it writes less.
APART, WRITES = (65, 675, 675), (55, 575, 575)

PATCH = (40, 432, 432)

Certainty = Literal["stated", "derived", "uncertain"]


def compute_written_share() -> float:
    """Return the share of the published volume that was written; the rest is between blocks and was never written."""
    written = [
        sum(min(block, length - start) for start in range(0, length, apart))
        for length, apart, block in zip(VOLUME, APART, WRITES, strict=True)
    ]
    return prod(written) / VOXELS


@dataclass(frozen=True)
class PublishedUnet:
    """One row of the published tables."""

    source: str
    system: str
    device: str
    devices: int
    cuda: str
    pytorch: str
    training_seconds: float  # 1001 iterations, each with one patch per device
    inference_seconds: float | None

    @property
    def iterations_per_minute(self) -> float:
        return 60 * ITERATIONS / self.training_seconds

    @property
    def patches_per_minute(self) -> float:
        return self.devices * self.iterations_per_minute

    @property
    def voxels_per_s(self) -> float | None:
        """Return the rate as published, which counts all voxels of the volume, written or not."""
        return None if self.inference_seconds is None else VOXELS / self.inference_seconds

    @property
    def written_per_s(self) -> float | None:
        return None if self.voxels_per_s is None else compute_written_share() * self.voxels_per_s

    def efficiency(self, rows: tuple[PublishedUnet, ...]) -> float | None:
        """Return the throughput relative to linear scaling from one device of the same system."""
        single = next((row for row in rows if row.system == self.system and row.devices == 1), None)
        return None if single is None else self.patches_per_minute / (self.devices * single.patches_per_minute)


@dataclass(frozen=True)
class FamousVolume:
    name: str
    voxels: float
    resolution: str  # size of a voxel in nanometres
    certainty: Certainty
    source: str
    note: str


def load_unet3d() -> tuple[PublishedUnet, ...]:
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
        for row in read_table("unet3d.csv")
    )


def load_famous_volumes() -> tuple[FamousVolume, ...]:
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
        for row in read_table("famous_volumes.csv")
    )
