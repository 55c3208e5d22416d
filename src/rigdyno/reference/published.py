"""The published figures, as data with their sources and notes. They are shown as published, separate from measured
figures."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

from rigdyno.schema.scaling import ScalingPoint

TENSOR_ADD_SIZE = 12288

# The published loop is an in-place addition: one read and one write of a float32 matrix.
TENSOR_ADD_BYTES = 2 * 4 * TENSOR_ADD_SIZE**2


@dataclass(frozen=True)
class PublishedAdd:
    source: str
    device: str
    kind: str  # "cpu", "gpu", "unknown"
    iterations_per_s: float
    nominal_bytes_per_s: float | None  # memory bandwidth in the device's data sheet
    note: str

    @property
    def bytes_per_s(self) -> float:
        return self.iterations_per_s * TENSOR_ADD_BYTES

    @property
    def doubt(self) -> str | None:
        """Return why the figure can't be right, or None."""
        nominal = self.nominal_bytes_per_s
        if nominal is not None and self.bytes_per_s > nominal:
            return f"moves {self.bytes_per_s / 1e9:.0f} GB/s, more than the {nominal / 1e9:.0f} GB/s of this memory"
        return None


@dataclass(frozen=True)
class PublishedCurve:
    """Throughput by number of devices, in images per second or jobs per second."""

    source: str
    name: str
    points: tuple[ScalingPoint, ...]


@dataclass(frozen=True)
class PublishedScaling:
    """Images per second of ResNet-50, all devices together."""

    source: str
    nodes: int
    devices: int
    forward: float
    backward: float
    overall: float
    speedup: float


@dataclass(frozen=True)
class PublishedJob:
    """Seconds of a job by number of devices, read off a graph."""

    source: str
    framework: str
    job: str
    seconds: dict[int, float]
    note: str


@dataclass(frozen=True)
class PublishedSummary:
    """One row of the published table of a cluster's usage and power."""

    source: str
    framework: str  # or "idle"
    cards: int
    device_usage: tuple[float, float] | None  # from and to; printed as "20-80%"
    spotty: bool
    cpu_usage: float | None
    watts: float


@dataclass(frozen=True)
class PublishedPrivacy:
    """Seconds of an epoch of CIFAR-100 with EfficientNet-B0, at the largest batch that fits into memory."""

    source: str
    system: str
    privacy: str  # none, incomplete or ok, as printed
    device: str
    memory_bytes: float
    batch_size: int | None
    seconds: float | None
    note: str


def load_private_training() -> tuple[PublishedPrivacy, ...]:
    return tuple(
        PublishedPrivacy(
            source=row["source"],
            system=row["system"],
            privacy=row["privacy"],
            device=row["device"],
            memory_bytes=float(row["memory_gb"]) * 1e9,
            batch_size=int(row["batch_size"]) if row["batch_size"] else None,
            seconds=float(row["seconds_per_epoch"]) if row["seconds_per_epoch"] else None,
            note=row["note"],
        )
        for row in read_table("private_training.csv")
    )


def load_cluster_jobs() -> tuple[PublishedJob, ...]:
    jobs: dict[tuple[str, str], PublishedJob] = {}
    for row in read_table("jetson_runtime.csv"):
        new = PublishedJob(row["source"], row["framework"], row["job"], {}, row["note"])
        job = jobs.setdefault((row["framework"], row["job"]), new)
        job.seconds[int(row["cards"])] = float(row["seconds"])
    return tuple(jobs.values())


def load_cluster_summary() -> tuple[PublishedSummary, ...]:
    return tuple(
        PublishedSummary(
            source=row["source"],
            framework=row["framework"],
            cards=int(row["cards"]),
            device_usage=_usage_range(row["gpu_usage"]),
            spotty="spotty" in row["gpu_usage"],
            cpu_usage=float(row["cpu_usage_percent"]) / 100 if row["cpu_usage_percent"] else None,
            watts=float(row["power_w"]),
        )
        for row in read_table("jetson_cluster.csv")
    )


def _usage_range(printed: str) -> tuple[float, float] | None:
    """Parse '20-80%' or '100% (spotty)'."""
    low, _, high = printed.partition("%")[0].partition("-")
    return (float(low) / 100, float(high or low) / 100) if low else None


def load_resnet50_scaling() -> tuple[PublishedScaling, ...]:
    return tuple(
        PublishedScaling(
            source=row["source"],
            nodes=int(row["instances"]),
            devices=int(row["devices"]),
            forward=float(row["forward_img_s"]),
            backward=float(row["backward_img_s"]),
            overall=float(row["overall_img_s"]),
            speedup=float(row["speedup"]),
        )
        for row in read_table("resnet50_scaling.csv")
    )


def load_scaling_curves() -> tuple[PublishedCurve, ...]:
    """Return the overall throughput of ResNet-50, and the throughput of a cluster's four jobs."""
    resnet = [
        ScalingPoint(devices=row.devices, throughput=row.overall, nodes=row.nodes) for row in load_resnet50_scaling()
    ]
    jobs: dict[str, list[ScalingPoint]] = {}
    for row in read_table("jetson_runtime.csv"):
        devices = int(row["cards"])
        point = ScalingPoint(devices=devices, throughput=1 / float(row["seconds"]), nodes=devices)
        jobs.setdefault(f"{row['framework']}, {row['job']}", []).append(point)
    return (
        PublishedCurve("pytorch_throughput", "ResNet-50 on K80", tuple(resnet)),
        *(PublishedCurve("jetson-nano-clustering", name, tuple(points)) for name, points in jobs.items()),
    )


def load_tensor_add() -> tuple[PublishedAdd, ...]:
    return tuple(_parse_add(row) for row in read_table("tensor_add.csv"))


def _parse_add(row: dict[str, str]) -> PublishedAdd:
    nominal = row["nominal_gb_per_s"]
    return PublishedAdd(
        source=row["source"],
        device=row["device"],
        kind=row["kind"],
        iterations_per_s=float(row["iterations_per_s"]),
        nominal_bytes_per_s=float(nominal) * 1e9 if nominal else None,
        note=row["note"],
    )


def read_table(name: str) -> list[dict[str, str]]:
    text = files("rigdyno.reference").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
