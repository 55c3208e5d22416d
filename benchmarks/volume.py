"""Compare blockwise inference with a sliding window and with the machine's peak, and check what it predicts.

An isotropic U-Net 32/64/128/256 with BatchNorm and fixed weights, over a volume of 320^3. A whole volume takes each arm
many minutes, so arms take turns: a block of ours, some windows of theirs, and again. A window's time doesn't depend on
its place, so the volume's time is that of a window times their number, stitching included; ours is the sum over the
blocks of the cut, reading and writing included by the share that a real run shows. Where MONAI isn't installed the same
recipe is written out (_sliding.py), shown in the table, and the bars against MONAI count as not measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # for all arms: large maps are cheaper to get with large pages

import numpy as np
import torch
from _bars import Allowance, Bar, NotMeasured, ValueBar, finish, mean_and_half
from _peak import peak_flops
from _sliding import monai_version, sliding_window, windows
from torch import Tensor, nn

from rigdyno.engines.blockwise.backends import load_backend
from rigdyno.engines.blockwise.blocks import Buffers, find_best_cut
from rigdyno.engines.blockwise.network.loading import make_model
from rigdyno.engines.blockwise.network.unet import UNet3d

ROI, OVERLAP = 96, 0.25
MEMORY = 6 * 10**9
LEAST_ROUNDS, MOST_ROUNDS = 2, 8
LEAST_PAIRS, MOST_PAIRS = 4, 12  # of a small volume and a large one: single pairs differ by 10 % and more
SPEED_SHARE = 0.55  # of the time that is left, for the arms; the rest is for whole runs of the program
NEEDED = "1.6.1"
NARROW = "4,8,16,32"  # for what doesn't depend on how much there is to compute


@dataclass(frozen=True)
class Size:
    """The sizes of the network and of the volumes."""

    features: tuple[int, ...] = (32, 64, 128, 256)
    edge: int = 320
    error_edge: int = 160
    run_edge: int = 256  # of a run of the whole program
    edges: tuple[int, int] = (192, 384)  # of a small volume and a large one, both of several blocks


QUICK = Size(features=(16, 32, 64, 128), edge=96, error_edge=64, run_edge=96, edges=(96, 160))


@dataclass
class Arm:
    """One way over the volume; `turn` gives the seconds that the whole volume takes at the pace just seen."""

    name: str
    turn: Callable[[], float]
    seconds: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller volume and fewer rounds")
    quick = parser.parse_args().quick
    allowed = Allowance(quick)
    torch.set_grad_enabled(False)
    size = QUICK if quick else Size()
    network = fixed_network(size.features)
    print("  errors against the network over a whole volume at once", flush=True)
    halo, errors = error_rows(network, size.error_edge)
    speeds = Speeds(network, size, halo)
    speeds.take_turns(allowed, 2 if quick else LEAST_ROUNDS + 1)
    promised = Promises(size, allowed)
    print_table(speeds, errors)
    finish([*speeds.bars(errors), *promised.bars()])


def fixed_network(features: tuple[int, ...]) -> nn.Module:
    """Weights as training leaves them: norms with figures of their own, and an answer that isn't 0.5 everywhere."""
    torch.manual_seed(0)
    network = UNet3d(features=features).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.uniform_(0.8, 1.6)
            module.bias.normal_(0.0, 0.1)
    return network


def test_volume(edge: int) -> Tensor:
    """Make a volume of blobs of several sizes and noise, similar to microscope images."""
    chance = torch.Generator().manual_seed(1)
    volume = 0.3 * torch.randn(1, 1, edge, edge, edge, generator=chance)
    for coarse in (4, 12, 32):
        small = torch.randn(1, 1, *(max(2, edge // coarse),) * 3, generator=chance)
        volume += nn.functional.interpolate(small, size=(edge,) * 3, mode="trilinear")
    return (volume - volume.mean()) / volume.std()


@dataclass(frozen=True)
class Errors:
    """Errors relative to the network over the whole volume at once."""

    largest: float
    mean: float


def error_rows(network: nn.Module, edge: int) -> tuple[tuple[int, int, int], dict[str, Errors]]:
    """Everybody on the same volume; the halo is what `auto` finds on it."""
    from rigdyno.engines.blockwise.blocks import find_smallest_halo
    from rigdyno.engines.blockwise.boxes import Box
    from rigdyno.engines.blockwise.normalising import sample_boxes

    model = make_model(network, 1).model
    eager = load_backend("torch")(model, "cpu")
    exact = model.exact_halo
    volume = test_volume(edge)
    sides = [length for length in reversed(exact) for _ in ("before", "after")]
    padded = nn.functional.pad(volume, sides, mode="reflect")

    def read(box: Box) -> np.ndarray:
        inner = box.moved(exact)
        return np.ascontiguousarray(padded[0][(slice(None), *inner.slices())].numpy())

    places = list(sample_boxes((edge,) * 3, (32, 32, 32), 6))
    halo = find_smallest_halo(model, eager.predict, read, places, 0.01, 1.0).halo
    whole = eager.predict(read(model.read_box((edge,) * 3, exact)), (edge,) * 3, exact)
    block = (edge // 2 // 8 * 8,) * 3
    ours = np.empty_like(whole)
    for box in sample_boxes((edge,) * 3, block, 10**6):
        needed = model.read_box(box.shape, halo).moved(box.start)
        ours[(slice(None), *box.slices())] = eager.predict(read(needed), box.shape, halo)
    found = {f"ours, halo {halo[0]}": _errors(ours, whole)}
    theirs = sliding_window(volume, min(ROI, edge), OVERLAP, network)[0].numpy()
    found[f"sliding window, roi {ROI}"] = _errors(theirs, whole)
    return halo, found


def _errors(answer: np.ndarray, truth: np.ndarray) -> Errors:
    difference = np.abs(answer - truth)
    return Errors(float(difference.max()), float(difference.mean()))


class _Enough(Exception):
    """Raised to end a sliding window after the windows of one turn."""


class Speeds:
    def __init__(self, network: nn.Module, size: Size, halo: tuple[int, int, int]) -> None:
        self.edge, self.halo, self.network = size.edge, halo, network
        self.volume = test_volume(size.edge)
        self.model = make_model(network, 1).model
        program = 400 * 10**6
        self.cut = find_best_cut(self.model, (size.edge,) * 3, halo, MEMORY, Buffers(5, 9, program), alike=False)
        self.peaks: list[float] = []
        largest_roi = self._largest_roi(size.features)
        last = copy.deepcopy(network).to(memory_format=torch.channels_last_3d)
        self.arms = [
            Arm("sliding window, default", lambda: self._windows(network, ROI, OVERLAP, 2)),
            Arm(
                f"sliding window, tuned (roi {largest_roi}, channels_last_3d)",
                lambda: self._windows(last, largest_roi, self._tuned_overlap(largest_roi), 1),
            ),
            Arm("ours, torch", lambda: self._blocks("torch")),
            Arm("ours, compile", lambda: self._blocks("compile")),
        ]
        self._backends = {name: load_backend(name)(self.model, "cpu") for name in ("torch", "compile")}

    def take_turns(self, allowed: Allowance, least: int) -> None:
        for number in allowed.rounds(least, MOST_ROUNDS + 1, SPEED_SHARE):
            self.peaks.append(peak_flops(torch.get_num_threads()))
            for arm in self.arms:
                seconds = arm.turn()
                if number:  # the first round prepares: weights are packed, programs compiled
                    arm.seconds.append(seconds)
                rate = self.edge**3 / seconds / 1e6
                print(f"  round {number}: {arm.name}: {rate:.3f} megavoxel/s", flush=True)

    def _largest_roi(self, features: tuple[int, ...]) -> int:
        """Return the largest edge of a window that fits the same memory: a plain step of this network holds about 96
        channels of the finest level twice."""
        channels = 2 * features[0] + 2 * (features[0] + features[1])
        fits = int(((MEMORY - 4e8) / (4 * channels)) ** (1 / 3)) // 8 * 8
        return min(fits, self.edge)

    def _tuned_overlap(self, roi: int) -> float:
        """Windows whose rims overlap by our halo twice: what is farther in than that is as exact as ours."""
        return 2 * self.halo[0] / roi

    def _windows(self, network: nn.Module, roi: int, overlap: float, most: int) -> float:
        count = len(windows(self.edge, roi, overlap)) ** 3
        most, seen, began = min(most, count), 0, time.perf_counter()

        def predict(window: Tensor) -> Tensor:
            nonlocal seen
            if seen == most:
                raise _Enough
            seen += 1
            return network(window)

        with suppress(_Enough):
            sliding_window(self.volume, roi, overlap, predict)
        return (time.perf_counter() - began) / seen * count

    def _blocks(self, name: str) -> float:
        """One block of the largest size of the cut; the others by their products."""
        size = max((size for size, _ in self.cut.sizes()), key=prod)
        needed = self.model.read_box(size, self.halo).shape
        block = np.ascontiguousarray(_mirrored(self.volume[0].numpy(), needed))
        began = time.perf_counter()
        self._backends[name].predict(block, size, self.halo)
        seconds = time.perf_counter() - began
        return seconds * self.cut.products(self.model) / self.model.products(size, self.halo)

    def bars(self, errors: dict[str, Errors]) -> list[Bar]:
        default, tuned, eager, *others = self.arms
        best = min([eager, *others], key=lambda arm: statistics.median(arm.seconds))
        ours, theirs = errors.values()
        found = [
            _against("torch against MONAI as it is called", default, eager, 1.8),
            _against("the best against MONAI as it is called", default, best, 2.3),
            _against("torch against MONAI tuned", tuned, eager, 1.2),
            _against("the best against MONAI tuned", tuned, best, 1.5),
            _at_most_theirs("largest error, of MONAI's", ours.largest, theirs.largest),
            _at_most_theirs("mean error, of MONAI's", ours.mean, theirs.mean),
        ]
        if monai_version() != NEEDED:
            why = f"MONAI {NEEDED} isn't installed"
            found = [NotMeasured.because(f"{bar.name} (else {bar.value:.3g})", why, bar.bar, bar.at) for bar in found]
        return [*found, self._share_of_peak(best)]

    def _share_of_peak(self, best: Arm) -> Bar:
        products = self.cut.products(self.model)
        peak = statistics.median(self.peaks)
        shares = [2 * products / seconds / peak for seconds in best.seconds]
        name = f"of the peak ({peak / 1e9:.0f} GFLOP/s), {best.name}"
        return ValueBar(name, *_interval(shares), "share", 0.6, "least")


def _mirrored(volume: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    missing = [(0, max(0, wanted - own)) for wanted, own in zip(shape, volume.shape[1:], strict=True)]
    padded = np.pad(volume, [(0, 0), *missing], mode="reflect")
    return padded[(slice(None), *(slice(0, length) for length in shape))]


def _interval(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 3:
        return statistics.median(values), min(values), max(values)
    mean, half = mean_and_half(values)
    return mean, mean - half, mean + half


def _against(name: str, theirs: Arm, ours: Arm, bar: float) -> Bar:
    ratios = [their / own for their, own in zip(theirs.seconds, ours.seconds, strict=True)]
    return Bar(name, *_interval(ratios), "times as quick", bar, "least")


def _at_most_theirs(name: str, ours: float, theirs: float) -> Bar:
    share = ours / theirs
    return Bar(name, share, share, share, "of theirs", 1.0)


class Promises:
    """Compare what `rigdyno infer` predicts with what it then takes."""

    def __init__(self, size: Size, allowed: Allowance) -> None:
        self.paces: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder)
            print("  a run of the whole program", flush=True)
            self.run = infer(where, size.run_edge, features=",".join(map(str, size.features)), memory="3GB")
            for number in allowed.rounds(LEAST_PAIRS, MOST_PAIRS):
                small, large = (infer(where, edge, features=NARROW, memory="800MB") for edge in size.edges)
                self.paces.append(large.seconds_per_voxel / small.seconds_per_voxel)
                print(f"  pair {number}: a voxel of a large volume takes {self.paces[-1]:.3f} of its time", flush=True)

    def bars(self) -> list[Bar]:
        other = 1 - self.run.totals["predicting"] / self.run.totals["time"]
        memory = self.run.peak_bytes / self.run.plan["memory_bytes"]
        return [
            Bar("time that isn't predicting", other, other, other, "share", 0.05),
            Bar("peak memory, of what was promised", memory, memory, memory, "times", 1.1),
            Bar("promised memory, of the peak", 1 / memory, 1 / memory, 1 / memory, "times", 1.1),
            Bar("time for a voxel of a large volume", *_interval(self.paces), "of a small one's", 1.1),
        ]


@dataclass(frozen=True)
class Ran:
    totals: dict  # by name
    plan: dict
    peak_bytes: int

    @property
    def seconds_per_voxel(self) -> float:
        """Halo counted: for each product that had to be computed."""
        return self.totals["predicting"] / self.plan["products"]


def infer(where: Path, edge: int, *, features: str, memory: str) -> Ran:
    source, output = where / f"in{edge}.zarr", Path(tempfile.mkdtemp(dir=where)) / "out.zarr"
    if not source.exists():
        _store(source, edge)
    command = [sys.executable, "-m", "rigdyno", "infer", source, output, "--model", "unet3d", "--json"]
    command += ["--set", f"features={features}", "--memory", memory, "--halo", "16", "--backend", "torch"]
    command += ["--out", where / "runs"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        peak = 0
        while child.poll() is None and not select.select([child.stdout], [], [], 0.05)[0]:
            peak = max(peak, _most_resident(child.pid))
        answer = child.stdout.read()
    if child.returncode:
        sys.exit(f"rigdyno infer ended with {child.returncode}")
    plan = json.loads((output / ".rigdyno" / "plan.json").read_text())["plan"]["plan"]
    rows = [row["entries"] for table in json.loads(answer)["tables"] for row in table["rows"]]
    totals = {row["what"]["text"]: row["total"]["value"] for row in rows if "total" in row}
    return Ran(totals, plan, peak)


def _most_resident(process: int) -> int:
    """Return the peak memory of the program alone: the figure of wait() includes the process that forked it."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _store(path: Path, edge: int) -> None:
    import tensorstore

    chunk = tensorstore.ChunkLayout(chunk_shape=(64, 64, 64))
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    array = tensorstore.open(spec, create=True, dtype="uint8", shape=(edge,) * 3, chunk_layout=chunk).result()
    values = test_volume(edge)[0, 0].mul_(40).add_(128).clamp_(0, 255)
    array[...] = values.numpy().astype(np.uint8)


def print_table(speeds: Speeds, errors: dict[str, Errors]) -> None:
    who = f"MONAI {monai_version()}" if monai_version() else "the sliding window is written out, MONAI isn't installed"
    block = " x ".join(map(str, speeds.cut.block))
    print(f"\n{speeds.edge}^3, halo {speeds.halo[0]}, blocks of {block}; {who}")
    for arm in speeds.arms:
        rates = [speeds.edge**3 / seconds / 1e6 for seconds in arm.seconds]
        print(f"  {arm.name:<56} {statistics.median(rates):8.3f} megavoxel/s  ({min(rates):.3f} to {max(rates):.3f})")
    for name, own in errors.items():
        print(f"  {name:<56} error at most {own.largest:.2e}, in the mean {own.mean:.2e}")
    print()


if __name__ == "__main__":
    main()
