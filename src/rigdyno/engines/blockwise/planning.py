"""What a run will do and take, settled before anything is written."""

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

from rigdyno.engines.blockwise.backends import Backend, Floats
from rigdyno.engines.blockwise.boxes import Box, Zyx, zyx
from rigdyno.engines.blockwise.choosing import Choice, Sample, choose_backend, made
from rigdyno.engines.blockwise.cutting import Buffers, Cut, best_cut, given_cut, require_memory
from rigdyno.engines.blockwise.errors import BadRegion, BadSetting, WontResume
from rigdyno.engines.blockwise.free_memory import free_bytes
from rigdyno.engines.blockwise.halo import HaloChoice, exact_halo, smallest_halo
from rigdyno.engines.blockwise.network.model import Model
from rigdyno.engines.blockwise.network.spans import rounded_up
from rigdyno.engines.blockwise.normalising import Normalisation
from rigdyno.engines.blockwise.plan_file import WAY_OUT
from rigdyno.engines.blockwise.ports import Volume
from rigdyno.engines.blockwise.sampling import SEED, bricks

SAMPLE_EDGE = 32  # of the places where halos are compared: their faces are what is looked at
TIMED_EDGE = 64  # of the blocks that are timed
LOOKED_AT = 24  # places, of which the liveliest are taken: an empty corner tells nothing
FEWEST_PLACES, MOST_PLACES = 2, 12
SHARE_FOR_PLACES = 0.02  # of the time that the volume takes
MEMORY_SHARE = 0.6  # of what is free, unless the user says how much
AHEAD, READERS, WRITERS = 1, 2, 1
FLOAT_BYTES = 4
GROWTH = 170_000_000  # bytes: what kernels, readers and the heap took beside all maps, 80 to 210 million over six runs


@dataclass(frozen=True)
class Asked:
    """What the user may leave to us."""

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
    halo_error: float | None  # the largest seen, of the output's range
    halo_mean_error: float | None
    halo_places: int
    backend: str
    alike: bool
    blocks: int
    recomputation: float
    products: int
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
            raise WontResume(f"the plan that was kept isn't understood ({error}): {WAY_OUT}") from None


@dataclass(frozen=True)
class Planned:
    plan: Plan
    backend: Backend


class Planner:
    def __init__(
        self,
        volume: Volume,
        model: Model,
        asked: Asked,
        normalisation: Normalisation,
        read: Callable[[Box], Floats],
        output: Path,
    ) -> None:
        self.volume, self.model, self.asked, self.read = volume, model, asked, read
        self.normalisation, self.output = normalisation, output
        self.buffers = self._buffers()

    def plan(self) -> Planned:
        places = self._places()
        halo = self._halo(places)
        cut = self._cut(halo.halo, alike=False)
        choice = self._backend(places, halo.halo, cut)
        backend = choice.trial.backend
        if backend.one_shape:
            cut = self._cut(halo.halo, alike=True)
        return Planned(self._described(halo, cut, choice), backend)

    def _places(self) -> list[Box]:
        """The liveliest of some, in the order of how lively they are."""
        size = zyx(min(rounded_up(length, step), rounded_up(SAMPLE_EDGE, step)) for length, step in self._axes())
        lively: list[tuple[float, Box]] = []
        refused: BadRegion | None = None
        for box in bricks(self.volume.shape, size, LOOKED_AT):
            try:
                lively.append((float(self.read(box).std()), box))
            except BadRegion as error:
                refused = error  # said again when its block is reached
        if not lively:
            raise BadRegion(f"none of the places that were tried can be read: {refused}")
        return [box for _, box in sorted(lively, key=lambda pair: -pair[0])]

    def _is_readable(self, box: Box) -> bool:
        try:
            self.read(box)
        except BadRegion:
            return False
        return True

    def _axes(self) -> list[tuple[int, int]]:
        return list(zip(self.volume.shape, self.model.step, strict=True))

    def _halo(self, places: list[Box]) -> HaloChoice:
        asked = self.asked.halo
        if asked not in ("auto", "exact"):
            return HaloChoice(self._given_halo(asked), self.model.exact_halo, None, None)
        exact = exact_halo(self.model)
        if asked == "exact":
            return HaloChoice(exact, exact, 0.0, 0.0)
        chosen = self._seen_whole(places, exact)
        if not chosen:
            return HaloChoice(exact, exact, 0.0, 0.0)
        eager = made("torch", self.model, self.asked.device)
        width = 1.0 if self.model.bounded else None
        return smallest_halo(self.model, eager.predict, self.read, chosen, self.asked.tolerance, width)

    def _seen_whole(self, places: list[Box], exact: Zyx) -> list[Box]:
        """Those of the first whose whole surroundings can be read."""
        enough = self._enough_places(places[0], exact)
        around = ((place, self.model.read_box(place.shape, exact).moved(place.start)) for place in places)
        return list(itertools.islice((place for place, box in around if self._is_readable(box)), enough))

    def _enough_places(self, place: Box, exact: Zyx) -> int:
        """By products, not seconds: so that the same volume always gets the same halo."""
        one = self.model.products(place.shape, exact)
        everything = self.model.products_per_voxel * prod(self.volume.shape)
        return int(np.clip(SHARE_FOR_PLACES * everything / max(one, 1), FEWEST_PLACES, MOST_PLACES))

    def _given_halo(self, text: str) -> Zyx:
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

    def _cut(self, halo: Zyx, *, alike: bool) -> Cut:
        shape = self.volume.shape
        if not self.asked.block:
            return best_cut(self.model, shape, halo, self._memory(), self.buffers, alike=alike)
        cut = given_cut(self.model, shape, self.asked.block, halo, alike=alike)
        if self.asked.memory is not None:
            require_memory(cut, self.model, self.asked.memory, self.buffers)
        return cut

    def _memory(self) -> int:
        if self.asked.memory is not None:
            return self.asked.memory
        return int(free_bytes() * MEMORY_SHARE) + psutil.Process().memory_info().rss

    def _buffers(self) -> Buffers:
        """Reckoned once, before samples make the program grow: what is said is what the blocks were cut by."""
        waiting = self.volume.channels * (FLOAT_BYTES + self.volume.dtype.itemsize) * AHEAD
        stored = np.dtype(self.asked.dtype).itemsize
        # Being written: floats, what they are scaled to on the way, and what is stored.
        written = self.model.channels_out * (2 * FLOAT_BYTES + stored) * WRITERS
        return Buffers(waiting, written, psutil.Process().memory_info().rss + GROWTH)

    def _backend(self, places: list[Box], halo: Zyx, cut: Cut) -> Choice:
        edges = (rounded_up(min(TIMED_EDGE, length), step) for length, step in self._axes())
        size = zyx(map(min, cut.block, edges))  # a block may reach far over the end of a small volume
        sample = Sample(self._block(places, size, halo), size, halo)
        return choose_backend(self.asked.backend, self.model, self.asked.device, sample, cut.products(self.model))

    def _block(self, places: list[Box], size: Zyx, halo: Zyx) -> Floats:
        """One to be timed: from the volume, or noise where none of the liveliest places can be read so far around."""
        box = self.model.read_box(size, halo)
        for place in places[:FEWEST_PLACES]:
            try:
                return self.read(box.moved(place.start))
            except BadRegion:
                continue
        chance = np.random.default_rng(SEED)
        return chance.standard_normal((self.model.channels_in, *box.shape), np.float32)

    def _described(self, halo: HaloChoice, cut: Cut, choice: Choice) -> Plan:
        model, shape = self.model, self.volume.shape
        output_bytes = prod(shape) * model.channels_out * np.dtype(self.asked.dtype).itemsize
        remarks = [*choice.remarks, *self._room(output_bytes)]
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
            memory_bytes=cut.memory(model, self.buffers),
            output_bytes=output_bytes,
            seconds=choice.trial.seconds(products),
            normalisation=self.normalisation,
            remarks=tuple(remarks),
        )

    def _room(self, output_bytes: int) -> list[str]:
        there = next(folder for folder in (self.output.absolute(), *self.output.absolute().parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if free >= output_bytes:
            return []
        return [
            f"{free / 1e9:.3g} GB are free in {there}, the output takes {output_bytes / 1e9:.3g} before compression"
        ]
