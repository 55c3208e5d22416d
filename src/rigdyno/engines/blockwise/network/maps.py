"""What each name stands for while calls become layers: a map of the network, or figures that are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rigdyno.engines.blockwise.boxes import Zyx, zyx
from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.calls import Call, Calls, Ref, first_line
from rigdyno.engines.blockwise.network.graph import Network, Node, coarser
from rigdyno.engines.blockwise.network.layers.layer import AXES, Layer
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise
from rigdyno.engines.blockwise.network.spans import length

MAP_DIMENSIONS = 5  # batch, channels, z, y, x


class NotUnderstood(BadNetwork):
    """An operator, or a way of using one, whose reach isn't known."""


class WrongShape(NotUnderstood):
    """Traced on another shape it may be understood."""


class Maps:
    def __init__(self, calls: Calls) -> None:
        shape = calls.shapes.get(calls.input, ())
        if len(shape) != MAP_DIMENSIONS or shape[1] < 1:
            raise BadNetwork(f"the network takes a tensor of shape {shape}; it must be batch, channels, z, y, x")
        self.network = Network(int(shape[1]), [])
        self._shapes, self._constants = calls.shapes, dict(calls.constants)
        self._numbers = {calls.input: 0}
        self._coarse = self.network.coarsening()
        self._shared: set[int] = set()  # maps whose memory, or whose number, is also another's

    def is_map(self, value: Any) -> bool:
        return isinstance(value, Ref) and value.name in self._numbers

    def number(self, value: Any) -> int:
        if not self.is_map(value):
            raise NotUnderstood("the network uses an operator on something that isn't a map")
        return self._numbers[value.name]

    def width(self, ref: Any) -> int:
        return self.network.channels(self.number(ref))

    def shape(self, name: str) -> Zyx:
        """As it was traced."""
        sizes = self._shapes.get(name, ())[2:]
        if len(sizes) != len(AXES) or min(sizes) < 1:
            raise NotUnderstood("the network's sizes aren't known")
        return zyx(sizes)

    def constant(self, value: Any) -> Tensor | None:
        if not isinstance(value, Ref):
            return None
        if value.name not in self._constants:
            raise NotUnderstood("the network computes some of its weights")
        return self._constants[value.name].float()

    def same(self, name: str, value: Any, *, copied: bool) -> None:
        """`name` is another name of what is there."""
        if isinstance(value, Ref) and value.name in self._constants:
            self._constants[name] = self._constants[value.name]
            return
        self._numbers[name] = self.number(value)
        if copied:
            self._shared.add(self._numbers[name])

    def add(self, layer: Layer, used: Sequence[Ref], call: Call) -> None:
        numbers = tuple(self.number(ref) for ref in used)
        if len({self._coarse[number] for number in numbers}) != 1:
            raise NotUnderstood(f"the network uses {call.operator} on maps of different resolution")
        self._require_traced(layer, used, call)
        self._require_runs(layer, used, call)
        self.network.nodes.append(Node(layer, numbers))
        self._coarse.append(coarser(self._coarse[numbers[0]], layer))
        self._numbers[call.result] = len(self.network.nodes)

    def is_part(self, call: Call, ref: Ref) -> None:
        """What the call gave lies in the memory of an older map."""
        self._shared |= {self._numbers[call.result], self.number(ref)}

    def changed(self, ref: Any, call: Call) -> None:
        """After an operator in place, all names of the old map mean the new one."""
        old, new = self.number(ref), self._numbers[call.result]
        if old in self._shared:
            raise NotUnderstood(f"the network uses {call.operator} on a part or a copy of another map")
        self._numbers = {name: new if number == old else number for name, number in self._numbers.items()}

    def _require_runs(self, layer: Layer, used: Sequence[Ref], call: Call) -> None:
        """On two voxels: a file can give numbers to a call that it wasn't traced with."""
        if not isinstance(layer, Pointwise):
            return
        device = next((constant.device for constant in self._constants.values()), None)
        try:
            answer = layer.compute(*(torch.zeros(1, self.width(ref), 1, 1, 2, device=device) for ref in used))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise NotUnderstood(f"the network uses {call.operator} wrongly: {first_line(error)}") from None
        if answer.shape != (1, layer.channels, 1, 1, 2):
            raise NotUnderstood(f"the network uses {call.operator} in a way that isn't known here")

    def _require_traced(self, layer: Layer, used: Sequence[Ref], call: Call) -> None:
        """What we make of a call must give what torch gave: else it was used in a way that isn't known."""
        traced = self._shapes.get(call.result, ())
        if len(traced) != MAP_DIMENSIONS or traced[1] != layer.channels:
            raise NotUnderstood(f"the network uses {call.operator} in a way that isn't known here")
        for axis in AXES:
            sizes = [self._shapes[ref.name][axis + 2] for ref in used]
            given = [(0, size) for size in sizes]
            if min(*sizes, traced[axis + 2]) > 0 and length(layer.gives(axis, given)) != traced[axis + 2]:
                raise WrongShape(f"the network uses {call.operator} in a way that isn't known here")
