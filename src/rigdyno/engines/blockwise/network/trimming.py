"""Which part of every map a block's answer really needs, and what that takes.

A block is read with a halo, but the halo is needed at the first layers only: the last convolution needs one voxel
around the block, not fifty. So every layer computes just what the answer depends on. In a U-Net most of the work is
done in the decoder, where next to nothing of the halo is left. What comes out is the same as without trimming.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rigdyno.engines.blockwise.boxes import Box, Zyx, box_of, zyx
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting
from rigdyno.engines.blockwise.network.graph import Network
from rigdyno.engines.blockwise.network.layers.layer import AXES, Taken
from rigdyno.engines.blockwise.network.spans import Span, common, length, rounded_up, union

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Placement:
    """Where each map lies, for one block: the first is what must be read, the last what is asked for."""

    boxes: tuple[Box, ...]

    @property
    def read(self) -> Box:
        return self.boxes[0]


class Trimming:
    """All about one network's geometry; spans along an axis don't depend on the other axes, and are kept."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.step = network.step
        self.margin = zyx(self._margin(axis) for axis in AXES)
        self.exact_halo = zyx(self._exact(axis) for axis in AXES)
        self.spans = lru_cache(maxsize=4096)(self._spans)

    def placement(self, size: Zyx, halo: Zyx) -> Placement:
        by_axis = [self.spans(axis, size[axis], halo[axis]) for axis in AXES]
        return Placement(tuple(box_of(spans) for spans in zip(*by_axis, strict=True)))

    def multiply_adds(self, size: Zyx, halo: Zyx) -> int:
        boxes = self.placement(size, halo).boxes
        return sum(node.layer.multiply_adds(boxes[number].shape) for number, node in self.network.numbered())

    def peak_bytes(self, size: Zyx, halo: Zyx) -> int:
        """The most that all maps take together, the block that was read included: whoever gave it has it to the end."""
        boxes = self.placement(size, halo).boxes
        last = self.network.last_use()
        live = peak = self.network.channels_in * boxes[0].voxels
        maps = [Taken(0, planar=self.network.channels_in > 1)]
        for number, node in self.network.numbered():
            places, given = [boxes[used] for used in node.inputs], [maps[used] for used in node.inputs]
            taken = node.layer.takes(places, boxes[number], given)
            maps.append(taken)
            live += taken.kept
            peak = max(peak, live + taken.beside)
            live -= sum(maps[used].kept for used in set(node.inputs) if last[used] == number)
        return peak * FLOAT_BYTES

    def least_halo(self) -> Zyx:
        """What a network without padding uses up."""
        return zyx(rounded_up(self.margin[axis], self.step[axis]) for axis in AXES)

    def _spans(self, axis: int, size: int, halo: int) -> tuple[Span, ...]:
        if halo % self.step[axis]:
            raise BadSetting(f"a halo of {halo} won't do for this network: it must be a multiple of {self.step[axis]}")
        given = (-halo, rounded_up(size, self.step[axis]) + halo)
        gives = self._gives(axis, given)
        wanted = (-self.margin[axis], size - self.margin[axis])
        if not all(map(length, gives)):
            raise BadSetting(f"blocks of {length(given)} voxels are too small for this network")
        if common([gives[-1], wanted]) != wanted:
            raise BadSetting(f"a halo of {halo} is too small for this network: it uses up {self.margin[axis]} itself")
        if self.network.sees_block:
            return (*gives[:-1], wanted)
        return tuple(common(pair) for pair in zip(self._needs(axis, wanted), gives, strict=True))

    def _gives(self, axis: int, given: Span) -> list[Span]:
        spans = [given]
        for node in self.network.nodes:
            spans.append(node.layer.gives(axis, [spans[used] for used in node.inputs]))
        return spans

    def _needs(self, axis: int, wanted: Span) -> list[Span]:
        wants: list[list[Span]] = [[] for _ in range(len(self.network.nodes) + 1)]
        wants[-1].append(wanted)
        for number in range(len(self.network.nodes), 0, -1):
            node = self.network.nodes[number - 1]
            for used, span in zip(node.inputs, node.layer.needs(axis, union(wants[number])), strict=True):
                wants[used].append(span)
        return [union(spans) for spans in wants]

    def _exact(self, axis: int) -> int:
        step, margin = self.step[axis], self.margin[axis]
        start, stop = self._needs(axis, (-margin, step - margin))[0]
        return rounded_up(max(-start, stop - step), step)

    def _margin(self, axis: int) -> int:
        """What the network's answer is shorter than its input, on each side."""
        size = _large(self.step[axis])
        answers = [length(self._gives(axis, (0, size + more))[-1]) for more in (0, self.step[axis])]
        lost = size - answers[0]
        if answers[1] - answers[0] != self.step[axis] or lost < 0 or lost % 2:
            raise BadNetwork(
                f"the network gives {answers[0]} voxels for {size} along axis {'zyx'[axis]}; "
                "it must give one for each, or the same number less at both ends"
            )
        return lost // 2


def _large(step: int) -> int:
    """Larger than what any network without padding uses up."""
    return step * max(1, 8192 // step)
