"""Runs a network on one block, layer by layer; each map is given back as soon as nobody needs it."""

from __future__ import annotations

from torch import Tensor

from rigdyno.engines.blockwise.network.graph import Network
from rigdyno.engines.blockwise.network.trimming import Placement


def run(network: Network, placement: Placement, block: Tensor) -> Tensor:
    """`block` is what `placement.read` says, with a batch of one before it."""
    maps: dict[int, Tensor] = {0: block}
    del block
    last = network.last_use()
    for number, node in network.numbered():
        inputs = [maps[used] for used in node.inputs]
        places = [placement.boxes[used] for used in node.inputs]
        for used in set(node.inputs):
            if last[used] == number:
                del maps[used]
        maps[number] = node.layer.run(inputs, places, placement.boxes[number])
        del inputs
    return maps[len(network.nodes)]
