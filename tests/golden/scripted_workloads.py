"""The figures that the scripted processes report: plain numbers, chosen by hand.

Nothing here imports the package. Numbers are plausible and varied, so that every table, sentence and verdict of a
report appears in some golden file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

TENSOR_BYTES = 12288 * 12288 * 4
FORWARD_BACKWARD = {"data": 0.02, "forward": 0.31, "backward": 0.6, "optimizer": 0.065}
TOGETHER = {"data": 0.02, "forward": 0.27, "backward": 0.52, "communication": 0.13, "optimizer": 0.055}
FASHION = ("Fashion-MNIST", "all images lie in memory: loading isn't measured")
OUT_OF_MEMORY = ("out_of_memory", "measure", "RuntimeError: can't allocate memory")
LEAST_STEPS, MOST_STEPS = 16, 300  # in any case, and unless it is a job or a soak


@dataclass(frozen=True)
class Script:
    """The script of one process group: the time of its steps, their results and the way it ends."""

    unit: str
    kinds: Mapping[str, tuple[float, float]]  # by kind of step: milliseconds, items
    spread: float = 0.01  # by which steps differ from each other, as a share
    steps: int | None = None  # None: as many as the budget has room for
    start_seconds: float = 2.5
    phases: Mapping[str, float] = field(default_factory=dict)  # shares of a step
    per_item: Mapping[str, float] = field(default_factory=dict)
    epoch_items: int | None = None
    settled: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    quality: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: int = 400_000_000
    watts: float = 38.0
    failure: tuple[str, str, str] | None = None  # kind, phase, message
    signal: int = 0  # that ends the process before it leaves a report
    trouble: str = ""  # "neighbour", "throttled", "drifting", "stopped", "warming"


@dataclass(frozen=True)
class Asked:
    """The request to one process, as plain values."""

    workload: str
    options: Mapping[str, Any]
    update: str
    arrangement: str
    ranks: int
    repeat: int
    seed: int
    steps: int | None  # of a job, or at most
    items: int | None  # of a job
    is_try: bool  # of the search for the largest batch
    is_soak: bool
    allowed_bytes: int | None


def random_for(asked: Asked, *more: object) -> Random:
    """Return the same random numbers for the same process on every machine."""
    options = sorted(asked.options.items())
    return Random(repr((asked.workload, options, asked.update, asked.arrangement, asked.ranks, asked.repeat, *more)))


def script_process(asked: Asked, slower: float = 1.0) -> Script:
    """Return the script of one process group; no two repeats are equally fast."""
    found = SCRIPTS[asked.workload.rpartition(":")[2]](asked)
    factor = slower * (1 + 0.006 * (random_for(asked, "pace").random() - 0.5))
    return replace(found, kinds={kind: (factor * ms, items) for kind, (ms, items) in found.kinds.items()})


def _tensor_add(asked: Asked) -> Script:
    """Sizes of 3000 give a wrong result, sizes of 5000 fail, and a soak gets too hot."""
    variant, size = asked.options.get("variant", "as_published"), asked.options.get("size", 12288)
    tensors, ms = {"as_published": (2, 118.0), "as_intended": (8, 655.0), "corrected": (3, 171.0)}[variant]
    share = (size / 12288) ** 2
    trouble = (
        "throttled"
        if asked.is_soak
        else {("as_intended", 2): "neighbour", ("corrected", 3): "drifting"}.get((variant, asked.repeat), "")
    )
    script = Script(
        unit="iteration",
        kinds={"step": (ms * share, 1.0)},
        spread=0.02,
        per_item={"byte": float(tensors * TENSOR_BYTES * share)},
        notes=(f"bytes counted per iteration: {tensors} passes over a tensor",),
        quality={"correct": size != 3000},
        memory_bytes=2_100_000_000,
        watts=41.0,
        trouble=trouble,
    )
    if size == 5000:
        return replace(script, failure=("exception", "measure", "RuntimeError: the scripted step has failed"))
    return script


def _memory_bandwidth(asked: Asked) -> Script:
    moved = 256_000_000.0
    return Script(
        unit="byte",
        kinds={"in_place_add": (46.0, 2 * moved), "memmove": (23.5, moved), "read": (19.0, moved)},
        spread=0.015,
        settled={"working_set_bytes": 256_000_000},
        notes=("bytes read and bytes written are counted, over a working set of 256 MB",),
        quality={"correct": True},
        watts=43.0,
    )


def _launch_latency(asked: Asked) -> Script:
    return Script(unit="launch", kinds={"dispatch": (13.1, 10_000.0)}, quality={"correct": True}, watts=22.0)


def _matmul_peak(asked: Asked) -> Script:
    dtype = asked.options.get("dtype", "float32")
    flop = 2.0 * 1024**3
    rates = {"float32": 92e9, "bfloat16": 61e9, "float16": 12e9, "float64": 45e9}
    script = Script(
        unit="flop",
        kinds={"step": (1000 * flop / rates[dtype], flop)},
        settled={"shape": "1024x1024x1024"},
        notes=("a multiply-add counts as 2 flop",),
        quality={"correct": True},
        watts=55.0,
    )
    if dtype == "float16":
        return replace(script, signal=4)
    return replace(script, trouble="drifting" if dtype == "bfloat16" else "")


def _idle(asked: Asked) -> Script:
    return Script(unit="pause", kinds={"step": (100.0, 1.0)}, spread=0.001, start_seconds=1.5, watts=11.5)


def _resnet50(asked: Asked) -> Script:
    batch = asked.options.get("batch_size", 32)
    slower = {1: 1.0, 2: 1.19}.get(asked.ranks, 1.3)
    return Script(
        unit="image",
        kinds={"step": (468.0 * batch / 8 * slower, float(batch))},
        spread=0.02,
        start_seconds=4.5,
        phases=FORWARD_BACKWARD if asked.ranks == 1 else TOGETHER,
        per_item={"flop": 2.04e9},
        settled={"gradient_bytes": 102_228_128} if asked.ranks > 1 else {},
        notes=("synthetic images that lie on the device from the start: loading isn't measured",),
        quality={"loss_finite": True, "first_loss": 7.02, "last_loss": 6.4},
        memory_bytes=760_000_000,
        watts=40.0 + 9.0 * asked.ranks,
    )


def _allreduce(asked: Asked) -> Script:
    sizes = {"4 kB": 4e3, "256 kB": 256e3, "16 MB": 16e6, "256 MB": 256e6}
    ranks = asked.ranks
    kinds = {}
    for name, size in sizes.items():
        seconds = 9e-5 + size / 2.4e9
        count = max(1, round(0.02 / seconds))
        kinds[name] = (1000 * count * seconds, count * size * 2 * (ranks - 1) / ranks / ranks)
    return Script(
        unit="byte",
        kinds=kinds,
        spread=0.04,
        start_seconds=5.0,
        notes=("bus bandwidth: 2 (n - 1) / n times the tensor's size over the time, for n ranks",),
        quality={"correct": True},
        memory_bytes=1_300_000_000,
        watts=35.0,
    )


def _mnist(asked: Asked) -> Script:
    tensorflow = asked.workload.endswith("tensorflow")
    batch = asked.options.get("batch_size") or 64  # 0: the usual one
    private = asked.update != "plain"
    ms = (0.31 if private else 0.165) * batch * (1.12 if tensorflow else 1.0) + 2.0
    ms *= (1.0 if asked.ranks == 1 else 1.09) * (1 + batch / 20_000)  # large batches leave the caches
    memory = 300_000_000 + (700_000 if private else 90_000) * batch + 5 * batch**2
    first = 2.31 + 0.004 * asked.repeat
    quality = {"loss_finite": True, "first_loss": first, "last_loss": 0.52, "accuracy": 0.846 - 0.006 * asked.ranks}
    return Script(
        unit="image",
        kinds={"step": (ms, float(batch))},
        spread=0.03,
        start_seconds=7.5 if tensorflow else 4.0,
        phases=FORWARD_BACKWARD if asked.ranks == 1 else TOGETHER,
        epoch_items=60_000,
        settled={
            "parameters": 21_840,
            **({"batch_size": batch} if tensorflow else {"samples": 60_000 // asked.ranks}),
            **({"gradient_bytes": 87_360} if asked.ranks > 1 else {}),
        },
        notes=FASHION,
        quality={**quality, "evaluation_seconds": 0.9},
        memory_bytes=memory,
        watts=30.0 + 8.0 * asked.ranks,
        failure=OUT_OF_MEMORY if asked.allowed_bytes and memory > 1.12 * asked.allowed_bytes else None,
    )


SECONDS_TO_ACCURACY = {"plain": (420, 3.1), "dp_fast": (610, 31.0), "dp_expanded": (655, 58.0)}


def _mnist_until(asked: Asked) -> Script:
    """Train to an accuracy, or for a fixed time with some noise: the points of the frontier."""
    script = replace(_mnist(replace(asked, workload="mnist_cnn")), phases=FORWARD_BACKWARD)
    options = asked.options
    quality = {"loss_finite": True, "first_loss": 2.3, "last_loss": 0.6, "evaluation_seconds": 1.1}
    if not options.get("target_accuracy"):
        noise, epochs = options.get("update.noise_multiplier"), options.get("update.epochs")
        fixed = options.get("update.epsilon")
        epsilon = fixed or 2.9 / noise
        accuracy = 0.79 + 0.004 * epochs if fixed else 0.835 - 0.012 * noise
        return replace(script, quality={**quality, "accuracy": accuracy, "epsilon": epsilon})
    if asked.update not in SECONDS_TO_ACCURACY:  # Opacus doesn't get there
        missed = {"reached": False, "trained_seconds": 95.0, "trained_steps": 1500, "accuracy": 0.71, "epsilon": 4.2}
        return replace(script, quality={**quality, **missed})
    steps, seconds = SECONDS_TO_ACCURACY[asked.update]
    steps += 35 * asked.seed
    quality |= {
        "reached": True,
        "trained_steps": steps,
        "trained_seconds": seconds * (1 + 0.06 * asked.seed),
        "accuracy": 0.791 + 0.003 * asked.seed,
    }
    if asked.update != "plain":
        quality["epsilon"] = 1.62 + 0.07 * asked.seed
    return replace(script, steps=steps, quality=quality)


# By update: milliseconds for each image and for each step, megabytes for each image and in any case.
EFFICIENTNET = {
    "plain": (7.4, 60.0, 5.1, 310),
    "dp_fast": (11.9, 85.0, 6.4, 395),
    "dp_expanded": (19.5, 90.0, 14.8, 372),
    "dp_opacus": (27.0, 110.0, 21.5, 408),
}


def _efficientnet(asked: Asked) -> Script:
    options = asked.options
    batch = options["batch_size"]
    per_image, fixed, megabytes, base = EFFICIENTNET[asked.update]
    if options.get("update.mode") == "functorch":
        megabytes, per_image = 17.0, 24.0
    if options.get("norm") == "group" and asked.update == "plain":
        per_image *= 1.13
    memory = int((base + megabytes * batch) * 1e6)
    private = asked.update != "plain"
    quality = {"loss_finite": True, "first_loss": 4.66, "last_loss": 4.41}
    if private:
        quality |= {"epsilon": 0.71, "epoch_epsilon": 1.24, "first_loss": 4.71, "last_loss": 4.73}
    script = Script(
        unit="image",
        kinds={"step": (per_image * batch + fixed, float(batch))},
        spread=0.02,
        start_seconds=6.0,
        phases={"forward": 0.29, "backward": 0.61, "optimizer": 0.095},
        per_item={"flop": 2.3e9},
        epoch_items=50_000,
        settled={
            "parameters": 4_135_648,
            "samples": 50_000,
            **({"noise_multiplier": 1.0} if private else {}),
            **({"physical_batch": batch + 4 * int(batch**0.5)} if private and asked.is_try else {}),
        },
        notes=("synthetic images, not CIFAR-100: the accuracy says nothing", "random weights to begin with"),
        quality=quality,
        memory_bytes=memory,
        watts=52.0,
    )
    if asked.is_try and asked.allowed_bytes is not None and memory > 1.12 * asked.allowed_bytes:
        return replace(script, failure=OUT_OF_MEMORY)
    if asked.is_try:
        return script
    if asked.update == "dp_expanded":
        return replace(script, trouble="stopped")
    return replace(script, steps=12) if options.get("update.mode") == "hooks" else script


def _dp_audit(asked: Asked) -> Script:
    refuted = asked.options["update"] == "dp_opacus" and asked.options.get("mode") == "hooks"
    runs = asked.options["runs"]
    return Script(
        unit="audit",
        kinds={"step": (1000 * 0.04 * runs, 1.0)},
        steps=1,
        settled={"claimed_epsilon": 2.4},
        notes=("32 canaries, Poisson batches of a half, 2 steps",),
        quality={"correct": not refuted, "shown_epsilon": 3.1 if refuted else 1.7},
    )


def _unet3d(asked: Asked) -> Script:
    isotropic = asked.options.get("network") == "isotropic"
    ms = (760.0 if isotropic else 910.0) * (1.0 if asked.ranks == 1 else 1.16)
    patch = asked.options.get("patch", "40x432x432")
    voxels = 1.0
    for edge in patch.split("x"):
        voxels *= int(edge)
    return Script(
        unit="patch",
        kinds={"step": (ms, 1.0)},
        spread=0.015,
        start_seconds=6.5,
        phases=FORWARD_BACKWARD if asked.ranks == 1 else TOGETHER,
        per_item={"flop": 3.1e11, "voxel": voxels},
        settled={
            "parameters": 1_430_000 if isotropic else 5_890_000,
            "patch": patch,
            **({"gradient_bytes": 23_560_000} if asked.ranks > 1 else {}),
        },
        notes=("a synthetic volume of made-up cells",),
        quality={"loss_finite": True, "first_loss": 0.62, "last_loss": 0.41, "accuracy": 0.71},
        memory_bytes=1_010_000_000,
        watts=49.0,
    )


def _unet3d_inference(asked: Asked) -> Script:
    published = asked.options.get("scheme") == "published"
    z, y, x = (int(edge) for edge in asked.options.get("block", "50x513x513").split("x"))
    a, b, c = (int(edge) for edge in asked.options.get("halo", "5x48x48").split("x"))
    size, read = float(z * y * x), float((z + 2 * a) * (y + 2 * b) * (x + 2 * c))
    rate = (1.05e5 if published else 1.32e5) / (1.0 if asked.ranks == 1 else 1.07)
    return Script(
        unit="voxel",
        kinds={"step": (1000 * size / rate, size)},
        spread=0.02,
        start_seconds=5.5,
        per_item={"read_voxel": read / size},
        settled={"block": f"{z}x{y}x{x}", "halo": f"{a}x{b}x{c}", "blocks": 144, "volume": "250x2608x2919"},
        notes=(
            "a synthetic volume that is made in memory; blocks are read, predicted and written one after the other",
            "random weights: they take as long as trained ones",
        ),
        quality={"correct": True},
        memory_bytes=1_150_000_000,
        watts=51.0,
        trouble="neighbour" if published else "",
    )


def _user_step(asked: Asked) -> Script:
    return Script(unit=asked.options.get("unit", "item"), kinds={"step": (35.0, 16.0)}, trouble="warming")


SCRIPTS = {
    "allreduce": _allreduce,
    "dp_audit": _dp_audit,
    "efficientnet_cifar100": _efficientnet,
    "idle": _idle,
    "launch_latency": _launch_latency,
    "matmul_peak": _matmul_peak,
    "memory_bandwidth": _memory_bandwidth,
    "mnist_cnn": _mnist,
    "mnist_cnn_tensorflow": _mnist,
    "mnist_cnn_until": _mnist_until,
    "resnet50": _resnet50,
    "step": _user_step,
    "tensor_add": _tensor_add,
    "unet3d": _unet3d,
    "unet3d_inference": _unet3d_inference,
}
