"""Choose the size of the blocks and of the halo that is read around each of them.

The best blocks need the fewest multiply-adds among those that fit into memory. The halo is either exact, which is all
that the network sees, or the smallest whose error stays within a tolerance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, lcm, prod

import numpy as np

from rigdyno.engines.blockwise.backends import Floats
from rigdyno.engines.blockwise.boxes import Box, Zyx, round_up, zyx
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting, TooLittleMemory
from rigdyno.engines.blockwise.network.model import Model

CHUNK = 64  # voxels along an edge of a stored chunk; blocks consist of whole chunks where possible

LARGEST_EDGE = 1024

SMALL_EDGES = (1, 2, 4, 8, 12, 16, 24, 32, 48)  # shorter than a chunk, for when memory is short

PARTS_RATIO = 1.2  # growth of the number of parts along an axis from one cut that is tried to the next

MOST_CUTS_TRIED = 200  # the largest blocks that fit; smaller ones only need more computation

MEMORY_MARGIN = 1.02  # the memory of the program itself varies a little from run to run

Sizes = list[tuple[Zyx, int]]

Predict = Callable[[Floats, Zyx, Zyx], Floats]

Read = Callable[[Box], Floats]


@dataclass(frozen=True)
class Buffers:
    """Memory that is needed in addition to the network's own maps."""

    read_voxel: int  # bytes per voxel of blocks that were read, with their halo, and wait
    written_voxel: int  # bytes per voxel of blocks that were predicted and are being written
    program: int  # bytes of the program itself

    def total_bytes(self, read_voxels: int, written_voxels: int) -> int:
        return self.program + self.read_voxel * read_voxels + self.written_voxel * written_voxels


@dataclass(frozen=True)
class Cut:
    """One way to cut a volume into blocks."""

    shape: Zyx
    block: Zyx
    halo: Zyx
    alike: bool  # True if blocks at the end of the volume are computed as large as the others

    def sizes(self) -> Sizes:
        """Return the block shapes that are computed, with the number of blocks of each.

        There are at most eight: blocks at the end of an axis are smaller.
        """
        by_axis = [
            [(block, length // block), (block if self.alike else length % block, int(length % block > 0))]
            for length, block in zip(self.shape, self.block, strict=True)
        ]
        combined = itertools.product(*by_axis)
        sizes = [(zyx(size for size, _ in parts), prod(count for _, count in parts)) for parts in combined]
        return [(size, count) for size, count in sizes if count]

    @property
    def blocks(self) -> int:
        return sum(count for _, count in self.sizes())

    def products(self, model: Model) -> int:
        return sum(count * count_products(model, size, self.halo) for size, count in self.sizes())

    def recomputation(self, model: Model) -> float:
        """Return the multiply-adds as a multiple of those for the whole volume in one piece."""
        return self.products(model) / (model.products_per_voxel * prod(self.shape))

    def memory_bytes(self, model: Model, buffers: Buffers) -> int:
        """Return the peak: the largest block is being predicted while others wait or are being written."""
        size = zyx(map(max, zip(*(size for size, _ in self.sizes()), strict=True)))
        read = model.read_box(size, self.halo).voxels
        return model.peak_bytes(size, self.halo) + buffers.total_bytes(read, prod(size))


def count_products(model: Model, size: Zyx, halo: Zyx) -> int:
    """Return the multiply-adds for one block, or the voxels read if the network multiplies nothing."""
    return model.products(size, halo) or model.read_box(size, halo).voxels


def find_best_cut(model: Model, shape: Zyx, halo: Zyx, memory: int, buffers: Buffers, *, alike: bool) -> Cut:
    """Return the cut with the fewest multiply-adds that fits into `memory` bytes."""
    cuts = [Cut(shape, block, halo, alike) for block in _list_blocks(model, shape, alike)]
    fitting = (cut for cut in cuts if cut.memory_bytes(model, buffers) <= memory)
    tried = list(itertools.islice(fitting, MOST_CUTS_TRIED))
    if not tried:
        least = min(cuts, key=lambda cut: cut.memory_bytes(model, buffers))
        raise _memory_error(least, least.memory_bytes(model, buffers), memory)
    return min(tried, key=lambda cut: cut.products(model))


def make_given_cut(model: Model, shape: Zyx, block: Zyx, halo: Zyx, *, alike: bool) -> Cut:
    """Return the cut into the blocks that the user asked for."""
    if any(edge % step or edge < 1 for edge, step in zip(block, model.step, strict=True)):
        steps = "x".join(map(str, model.step))
        raise BadSetting(f"--block {','.join(map(str, block))}: this network's blocks must be multiples of {steps}")
    return Cut(shape, block, halo, alike)


def require_memory(cut: Cut, model: Model, memory: int, buffers: Buffers) -> None:
    if cut.memory_bytes(model, buffers) > memory:
        raise _memory_error(cut, cut.memory_bytes(model, buffers), memory)


def _memory_error(cut: Cut, needed: int, memory: int) -> TooLittleMemory:
    enough = ceil(needed * MEMORY_MARGIN / 1e7) / 100  # rounded up, so that it is enough
    return TooLittleMemory(
        f"{memory / 1e9:.3g} GB are too little: blocks of {'x'.join(map(str, cut.block))} with a halo of "
        f"{'x'.join(map(str, cut.halo))} take {needed / 1e9:.3g} GB; --memory {enough:g}GB would do"
    )


def _list_blocks(model: Model, shape: Zyx, alike: bool) -> list[Zyx]:
    """Return candidates for the block shape, largest first by the voxels inside the volume."""
    by_axis = [_list_edges(length, step, alike) for length, step in zip(shape, model.step, strict=True)]
    blocks = [zyx(edges) for edges in itertools.product(*by_axis)]
    return sorted(blocks, key=lambda block: -prod(map(min, block, shape)))


def _list_edges(length: int, step: int, alike: bool) -> list[int]:
    """Return lengths that cut an axis into nearly equal parts, in whole chunks where they are longer than one.

    A block may extend over the end of the volume: those voxels are stored in vain, and computed only if all blocks are
    alike.
    """
    unit = step if alike else _edge_unit(step)
    edges, parts = set(), -(-length // LARGEST_EDGE)
    while parts * unit < length + unit:
        edges.add(round_up(-(-length // parts), unit))
        parts = max(parts + 1, int(parts * PARTS_RATIO))
    return sorted(edges | {round_up(edge, step) for edge in SMALL_EDGES if edge < length})


def _edge_unit(step: int) -> int:
    return lcm(step, CHUNK) if lcm(step, CHUNK) <= 2 * CHUNK else step


@dataclass(frozen=True)
class HaloChoice:
    halo: Zyx
    exact: Zyx | None
    largest_error: float | None  # compared with the exact halo, as a share of the output range; None if not measured
    mean_error: float | None  # likewise
    places: int = 0  # number of sample boxes that were compared


def require_exact_halo(model: Model) -> Zyx:
    if model.exact_halo is None:
        raise BadNetwork(f"this network has no exact halo: {model.block_dependent}; give one with --halo Z,Y,X")
    return zyx(map(max, model.exact_halo, model.least_halo))


def find_smallest_halo(
    model: Model, predict: Predict, read: Read, places: Sequence[Box], tolerance: float, value_range: float | None
) -> HaloChoice:
    """Return the smallest halo whose error, compared with the exact halo, is within the tolerance at all places.

    The tolerance is a share of the output range; the range is measured if `value_range` is None.
    """
    exact = require_exact_halo(model)
    truths = [_predict_at(model, predict, read, place, exact) for place in places]
    for truth in truths:
        require_finite(truth)
    width = value_range or float(max(truth.max() for truth in truths) - min(truth.min() for truth in truths))
    for halo in list_halos(model):
        if halo == exact or width == 0:
            return HaloChoice(exact, exact, 0.0, 0.0, len(places))
        largest, mean = _measure_errors(model, predict, read, places, truths, halo, tolerance * width)
        if largest <= tolerance * width:
            return HaloChoice(halo, exact, largest / width, mean / width, len(places))
    return HaloChoice(exact, exact, 0.0, 0.0, len(places))


def require_finite(answer: Floats) -> None:
    if not np.isfinite(answer).all():
        raise BadNetwork("the network's output isn't finite; check its weights, or try another --normalise")


def list_halos(model: Model) -> Iterator[Zyx]:
    """Yield the halos from the least to the exact one, one step along each axis at a time."""
    exact, halo = require_exact_halo(model), model.least_halo
    while halo != exact:
        yield halo
        halo = zyx(min(most, own + step) for own, most, step in zip(halo, exact, model.step, strict=True))
    yield exact


def _measure_errors(
    model: Model, predict: Predict, read: Read, places: Sequence[Box], truths: Sequence[Floats], halo: Zyx, most: float
) -> tuple[float, float]:
    """Return the largest and the mean error; stop at the first place where the error exceeds `most`."""
    largest, means = 0.0, []
    for place, truth in zip(places, truths, strict=True):
        difference = np.abs(_predict_at(model, predict, read, place, halo) - truth)
        largest = float(np.maximum(largest, difference.max()))  # NaN stays NaN
        means.append(float(difference.mean()))
        if not largest <= most:
            break
    return largest, float(np.mean(means))


def _predict_at(model: Model, predict: Predict, read: Read, place: Box, halo: Zyx) -> Floats:
    return predict(read(model.read_box(place.shape, halo).moved(place.start)), place.shape, halo)
