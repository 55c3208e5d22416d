"""From calls of torch's operators to layers; what isn't in operators.py isn't understood."""

from __future__ import annotations

import torch

from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.calls import Call, Calls, Ref
from rigdyno.engines.blockwise.network.graph import Network, Node
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise
from rigdyno.engines.blockwise.network.maps import Maps, NotUnderstood
from rigdyno.engines.blockwise.network.operators import COPIES, LAYERS, NOTHING, VIEWS, nothing_is_cut


def network_of(calls: Calls) -> Network:
    maps = Maps(calls)
    for call in calls.calls:
        _add(maps, call)
    return _finished(maps, calls.output)


def _add(maps: Maps, call: Call) -> None:
    if not call.operator.startswith("aten.") or call.plain_name not in {*NOTHING, *LAYERS}:
        raise NotUnderstood(f"the network uses {call.operator}, which isn't known here")
    if call.plain_name in NOTHING or nothing_is_cut(call):
        if call.arguments.get("train") or call.arguments.get("training"):
            raise BadNetwork("the network was exported in training mode; call .eval() before exporting it")
        maps.same(call.result, next(iter(call.arguments.values()), None), copied=call.plain_name in COPIES)
        return
    layer, used = LAYERS[call.plain_name](maps, call)
    maps.add(layer, used, call)
    if call.plain_name in VIEWS:
        maps.is_part(call, used[0])
    if call.in_place:
        maps.changed(used[0], call)


def _finished(maps: Maps, output: str) -> Network:
    """What comes after the answer isn't needed; where the answer is the input, a copy of it becomes a layer."""
    network = maps.network
    if not maps.is_map(Ref(output)):
        raise BadNetwork("what the network gives doesn't depend on its input")
    answer = maps.number(Ref(output))
    copy = Node(Pointwise(network.channels_in, "copy", torch.clone), (0,))
    return Network(network.channels_in, network.nodes[:answer] or [copy]).alive()
