"""Names while calls are converted to layers: each stands for a map of the network or for a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rigdyno.engines.blockwise.boxes import Zyx, span_length, zyx
from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.calls import Calls, OperatorCall, Ref, first_line
from rigdyno.engines.blockwise.network.graph import GraphNode, Network, coarseness_after
from rigdyno.engines.blockwise.network.layers.layer import AXES, Layer
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise

MAP_DIMENSIONS = 5  # batch, channels, z, y, x


class NotUnderstood(BadNetwork):
    """The network uses an operator, or a variant of one, whose receptive field isn't known."""


class WrongShape(NotUnderstood):
    """The network may be understood if it is traced on another shape."""


class Maps:
    """The network under construction, with the maps and constants that names stand for."""

    def __init__(self, calls: Calls) -> None:
        shape = calls.shapes.get(calls.input, ())
        if len(shape) != MAP_DIMENSIONS or shape[1] < 1:
            raise BadNetwork(f"the network takes a tensor of shape {shape}; it must be batch, channels, z, y, x")
        self.network = Network(int(shape[1]), [])
        self._shapes, self._constants = calls.shapes, dict(calls.constants)
        self._numbers = {calls.input: 0}
        self._coarse = self.network.find_coarseness()
        self._shared: set[int] = set()  # maps that share their memory or their number with another

    def is_map(self, value: Any) -> bool:
        return isinstance(value, Ref) and value.name in self._numbers

    def number(self, value: Any) -> int:
        if not self.is_map(value):
            raise NotUnderstood("the network applies an operator to something that isn't a map")
        return self._numbers[value.name]

    def channels(self, ref: Any) -> int:
        return self.network.channels(self.number(ref))

    def shape(self, name: str) -> Zyx:
        """Return the shape with which a map was traced."""
        sizes = self._shapes.get(name, ())[2:]
        if len(sizes) != len(AXES) or min(sizes) < 1:
            raise NotUnderstood("the network's sizes aren't known")
        return zyx(sizes)

    def find_constant(self, value: Any) -> Tensor | None:
        if not isinstance(value, Ref):
            return None
        if value.name not in self._constants:
            raise NotUnderstood("the network computes some of its weights")
        return self._constants[value.name].float()

    def add_alias(self, name: str, value: Any, *, copied: bool) -> None:
        """Make `name` another name of a map or a constant; `copied` if it has memory of its own in torch."""
        if isinstance(value, Ref) and value.name in self._constants:
            self._constants[name] = self._constants[value.name]
            return
        self._numbers[name] = self.number(value)
        if copied:
            self._shared.add(self._numbers[name])

    def add(self, layer: Layer, used: Sequence[Ref], call: OperatorCall) -> None:
        numbers = tuple(self.number(ref) for ref in used)
        if len({self._coarse[number] for number in numbers}) != 1:
            raise NotUnderstood(f"the network uses {call.operator} on maps of different resolution")
        self._require_traced(layer, used, call)
        self._require_runs(layer, used, call)
        self.network.nodes.append(GraphNode(layer, numbers))
        self._coarse.append(coarseness_after(self._coarse[numbers[0]], layer))
        self._numbers[call.result] = len(self.network.nodes)

    def mark_as_view(self, call: OperatorCall, ref: Ref) -> None:
        """Note that the result of the call shares the memory of an older map."""
        self._shared |= {self._numbers[call.result], self.number(ref)}

    def replace_in_place(self, ref: Any, call: OperatorCall) -> None:
        """Let all names of a map refer to the result of an in-place operator."""
        old, new = self.number(ref), self._numbers[call.result]
        if old in self._shared:
            raise NotUnderstood(f"the network uses {call.operator} on a part or a copy of another map")
        self._numbers = {name: new if number == old else number for name, number in self._numbers.items()}

    def _require_runs(self, layer: Layer, used: Sequence[Ref], call: OperatorCall) -> None:
        """Try the layer on two voxels: a file can contain arguments that the call wasn't traced with."""
        if not isinstance(layer, Pointwise):
            return
        device = next((constant.device for constant in self._constants.values()), None)
        try:
            answer = layer.compute(*(torch.zeros(1, self.channels(ref), 1, 1, 2, device=device) for ref in used))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise NotUnderstood(f"the network uses {call.operator} wrongly: {first_line(error)}") from None
        if answer.shape != (1, layer.channels, 1, 1, 2):
            raise NotUnderstood(f"the network uses {call.operator} in a way that isn't known here")

    def _require_traced(self, layer: Layer, used: Sequence[Ref], call: OperatorCall) -> None:
        """Compare the layer's output shape with the traced one; if they differ, the usage isn't known."""
        traced = self._shapes.get(call.result, ())
        if len(traced) != MAP_DIMENSIONS or traced[1] != layer.channels:
            raise NotUnderstood(f"the network uses {call.operator} in a way that isn't known here")
        for axis in AXES:
            sizes = [self._shapes[ref.name][axis + 2] for ref in used]
            given = [(0, size) for size in sizes]
            if min(*sizes, traced[axis + 2]) > 0 and span_length(layer.find_output(axis, given)) != traced[axis + 2]:
                raise WrongShape(f"the network uses {call.operator} in a way that isn't known here")
