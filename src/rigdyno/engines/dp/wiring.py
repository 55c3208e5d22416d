"""Puts a rule in the place of every layer's forward, and takes it out again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from rigdyno.engines.dp.clipping import Clipping
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.examine import refuse_mixing
from rigdyno.engines.dp.layers import Layer, rules
from rigdyno.engines.dp.layers._generic import Generic
from rigdyno.engines.dp.layers.group_norm import ACTIVATIONS
from rigdyno.engines.dp.layers.group_norm import Rule as GroupNorm


class Wiring:
    """Of one network; the network stays the same object, with the same names in its state dict."""

    def __init__(self, network: nn.Module, clipping: Clipping) -> None:
        self.layers = list(_layers(network, clipping))
        if clipping.kernels:
            self.layers += _taken_over(network, self.layers)
        for layer in self.layers:
            layer.module.forward = layer.forward
        if clipping.kernels:
            _load(self.layers, clipping)
        self._hooks: list[RemovableHandle] = [
            network.register_forward_pre_hook(_Enter(clipping), with_kwargs=True),
            network.register_forward_hook(_Leave(clipping), always_call=True),
        ]

    def undo(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for layer in self.layers:
            del layer.module.forward


class Silent(Layer):
    """An activation that the layer before it has computed already."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def _load(layers: list[Layer], clipping: Clipping) -> None:
    from rigdyno.engines.dp.kernels.loading import load

    always = ("norms", "noise") if clipping.private else ()
    load([*always, *(name for layer in layers for name in layer.kernels())])


def _taken_over(network: nn.Module, layers: list[Layer]) -> list[Layer]:
    """Activations right after a GroupNorm in an nn.Sequential, where nobody else uses or watches them."""
    by_module = {id(layer.module): layer for layer in layers}
    places = Counter(id(module) for _, module in network.named_modules(remove_duplicate=False))
    found: list[Layer] = []
    for chain in network.modules():
        if isinstance(chain, nn.Sequential) and type(chain).forward is nn.Sequential.forward:
            for norm, activation in itertools.pairwise(chain):
                rule = by_module.get(id(norm))
                alone = places[id(norm)] == places[id(activation)] == 1
                if isinstance(rule, GroupNorm) and alone and _can_be_silent(activation):
                    rule.take_over(type(activation))
                    found.append(Silent(activation, rule.name, rule.clipping))
    return found


def _can_be_silent(activation: nn.Module) -> bool:
    return type(activation) in ACTIVATIONS and not activation._forward_hooks and not activation._forward_pre_hooks


class _Enter:
    """Begins a pass and tells how many samples come, at the network's door; the first that come are looked at."""

    def __init__(self, clipping: Clipping) -> None:
        self._clipping = clipping
        self._looked = False

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._clipping.enter()
        if not torch.is_grad_enabled():
            return
        samples = samples_of((args, kwargs))
        if samples > 1 and not self._looked and self._clipping.private:
            with torch.no_grad():  # a checkpoint around the network counts what is kept for backward
                refuse_mixing(network, args, kwargs, samples)
            self._looked = True
        self._clipping.join(samples, tree_leaves((args, kwargs)))


class _Leave:
    """Ends a pass on its way there, whether it got through or not."""

    def __init__(self, clipping: Clipping) -> None:
        self._clipping = clipping

    def __call__(self, network: nn.Module, args: tuple[Any, ...], answer: Any) -> None:
        self._clipping.leave(tree_leaves(answer))


def samples_of(inputs: Any) -> int:
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.dim():
            return len(leaf)
    raise BadSetting("the network was called without a tensor, so the number of samples isn't known")


def _layers(network: nn.Module, clipping: Clipping, name: str = "") -> Iterator[Layer]:
    """A module that nothing is trained of stays as it is; one that a rule takes is taken with its children."""
    trained = [parameter for parameter in network.parameters() if parameter in clipping.gradients]
    if not trained:
        return
    rule = rules().get(type(network))
    own = [parameter for parameter in network.parameters(recurse=False) if parameter in clipping.gradients]
    if rule is not None and rule.can(network):
        yield rule(network, name, clipping)
    elif own:
        yield Generic(network, name, clipping)
    else:
        for child_name, child in network.named_children():
            yield from _layers(child, clipping, f"{name}.{child_name}".lstrip("."))
