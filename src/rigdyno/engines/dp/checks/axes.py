"""Which axis of a layer's inputs and answers is that of the samples: found by running with another number of samples.

Never by a length: a sequence, a mask or a table may be as long as the batch is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rigdyno.engines.dp.checks.probing import Inputs, Probe
from rigdyno.engines.dp.errors import BadSetting, MixesSamples, PrivacyError

Shape = tuple[int, ...]
Signature = tuple[int, ...]  # the number of axes of each tensor of a call
UNCLEAR = -1


@dataclass(frozen=True)
class Axes:
    """Of each tensor of a call, and of each tensor of its answer; None: it carries no samples."""

    given: tuple[int | None, ...]
    answered: tuple[int | None, ...]


@dataclass(frozen=True)
class Call:
    """The shapes of one call of one module."""

    module: nn.Module
    given: tuple[Shape, ...]
    answered: tuple[Shape, ...]


def signature(tensors: Sequence[Tensor]) -> Signature:
    return tuple(tensor.dim() for tensor in tensors)


def tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


Found = dict[nn.Module, dict[Signature, Axes]]


def establish(probe: Probe, inputs: Inputs, modules: Sequence[nn.Module]) -> Found:
    """By two runs."""
    other = _another_number(inputs.samples)
    here = _calls(probe, inputs, range(inputs.samples), modules)
    try:
        there = _calls(probe, inputs, other, modules)
    except (RuntimeError, ValueError, IndexError, AssertionError) as reason:
        if isinstance(reason, PrivacyError):
            raise
        raise BadSetting(
            "the network can't be run with another number of samples, so it isn't known which of its inputs carry them "
            f"({str(reason).splitlines()[0][:160]}); pass the samples first, and don't fix the size of a batch"
        ) from None
    return _compared(here, there, inputs.samples, len(other))


def _another_number(samples: int) -> list[int]:
    return list(range(samples - 1)) if samples > 2 else [*range(samples), 0]


def _calls(probe: Probe, inputs: Inputs, rows: Sequence[int], modules: Sequence[nn.Module]) -> list[Call]:
    found: list[Call] = []

    def hear(module: nn.Module, args: Any, kwargs: Any, answer: Any) -> None:
        found.append(Call(module, _shapes((args, kwargs)), _shapes(answer)))

    def work() -> None:
        for module in modules:
            module.register_forward_hook(hear, with_kwargs=True, prepend=True)
        args, kwargs = inputs.picked(list(rows))
        with torch.no_grad():
            probe.network(*args, **kwargs)

    probe.run(work)
    return found


def _shapes(values: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors_in(values))


def _compared(here: list[Call], there: list[Call], samples: int, others: int) -> Found:
    found: Found = {}
    for module in {call.module for call in here}:
        mine = [call for call in here if call.module is module]
        its = [call for call in there if call.module is module]
        for one, other in zip(mine, its, strict=False):
            axes = Axes(
                _axes(one.given, other.given, samples, others), _axes(one.answered, other.answered, samples, others)
            )
            known = found.setdefault(module, {}).setdefault(tuple(map(len, one.given)), axes)
            if known != axes:
                raise MixesSamples(
                    f"a {type(module).__name__} is called with the samples along different axes: make it two modules, "
                    "or bring the samples to the first axis"
                )
    return found


def _axes(here: tuple[Shape, ...], there: tuple[Shape, ...], samples: int, others: int) -> tuple[int | None, ...]:
    if len(here) != len(there):
        return (UNCLEAR,) * len(here)
    return tuple(_axis(one, other, samples, others) for one, other in zip(here, there, strict=True))


def _axis(here: Shape, there: Shape, samples: int, others: int) -> int | None:
    if len(here) != len(there):
        return UNCLEAR
    changed = [axis for axis, (one, other) in enumerate(zip(here, there, strict=True)) if one != other]
    if not changed:
        return None
    fits = len(changed) == 1 and here[changed[0]] * others == there[changed[0]] * samples
    return changed[0] if fits else UNCLEAR


def refuse_axis(layer: str, axis: int | None) -> None:
    if axis is None:
        raise MixesSamples(
            f"{layer} is given something that is the same for all samples, so that its gradient can't be told apart by "
            "sample: give it one for each sample, such as positions.expand(batch, -1)"
        )
    if axis == UNCLEAR or axis > 1:
        raise MixesSamples(f"{layer}: the samples aren't along the first axis of its input; bring them there")
