"""A network as a list of layers, each after those that it needs; the last one is the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from rigdyno.engines.blockwise.boxes import Zyx, zyx
from rigdyno.engines.blockwise.network.layers.layer import AXES, Layer
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise

Coarseness = tuple[Fraction, Fraction, Fraction]


@dataclass(eq=False)
class Node:
    layer: Layer
    inputs: tuple[int, ...]


@dataclass(eq=False)
class Network:
    """Maps are numbered: 0 is the input, n + 1 is what node n gives."""

    channels_in: int
    nodes: list[Node]

    @property
    def channels_out(self) -> int:
        return self.nodes[-1].layer.channels

    @property
    def sees_block(self) -> bool:
        """Whether the answer depends on more than a neighbourhood: on how the volume was cut."""
        return any(isinstance(node.layer, Pointwise) and node.layer.sees_block for node in self.nodes)

    def numbered(self) -> Iterator[tuple[int, Node]]:
        return enumerate(self.nodes, start=1)

    def channels(self, number: int) -> int:
        return self.nodes[number - 1].layer.channels if number else self.channels_in

    def users(self, number: int) -> list[int]:
        return [user for user, node in self.numbered() for used in node.inputs if used == number]

    def last_use(self) -> list[int]:
        """Of each map, the last that needs it; the answer is needed by whoever asked."""
        last = [0] * (len(self.nodes) + 1)
        for user, node in self.numbered():
            for used in node.inputs:
                last[used] = user
        last[-1] = len(self.nodes) + 1
        return last

    def alive(self) -> Network:
        """Without the layers that nobody needs for the answer."""
        needed = {len(self.nodes)}
        for number in range(len(self.nodes), 0, -1):
            if number in needed:
                needed.update(self.nodes[number - 1].inputs)
        kept = sorted(needed - {0})
        renumbered = {0: 0} | {old: new for new, old in enumerate(kept, start=1)}
        nodes = [self.nodes[number - 1] for number in kept]
        return Network(
            self.channels_in, [Node(node.layer, tuple(renumbered[used] for used in node.inputs)) for node in nodes]
        )

    def coarsening(self) -> list[Coarseness]:
        """How many voxels one index of each map stands for: less than one where a map is finer than the input."""
        steps: list[Coarseness] = [(Fraction(1), Fraction(1), Fraction(1))]
        for node in self.nodes:
            steps.append(coarser(steps[node.inputs[0]], node.layer))
        return steps

    @property
    def step(self) -> Zyx:
        """Blocks must begin at multiples of this, or pooling windows would lie elsewhere in every block."""
        steps = self.coarsening()
        return zyx(lcm(*(step[axis].numerator for step in steps)) for axis in AXES)


def coarser(before: Coarseness, layer: Layer) -> Coarseness:
    z, y, x = (before[axis] * Fraction(*reversed(layer.scale(axis))) for axis in AXES)
    return z, y, x
