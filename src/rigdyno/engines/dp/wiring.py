"""Puts a rule in the place of every layer's forward, and takes it out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from rigdyno.engines.dp.checks.door import Door
from rigdyno.engines.dp.clipping import Clipping
from rigdyno.engines.dp.forwards import own_forward
from rigdyno.engines.dp.layers import Layer, rules
from rigdyno.engines.dp.layers._expanded import EXPANDED
from rigdyno.engines.dp.layers._generic import Generic
from rigdyno.engines.dp.layers._pooling import Pool
from rigdyno.engines.dp.layers.group_norm import ACTIVATIONS, Chain
from rigdyno.engines.dp.layers.group_norm import Rule as GroupNorm


class Wiring:
    """Of one network; the network stays the same object, with the same names in its state dict."""

    def __init__(
        self, network: nn.Module, clipping: Clipping, batch_first: bool = True, expanded: bool = False
    ) -> None:
        layers = list(_layers(network, clipping, EXPANDED if expanded else {}))
        chains = list(_chains(network, layers, clipping)) if clipping.kernels else []
        pools = list(_pools(network, layers, clipping)) if clipping.kernels else []
        self._taken = [*layers, *chains, *pools]
        for layer in self._taken:
            layer.take()
        if clipping.kernels:
            _load(layers, clipping)
        fused = [module for chain in chains for module in chain.fused()]
        self._door = Door(network, clipping, layers, batch_first, fused)

    def undo(self) -> None:
        self._door.undo()
        for layer in self._taken:
            layer.give_back()


def _load(layers: list[Layer], clipping: Clipping) -> None:
    from rigdyno.engines.dp.kernels.loading import load

    always = ("norms", "noise") if clipping.private else ()
    load([*always, *(name for layer in layers for name in layer.kernels())])


def _chains(network: nn.Module, layers: list[Layer], clipping: Clipping) -> Iterator[Chain]:
    """Every nn.Sequential in which an activation follows a GroupNorm."""
    norms = {id(layer.module): layer for layer in layers if isinstance(layer, GroupNorm)}
    for name, chain in network.named_modules():
        plain = isinstance(chain, nn.Sequential) and type(chain).forward is nn.Sequential.forward
        if plain and own_forward(chain) is None:
            pairs = zip(chain, [*chain][1:], strict=False)
            mine = [norms[id(one)] for one, after in pairs if id(one) in norms and type(after) in ACTIVATIONS]
            if mine:
                yield Chain(chain, name, clipping, mine)


def _pools(network: nn.Module, layers: list[Layer], clipping: Clipping) -> Iterator[Layer]:
    """Those that no layer takes along."""
    inside = {id(part) for layer in layers for part in layer.module.modules()}
    for name, module in network.named_modules():
        if Pool.can(module) and own_forward(module) is None and id(module) not in inside:
            yield Pool(module, name, clipping)


def _layers(
    network: nn.Module, clipping: Clipping, instead: Mapping[type[Layer], type[Layer]], name: str = ""
) -> Iterator[Layer]:
    """A module that nothing is trained of stays as it is; one that a rule takes is taken with its children. `instead`:
    what stands in for some rules."""
    if not any(parameter in clipping.gradients for parameter in network.parameters()):
        return
    rule = rule_for(network)
    own = [parameter for parameter in network.parameters(recurse=False) if parameter in clipping.gradients]
    if rule is not None:
        yield instead.get(rule, rule)(network, name, clipping)
    elif own or is_parametrized(network) or (own_forward(network) is not None and rules().get(type(network))):
        yield Generic(network, name, clipping)
    else:
        for child_name, child in network.named_children():
            yield from _layers(child, clipping, instead, f"{name}.{child_name}".lstrip("."))


def rule_for(module: nn.Module) -> type[Layer] | None:
    """By its class, or by the one whose forward it inherits; only where its parameters are its own, and no others."""
    kind = next((kind for kind in type(module).__mro__ if kind in rules()), None)
    if kind is None or type(module).forward is not kind.forward or own_forward(module) is not None:
        return None
    rule = rules()[kind]
    held = module._parameters.keys()
    known = held <= rule.parameters and all(name in held for name in rule.parameters if hasattr(module, name))
    return rule if known and not is_parametrized(module) and rule.can(module) else None
