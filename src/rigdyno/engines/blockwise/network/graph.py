"""A network as a list of layers, each after those it depends on; the last layer computes the output."""

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
class GraphNode:
    layer: Layer
    inputs: tuple[int, ...]


@dataclass(eq=False)
class Network:
    """Layers in order of execution. Maps are numbered: 0 is the input, n + 1 is the output of node n."""

    channels_in: int
    nodes: list[GraphNode]

    @property
    def channels_out(self) -> int:
        return self.nodes[-1].layer.channels

    @property
    def sees_block(self) -> bool:
        """Return whether the output depends on the whole block, and so on how the volume is cut."""
        return any(isinstance(node.layer, Pointwise) and node.layer.sees_block for node in self.nodes)

    def enumerate_nodes(self) -> Iterator[tuple[int, GraphNode]]:
        return enumerate(self.nodes, start=1)

    def channels(self, number: int) -> int:
        return self.nodes[number - 1].layer.channels if number else self.channels_in

    def find_users(self, number: int) -> list[int]:
        return [user for user, node in self.enumerate_nodes() for used in node.inputs if used == number]

    def find_last_uses(self) -> list[int]:
        """Return the number of the last layer that uses each map; the output is used after the last layer."""
        last = [0] * (len(self.nodes) + 1)
        for user, node in self.enumerate_nodes():
            for used in node.inputs:
                last[used] = user
        last[-1] = len(self.nodes) + 1
        return last

    def drop_unused(self) -> Network:
        """Return a network without the layers that the output doesn't depend on."""
        needed = {len(self.nodes)}
        for number in range(len(self.nodes), 0, -1):
            if number in needed:
                needed.update(self.nodes[number - 1].inputs)
        kept = sorted(needed - {0})
        renumbered = {0: 0} | {old: new for new, old in enumerate(kept, start=1)}
        nodes = [self.nodes[number - 1] for number in kept]
        return Network(
            self.channels_in, [GraphNode(node.layer, tuple(renumbered[used] for used in node.inputs)) for node in nodes]
        )

    def find_coarseness(self) -> list[Coarseness]:
        """Return how many voxels one index of each map covers: less than one if a map is finer than the input."""
        steps: list[Coarseness] = [(Fraction(1), Fraction(1), Fraction(1))]
        for node in self.nodes:
            steps.append(coarseness_after(steps[node.inputs[0]], node.layer))
        return steps

    @property
    def step(self) -> Zyx:
        """Return the step: blocks must begin at multiples of it, or pooling windows would differ between blocks."""
        steps = self.find_coarseness()
        return zyx(lcm(*(step[axis].numerator for step in steps)) for axis in AXES)


def coarseness_after(before: Coarseness, layer: Layer) -> Coarseness:
    z, y, x = (before[axis] * Fraction(*reversed(layer.scale(axis))) for axis in AXES)
    return z, y, x
