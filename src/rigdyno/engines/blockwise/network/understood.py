"""A network whose layers are all known: trimmed, folded and fused.

A block is read with a halo, but only the first layers need all of it: the last convolution needs one voxel around the
block, not fifty. So every layer computes only the part of its map that the output depends on. In a U-Net most of the
work is in the decoder, where hardly anything of the halo is left. Trimming doesn't change the output.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from rigdyno.engines.blockwise.boxes import (
    Box,
    Span,
    Zyx,
    box_from_spans,
    intersection,
    round_up,
    span_length,
    union,
    zyx,
)
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting
from rigdyno.engines.blockwise.network.calls import Calls, OperatorCall, Ref, raw_bytes
from rigdyno.engines.blockwise.network.graph import GraphNode, Network
from rigdyno.engines.blockwise.network.layers.convolution import ConvolutionSum
from rigdyno.engines.blockwise.network.layers.layer import AXES, MemoryUse, crop
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise
from rigdyno.engines.blockwise.network.maps import Maps, NotUnderstood
from rigdyno.engines.blockwise.network.model import Floats
from rigdyno.engines.blockwise.network.operators import COPIES, LAYERS, NO_OPERATION, VIEWS, cuts_nothing
from rigdyno.engines.blockwise.network.simplify import simplify_network

FLOAT_BYTES = 4

BOUNDED = ("sigmoid", "softmax")

LARGE = 1024  # voxels along the edge of the cube for which multiply-adds are counted; nothing is rounded there


class Understood:
    """A `Model` made of known layers."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._device = calls, "cpu"
        self.network = simplify_network(build_network(calls))
        self.trimming = Trimming(self.network)
        self.channels_in, self.channels_out = self.network.channels_in, self.network.channels_out
        self.step, self.least_halo = self.trimming.step, self.trimming.least_halo()
        self.exact_halo: Zyx | None = self.trimming.exact_halo
        self.bounded = _is_bounded(self.network)
        self.block_dependent = (
            "it has InstanceNorm or GroupNorm, whose mean and variance are each block's own"
            if self.network.sees_block
            else None
        )
        self.products_per_voxel = _products_per_voxel(self.network)

    def read_box(self, size: Zyx, halo: Zyx) -> Box:
        return self.trimming.compute_placement(size, halo).read

    def products(self, size: Zyx, halo: Zyx) -> int:
        return max(prod(size), self.trimming.count_multiply_adds(size, halo))

    def peak_bytes(self, size: Zyx, halo: Zyx) -> int:
        return self.trimming.peak_bytes(size, halo)

    def run(self, block: Tensor, size: Zyx, halo: Zyx) -> Tensor:
        return run_network(self.network, self.trimming.compute_placement(size, halo), block)

    def predict_reference(self, block: Floats, size: Zyx, halo: Zyx) -> Floats:
        network = build_network(self._calls)
        placement = Trimming(network).compute_placement(size, halo)
        given = crop(torch.from_numpy(block)[None], self.read_box(size, halo), placement.read)
        with torch.inference_mode():
            return np.ascontiguousarray(run_network(network, placement, given)[0].numpy())

    def move_to(self, device: str) -> None:
        if device == self._device:  # keep the weights that kernels have reordered
            return
        self._device = device
        constants = {name: tensor.to(device) for name, tensor in self._calls.constants.items()}
        calls = Calls(self._calls.calls, self._calls.input, self._calls.output, constants, self._calls.shapes)
        self.network = simplify_network(build_network(calls))
        self.trimming = Trimming(self.network)

    def identity(self) -> str:
        digest = hashlib.sha256(repr((self._calls.calls, self._calls.input, self._calls.output)).encode())
        for name, tensor in sorted(self._calls.constants.items()):
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(raw_bytes(tensor))
        return digest.hexdigest()


def _is_bounded(network: Network) -> bool:
    last = network.nodes[-1].layer
    if isinstance(last, ConvolutionSum):
        return last.activation is not None and last.activation.name in BOUNDED
    return isinstance(last, Pointwise) and last.name in BOUNDED


def _products_per_voxel(network: Network) -> float:
    coarse, cube = network.find_coarseness(), (LARGE, LARGE, LARGE)
    products = (
        node.layer.count_multiply_adds(cube) / prod(coarse[number]) for number, node in network.enumerate_nodes()
    )
    return max(1.0, float(sum(products) / LARGE**3))  # without multiplications it takes time, too


def build_network(calls: Calls) -> Network:
    """Convert calls to layers; raise NotUnderstood for an operator that operators.py doesn't know."""
    maps = Maps(calls)
    for call in calls.calls:
        _add_call(maps, call)
    return _finish(maps, calls.output)


def _add_call(maps: Maps, call: OperatorCall) -> None:
    if not call.operator.startswith("aten.") or call.plain_name not in {*NO_OPERATION, *LAYERS}:
        raise NotUnderstood(f"the network uses {call.operator}, which isn't known here")
    if call.plain_name in NO_OPERATION or cuts_nothing(call):
        if call.arguments.get("train") or call.arguments.get("training"):
            raise BadNetwork("the network was exported in training mode; call .eval() before exporting it")
        maps.add_alias(call.result, next(iter(call.arguments.values()), None), copied=call.plain_name in COPIES)
        return
    layer, used = LAYERS[call.plain_name](maps, call)
    maps.add(layer, used, call)
    if call.plain_name in VIEWS:
        maps.mark_as_view(call, used[0])
    if call.in_place:
        maps.replace_in_place(used[0], call)


def _finish(maps: Maps, output: str) -> Network:
    """Drop the layers after the output. If the output is the input itself, a copy becomes a layer."""
    network = maps.network
    if not maps.is_map(Ref(output)):
        raise BadNetwork("the network's output doesn't depend on its input")
    answer = maps.number(Ref(output))
    copy = GraphNode(Pointwise(network.channels_in, "copy", torch.clone), (0,))
    return Network(network.channels_in, network.nodes[:answer] or [copy]).drop_unused()


@dataclass(frozen=True)
class Placement:
    """The part of each map that one block needs: the first is what must be read, the last is the block itself."""

    boxes: tuple[Box, ...]

    @property
    def read(self) -> Box:
        return self.boxes[0]


class Trimming:
    """Find which part of every map the output of a block needs, and what that costs.

    Spans along an axis don't depend on the other axes, and are cached.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.step = network.step
        self.margin = zyx(self._margin(axis) for axis in AXES)
        self.exact_halo = zyx(self._exact_halo(axis) for axis in AXES)
        self.spans = lru_cache(maxsize=4096)(self._spans)

    def compute_placement(self, size: Zyx, halo: Zyx) -> Placement:
        by_axis = [self.spans(axis, size[axis], halo[axis]) for axis in AXES]
        return Placement(tuple(box_from_spans(spans) for spans in zip(*by_axis, strict=True)))

    def count_multiply_adds(self, size: Zyx, halo: Zyx) -> int:
        boxes = self.compute_placement(size, halo).boxes
        return sum(
            node.layer.count_multiply_adds(boxes[number].shape) for number, node in self.network.enumerate_nodes()
        )

    def peak_bytes(self, size: Zyx, halo: Zyx) -> int:
        """Return the peak memory of all maps together, including the block that was read: the caller keeps it."""
        boxes = self.compute_placement(size, halo).boxes
        last = self.network.find_last_uses()
        live = peak = self.network.channels_in * boxes[0].voxels
        maps = [MemoryUse(0, planar=self.network.channels_in > 1)]
        for number, node in self.network.enumerate_nodes():
            places, given = [boxes[used] for used in node.inputs], [maps[used] for used in node.inputs]
            taken = node.layer.estimate_memory(places, boxes[number], given)
            maps.append(taken)
            live += taken.kept
            peak = max(peak, live + taken.scratch)
            live -= sum(maps[used].kept for used in set(node.inputs) if last[used] == number)
        return peak * FLOAT_BYTES

    def least_halo(self) -> Zyx:
        """Return the voxels that a network without padding loses at each side, in whole steps."""
        return zyx(round_up(self.margin[axis], self.step[axis]) for axis in AXES)

    def _spans(self, axis: int, size: int, halo: int) -> tuple[Span, ...]:
        if halo % self.step[axis]:
            raise BadSetting(f"a halo of {halo} doesn't fit this network: it must be a multiple of {self.step[axis]}")
        given = (-halo, round_up(size, self.step[axis]) + halo)
        gives = self._find_outputs(axis, given)
        wanted = (-self.margin[axis], size - self.margin[axis])
        if not all(map(span_length, gives)):
            raise BadSetting(f"blocks of {span_length(given)} voxels are too small for this network")
        if intersection([gives[-1], wanted]) != wanted:
            raise BadSetting(
                f"a halo of {halo} is too small for this network: it loses {self.margin[axis]} at each side"
            )
        if self.network.sees_block:
            return (*gives[:-1], wanted)
        return tuple(intersection(pair) for pair in zip(self._find_needed(axis, wanted), gives, strict=True))

    def _find_outputs(self, axis: int, given: Span) -> list[Span]:
        spans = [given]
        for node in self.network.nodes:
            spans.append(node.layer.find_output(axis, [spans[used] for used in node.inputs]))
        return spans

    def _find_needed(self, axis: int, wanted: Span) -> list[Span]:
        wants: list[list[Span]] = [[] for _ in range(len(self.network.nodes) + 1)]
        wants[-1].append(wanted)
        for number in range(len(self.network.nodes), 0, -1):
            node = self.network.nodes[number - 1]
            for used, span in zip(node.inputs, node.layer.find_needed(axis, union(wants[number])), strict=True):
                wants[used].append(span)
        return [union(spans) for spans in wants]

    def _exact_halo(self, axis: int) -> int:
        step, margin = self.step[axis], self.margin[axis]
        start, stop = self._find_needed(axis, (-margin, step - margin))[0]
        return round_up(max(-start, stop - step), step)

    def _margin(self, axis: int) -> int:
        """Return how many voxels the output is shorter than the input, at each side."""
        size = _large_length(self.step[axis])
        answers = [span_length(self._find_outputs(axis, (0, size + more))[-1]) for more in (0, self.step[axis])]
        lost = size - answers[0]
        if answers[1] - answers[0] != self.step[axis] or lost < 0 or lost % 2:
            raise BadNetwork(
                f"the network gives {answers[0]} voxels for {size} along axis {'zyx'[axis]}; "
                "it must give one for each, or the same number less at both ends"
            )
        return lost // 2


def _large_length(step: int) -> int:
    """Return a multiple of the step that is larger than what any network without padding loses."""
    return step * max(1, 8192 // step)


def run_network(network: Network, placement: Placement, block: Tensor) -> Tensor:
    """Run a network on one block layer by layer, and free each map after its last use.

    `block` has the voxels of `placement.read`, with a batch dimension of one.
    """
    maps: dict[int, Tensor] = {0: block}
    del block
    last = network.find_last_uses()
    for number, node in network.enumerate_nodes():
        inputs = [maps[used] for used in node.inputs]
        places = [placement.boxes[used] for used in node.inputs]
        for used in set(node.inputs):
            if last[used] == number:
                del maps[used]
        maps[number] = node.layer.run(inputs, places, placement.boxes[number])
        del inputs
    return maps[len(network.nodes)]
