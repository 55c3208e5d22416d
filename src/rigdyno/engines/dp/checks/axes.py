"""Find the sample axis of each layer's inputs and outputs, by running the network with two different batch sizes.

A length alone doesn't identify it: a sequence, a mask or a table may be as long as the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rigdyno.engines.dp.checks.probing import Inputs, NetworkProbe
from rigdyno.engines.dp.errors import BadSetting, MixesSamples, PrivacyError

Shape = tuple[int, ...]

Signature = tuple[int, ...]  # number of axes of each tensor of a call

UNCLEAR = -1


@dataclass(frozen=True)
class Axes:
    """The sample axis of each input and output tensor of a call; None if a tensor carries no samples."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


@dataclass(frozen=True)
class CallShapes:
    """The shapes of one call of one module."""

    module: nn.Module
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


def signature(tensors: Sequence[Tensor]) -> Signature:
    return tuple(tensor.dim() for tensor in tensors)


def tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


Found = dict[nn.Module, dict[Signature, Axes]]


def find_axes(probe: NetworkProbe, inputs: Inputs, modules: Sequence[nn.Module]) -> Found:
    """Find the sample axes of the modules' calls by two runs with different numbers of samples."""
    other = _choose_other_rows(inputs.samples)
    here = _record_calls(probe, inputs, range(inputs.samples), modules)
    try:
        there = _record_calls(probe, inputs, other, modules)
    except (RuntimeError, ValueError, IndexError, AssertionError) as reason:
        if isinstance(reason, PrivacyError):
            raise
        raise BadSetting(
            "the network can't be run with another number of samples, so it isn't known which of its inputs carry them "
            f"({str(reason).splitlines()[0][:160]}); pass the samples first, and don't fix the batch size"
        ) from None
    return _compare_calls(here, there, inputs.samples, len(other))


def _choose_other_rows(samples: int) -> list[int]:
    return list(range(samples - 1)) if samples > 2 else [*range(samples), 0]


def _record_calls(
    probe: NetworkProbe, inputs: Inputs, rows: Sequence[int], modules: Sequence[nn.Module]
) -> list[CallShapes]:
    found: list[CallShapes] = []

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found.append(CallShapes(module, _list_shapes((args, kwargs)), _list_shapes(output)))

    def run_network() -> None:
        for module in modules:
            module.register_forward_hook(record, with_kwargs=True, prepend=True)
        args, kwargs = inputs.select(list(rows))
        with torch.no_grad():
            probe.network(*args, **kwargs)

    probe.run(run_network)
    return found


def _list_shapes(values: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors_in(values))


def _compare_calls(here: list[CallShapes], there: list[CallShapes], samples: int, others: int) -> Found:
    found: Found = {}
    for module in {call.module for call in here}:
        mine = [call for call in here if call.module is module]
        its = [call for call in there if call.module is module]
        for one, other in zip(mine, its, strict=False):
            axes = Axes(
                _find_axes(one.inputs, other.inputs, samples, others),
                _find_axes(one.outputs, other.outputs, samples, others),
            )
            known = found.setdefault(module, {}).setdefault(tuple(map(len, one.inputs)), axes)
            if known != axes:
                raise MixesSamples(
                    f"a {type(module).__name__} is called with the samples along different axes: use two modules, "
                    "or move the samples to the first axis"
                )
    return found


def _find_axes(here: tuple[Shape, ...], there: tuple[Shape, ...], samples: int, others: int) -> tuple[int | None, ...]:
    if len(here) != len(there):
        return (UNCLEAR,) * len(here)
    return tuple(_find_axis(one, other, samples, others) for one, other in zip(here, there, strict=True))


def _find_axis(here: Shape, there: Shape, samples: int, others: int) -> int | None:
    if len(here) != len(there):
        return UNCLEAR
    changed = [axis for axis, (one, other) in enumerate(zip(here, there, strict=True)) if one != other]
    if not changed:
        return None
    fits = len(changed) == 1 and here[changed[0]] * others == there[changed[0]] * samples
    return changed[0] if fits else UNCLEAR


def check_axis(layer: str, axis: int | None) -> None:
    """Raise MixesSamples unless the samples are along the first or the second axis."""
    if axis is None:
        raise MixesSamples(
            f"{layer} gets an input that is the same for all samples, so its gradient can't be split by sample: pass "
            "one input for each sample, such as positions.expand(batch, -1)"
        )
    if axis == UNCLEAR or axis > 1:
        raise MixesSamples(f"{layer}: the samples aren't along the first axis of its input; move them there")
