"""Plan a run before anything is written: halo, blocks, backend, memory and time."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rigdyno.base.free_memory import free_bytes
from rigdyno.engines.blockwise.backend_choice import BackendChoice, SampleBlock, choose_backend, make_backend
from rigdyno.engines.blockwise.backends import Backend, Floats
from rigdyno.engines.blockwise.blocks import (
    Buffers,
    Cut,
    HaloChoice,
    find_best_cut,
    find_smallest_halo,
    make_given_cut,
    require_exact_halo,
    require_memory,
)
from rigdyno.engines.blockwise.boxes import Box, Zyx, round_up, zyx
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting, WontResume
from rigdyno.engines.blockwise.interfaces import Volume
from rigdyno.engines.blockwise.network.model import Model
from rigdyno.engines.blockwise.normalising import SEED, Normalisation, sample_boxes
from rigdyno.engines.blockwise.plan_file import WAY_OUT

SAMPLE_EDGE = 32  # voxels along an edge of the places where halos are compared; small, as errors arise at the faces

TIMED_EDGE = 64  # voxels along an edge of the blocks that are timed

PLACES_EXAMINED = 24  # the most varied of them are used: an empty corner shows no errors

FEWEST_PLACES, MOST_PLACES = 2, 12

HALO_TEST_SHARE = 0.02  # of the time for the whole volume

MEMORY_SHARE = 0.6  # of the free memory, unless the user states how much to use

AHEAD, READERS, WRITERS = 1, 2, 1

FLOAT_BYTES = 4

# What kernels, readers and the heap took in addition to all maps: 80 to 210 million bytes in six runs.
PROGRAM_GROWTH_BYTES = 170_000_000


@dataclass(frozen=True)
class PlanRequest:
    """Settings of a job that the planner may choose itself."""

    halo: str = "auto"  # auto, exact, or Z,Y,X
    block: Zyx | None = None
    tolerance: float = 0.01
    memory: int | None = None
    backend: str = "auto"
    device: str = "cpu"
    dtype: str = "uint8"


@dataclass(frozen=True)
class Plan:
    shape: Zyx
    channels: int  # of the output
    block: Zyx
    halo: Zyx
    exact_halo: Zyx | None
    halo_error: float | None  # the largest measured, as a share of the output range
    halo_mean_error: float | None
    halo_places: int
    backend: str
    alike: bool  # True if blocks at the end of the volume are computed as large as the others
    blocks: int
    recomputation: float  # multiply-adds as a multiple of those for the whole volume in one piece
    products: int  # multiply-adds
    memory_bytes: int
    output_bytes: int  # before compression
    seconds: float
    normalisation: Normalisation
    remarks: tuple[str, ...] = field(default=())

    @property
    def voxels_per_second(self) -> float:
        return prod(self.shape) / self.seconds

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(stored: Any) -> Plan:
        try:
            values = dict(stored)
            for name in ("shape", "block", "halo", "exact_halo", "remarks"):
                values[name] = None if values[name] is None else tuple(values[name])
            figures = values["normalisation"]
            values["normalisation"] = Normalisation(
                tuple(figures["subtract"]), tuple(figures["divide"]), figures["source"]
            )
            return Plan(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise WontResume(f"the stored plan can't be read ({error}): {WAY_OUT}") from None


@dataclass(frozen=True)
class PlannedRun:
    plan: Plan
    backend: Backend


class Planner:
    def __init__(
        self,
        volume: Volume,
        model: Model,
        request: PlanRequest,
        normalisation: Normalisation,
        read: Callable[[Box], Floats],
        output: Path,
    ) -> None:
        self.volume, self.model, self.request, self.read = volume, model, request, read
        self.normalisation, self.output = normalisation, output
        self.buffers = self._estimate_buffers()

    def plan(self) -> PlannedRun:
        places = self._find_places()
        halo = self._choose_halo(places)
        cut = self._choose_cut(halo.halo, alike=False)
        choice = self._choose_backend(places, halo.halo, cut)
        backend = choice.trial.backend
        if backend.one_shape:
            cut = self._choose_cut(halo.halo, alike=True)
        return PlannedRun(self._make_plan(halo, cut, choice), backend)

    def _find_places(self) -> list[Box]:
        """Return sample boxes of the volume, the one with the largest standard deviation first."""
        size = zyx(
            min(round_up(length, step), round_up(SAMPLE_EDGE, step)) for length, step in self._lengths_and_steps()
        )
        readable: list[tuple[float, Box]] = []
        refused: BadRegion | None = None
        for box in sample_boxes(self.volume.shape, size, PLACES_EXAMINED):
            try:
                readable.append((float(self.read(box).std()), box))
            except BadRegion as error:
                refused = error  # reported again when its block is reached
        if not readable:
            raise BadRegion(f"can't read any of the sampled places: {refused}")
        return [box for _, box in sorted(readable, key=lambda pair: -pair[0])]

    def _is_readable(self, box: Box) -> bool:
        try:
            self.read(box)
        except BadRegion:
            return False
        return True

    def _lengths_and_steps(self) -> list[tuple[int, int]]:
        return list(zip(self.volume.shape, self.model.step, strict=True))

    def _choose_halo(self, places: list[Box]) -> HaloChoice:
        asked = self.request.halo
        if asked not in ("auto", "exact"):
            return HaloChoice(self._parse_halo(asked), self.model.exact_halo, None, None)
        exact = require_exact_halo(self.model)
        if asked == "exact":
            return HaloChoice(exact, exact, 0.0, 0.0)
        chosen = self._find_readable(places, exact)
        if not chosen:
            return HaloChoice(exact, exact, 0.0, 0.0)
        eager = make_backend("torch", self.model, self.request.device)
        width = 1.0 if self.model.bounded else None
        return find_smallest_halo(self.model, eager.predict, self.read, chosen, self.request.tolerance, width)

    def _find_readable(self, places: list[Box], exact: Zyx) -> list[Box]:
        """Return the first places that can be read together with their exact halo."""
        enough = self._count_places(places[0], exact)
        around = ((place, self.model.read_box(place.shape, exact).moved(place.start)) for place in places)
        return list(itertools.islice((place for place, box in around if self._is_readable(box)), enough))

    def _count_places(self, place: Box, exact: Zyx) -> int:
        """Return how many places to test, by multiply-adds, not seconds, so that a volume always gets the same halo."""
        one = self.model.products(place.shape, exact)
        everything = self.model.products_per_voxel * prod(self.volume.shape)
        return int(np.clip(HALO_TEST_SHARE * everything / max(one, 1), FEWEST_PLACES, MOST_PLACES))

    def _parse_halo(self, text: str) -> Zyx:
        try:
            numbers = [int(part) for part in text.split(",")]
            z, y, x = numbers * 3 if len(numbers) == 1 else numbers
        except ValueError:
            raise BadSetting(f"--halo takes auto, exact, one number or Z,Y,X, not '{text}'") from None
        halo, least = (z, y, x), self.model.least_halo
        for own, lowest, step in zip(halo, least, self.model.step, strict=True):
            if own < lowest or own % step:
                steps, lowests = ("x".join(map(str, numbers)) for numbers in (self.model.step, least))
                raise BadSetting(f"--halo {text}: this network needs multiples of {steps}, and at least {lowests}")
        return halo

    def _choose_cut(self, halo: Zyx, *, alike: bool) -> Cut:
        shape = self.volume.shape
        if not self.request.block:
            return find_best_cut(self.model, shape, halo, self._allowed_memory(), self.buffers, alike=alike)
        cut = make_given_cut(self.model, shape, self.request.block, halo, alike=alike)
        if self.request.memory is not None:
            require_memory(cut, self.model, self.request.memory, self.buffers)
        return cut

    def _allowed_memory(self) -> int:
        if self.request.memory is not None:
            return self.request.memory
        return int(free_bytes() * MEMORY_SHARE) + psutil.Process().memory_info().rss

    def _estimate_buffers(self) -> Buffers:
        """Estimate the buffers once, before samples make the program grow.

        So the plan reports the same memory that the blocks were chosen by.
        """
        waiting = self.volume.channels * (FLOAT_BYTES + self.volume.dtype.itemsize) * AHEAD
        stored = np.dtype(self.request.dtype).itemsize
        # A block that is being written: floats, the scaled floats, and the stored values.
        written = self.model.channels_out * (2 * FLOAT_BYTES + stored) * WRITERS
        return Buffers(waiting, written, psutil.Process().memory_info().rss + PROGRAM_GROWTH_BYTES)

    def _choose_backend(self, places: list[Box], halo: Zyx, cut: Cut) -> BackendChoice:
        edges = (round_up(min(TIMED_EDGE, length), step) for length, step in self._lengths_and_steps())
        size = zyx(map(min, cut.block, edges))  # a block may extend far over the end of a small volume
        sample = SampleBlock(self._read_sample(places, size, halo), size, halo)
        return choose_backend(self.request.backend, self.model, self.request.device, sample, cut.products(self.model))

    def _read_sample(self, places: list[Box], size: Zyx, halo: Zyx) -> Floats:
        """Read the block that is timed; return noise if none of the first places can be read with its halo."""
        box = self.model.read_box(size, halo)
        for place in places[:FEWEST_PLACES]:
            try:
                return self.read(box.moved(place.start))
            except BadRegion:
                continue
        generator = np.random.default_rng(SEED)
        return generator.standard_normal((self.model.channels_in, *box.shape), np.float32)

    def _make_plan(self, halo: HaloChoice, cut: Cut, choice: BackendChoice) -> Plan:
        model, shape = self.model, self.volume.shape
        output_bytes = prod(shape) * model.channels_out * np.dtype(self.request.dtype).itemsize
        remarks = [*choice.remarks, *self._check_disk(output_bytes)]
        if model.block_dependent:
            remarks.insert(0, f"the answer depends on how the volume is cut: {model.block_dependent}")
        products = cut.products(model)
        return Plan(
            shape=shape,
            channels=model.channels_out,
            block=cut.block,
            halo=halo.halo,
            exact_halo=model.exact_halo,
            halo_error=halo.largest_error,
            halo_mean_error=halo.mean_error,
            halo_places=halo.places,
            backend=choice.trial.name,
            alike=cut.alike,
            blocks=cut.blocks,
            recomputation=cut.recomputation(model),
            products=products,
            memory_bytes=cut.memory_bytes(model, self.buffers),
            output_bytes=output_bytes,
            seconds=choice.trial.seconds(products),
            normalisation=self.normalisation,
            remarks=tuple(remarks),
        )

    def _check_disk(self, output_bytes: int) -> list[str]:
        there = next(folder for folder in (self.output.absolute(), *self.output.absolute().parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if free >= output_bytes:
            return []
        return [
            f"{free / 1e9:.3g} GB are free in {there}, the output takes {output_bytes / 1e9:.3g} before compression"
        ]
