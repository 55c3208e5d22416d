"""How the volume is cut: into the blocks with the least to compute that memory allows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import ceil, lcm, prod

from rigdyno.engines.blockwise.boxes import Zyx, zyx
from rigdyno.engines.blockwise.errors import BadSetting, TooLittleMemory
from rigdyno.engines.blockwise.network.model import Model
from rigdyno.engines.blockwise.network.spans import rounded_up

CHUNK = 64  # voxels along an edge of what is stored as one; blocks are whole numbers of them where they can be
LARGEST_EDGE = 1024
SMALL_EDGES = (1, 2, 4, 8, 12, 16, 24, 32, 48)  # below a chunk, where memory is short
FINER = 1.2  # times as many parts, from one cut that is tried to the next
TRIED = 200  # of the largest blocks that fit: smaller ones only compute more
SPARE = 1.02  # the program itself takes a little more or less each time

Sizes = list[tuple[Zyx, int]]


@dataclass(frozen=True)
class Buffers:
    """What is held beside the network's own maps, in bytes for each voxel; and for the program itself."""

    read_voxel: int  # of a block that was read, with its halo, and waits
    written_voxel: int  # of a block that was predicted, and is being written
    program: int

    def bytes(self, read_voxels: int, written_voxels: int) -> int:
        return self.program + self.read_voxel * read_voxels + self.written_voxel * written_voxels


@dataclass(frozen=True)
class Cut:
    shape: Zyx
    block: Zyx
    halo: Zyx
    alike: bool  # whether blocks at the volume's end are computed as large as the others

    def sizes(self) -> Sizes:
        """What is computed, with how often: at most eight shapes, for at the end of an axis blocks are smaller."""
        by_axis = [
            [(block, length // block), (block if self.alike else length % block, int(length % block > 0))]
            for length, block in zip(self.shape, self.block, strict=True)
        ]
        combined = itertools.product(*by_axis)
        found = [(zyx(size for size, _ in parts), prod(count for _, count in parts)) for parts in combined]
        return [(size, count) for size, count in found if count]

    @property
    def blocks(self) -> int:
        return sum(count for _, count in self.sizes())

    def products(self, model: Model) -> int:
        return sum(count * products(model, size, self.halo) for size, count in self.sizes())

    def recomputation(self, model: Model) -> float:
        """Products for each that the network would need over the whole volume at once."""
        return self.products(model) / (model.products_per_voxel * prod(self.shape))

    def memory(self, model: Model, buffers: Buffers) -> int:
        """At the most: the largest block in prediction, others waiting and being written."""
        size = zyx(map(max, zip(*(size for size, _ in self.sizes()), strict=True)))
        read = model.read_box(size, self.halo).voxels
        return model.peak_bytes(size, self.halo) + buffers.bytes(read, prod(size))


def products(model: Model, size: Zyx, halo: Zyx) -> int:
    """Multiply-adds; of a network that multiplies nothing, voxels that are read."""
    return model.products(size, halo) or model.read_box(size, halo).voxels


def best_cut(model: Model, shape: Zyx, halo: Zyx, memory: int, buffers: Buffers, *, alike: bool) -> Cut:
    cuts = [Cut(shape, block, halo, alike) for block in _blocks(model, shape, alike)]
    fitting = (cut for cut in cuts if cut.memory(model, buffers) <= memory)
    tried = list(itertools.islice(fitting, TRIED))
    if not tried:
        least = min(cuts, key=lambda cut: cut.memory(model, buffers))
        raise _too_little(least, least.memory(model, buffers), memory)
    return min(tried, key=lambda cut: cut.products(model))


def given_cut(model: Model, shape: Zyx, block: Zyx, halo: Zyx, *, alike: bool) -> Cut:
    if any(edge % step or edge < 1 for edge, step in zip(block, model.step, strict=True)):
        steps = "x".join(map(str, model.step))
        raise BadSetting(f"--block {','.join(map(str, block))}: this network's blocks must be multiples of {steps}")
    return Cut(shape, block, halo, alike)


def require_memory(cut: Cut, model: Model, memory: int, buffers: Buffers) -> None:
    if cut.memory(model, buffers) > memory:
        raise _too_little(cut, cut.memory(model, buffers), memory)


def _too_little(cut: Cut, needed: int, memory: int) -> TooLittleMemory:
    enough = ceil(needed * SPARE / 1e7) / 100  # rounded up, so that it is enough
    return TooLittleMemory(
        f"{memory / 1e9:.3g} GB are too little: blocks of {'x'.join(map(str, cut.block))} with a halo of "
        f"{'x'.join(map(str, cut.halo))} take {needed / 1e9:.3g} GB; --memory {enough:g}GB would do"
    )


def _blocks(model: Model, shape: Zyx, alike: bool) -> list[Zyx]:
    """The largest first; what reaches over the volume's end doesn't count."""
    by_axis = [_edges(length, step, alike) for length, step in zip(shape, model.step, strict=True)]
    blocks = [zyx(edges) for edges in itertools.product(*by_axis)]
    return sorted(blocks, key=lambda block: -prod(map(min, block, shape)))


def _edges(length: int, step: int, alike: bool) -> list[int]:
    """Lengths that cut an axis into nearly equal parts, on whole chunks where they are longer than one.

    A block may reach over the volume's end: what lies there is stored for nothing, and computed only if all are alike.
    """
    unit = step if alike else _unit(step)
    edges, parts = set(), -(-length // LARGEST_EDGE)
    while parts * unit < length + unit:
        edges.add(rounded_up(-(-length // parts), unit))
        parts = max(parts + 1, int(parts * FINER))
    return sorted(edges | {rounded_up(edge, step) for edge in SMALL_EDGES if edge < length})


def _unit(step: int) -> int:
    return lcm(step, CHUNK) if lcm(step, CHUNK) <= 2 * CHUNK else step
