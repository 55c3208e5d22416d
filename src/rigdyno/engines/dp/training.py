"""Wire a network, its optimizer and its loader together for private training.

PrivateTraining checks, counts and releases every step. Wiring replaces the forward of every layer by that of its rule.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer

from rigdyno.engines.dp.batches.pending import PendingBatch
from rigdyno.engines.dp.batches.sampling import GivenBatches, PoissonLoader
from rigdyno.engines.dp.batches.shuffled import ShuffledLoader
from rigdyno.engines.dp.checks.forwards import find_user_forward
from rigdyno.engines.dp.checks.input_guard import InputGuard
from rigdyno.engines.dp.errors import BadSetting, Unprotected
from rigdyno.engines.dp.gradients import memory
from rigdyno.engines.dp.gradients.clipping import Clipping
from rigdyno.engines.dp.gradients.norm_bounds import Adaptive, ClippingNorm, check_positive
from rigdyno.engines.dp.kernels import should_use_kernels
from rigdyno.engines.dp.layers import PrivateLayer, rules
from rigdyno.engines.dp.layers.common.expanded import EXPANDED
from rigdyno.engines.dp.layers.common.generic import Generic
from rigdyno.engines.dp.layers.common.pooling import Pool
from rigdyno.engines.dp.layers.group_norm import ACTIVATIONS, Chain
from rigdyno.engines.dp.layers.group_norm import Rule as GroupNorm
from rigdyno.engines.dp.ledger import Ledger
from rigdyno.engines.dp.noise import Noise
from rigdyno.engines.dp.seeds import RankGroup

Batches = PoissonLoader | ShuffledLoader | GivenBatches

RESTART_ADVICE = "call engine.release() and make_private again, which continues with the same ledger"


class Wiring:
    """Replaces the forwards of a network's layers. The network stays the same object, with the same state dict keys."""

    def __init__(
        self, network: nn.Module, clipping: Clipping, batch_first: bool = True, expanded: bool = False
    ) -> None:
        layers = list(_find_layers(network, clipping, EXPANDED if expanded else {}))
        chains = list(_find_chains(network, layers, clipping)) if clipping.kernels else []
        pools = list(_find_pools(network, layers, clipping)) if clipping.kernels else []
        self._installed = [*layers, *chains, *pools]
        for layer in self._installed:
            layer.install()
        if clipping.kernels:
            _load_kernels(layers, clipping)
        fused = [module for chain in chains for module in chain.fused_modules()]
        self._input_guard = InputGuard(network, clipping, layers, batch_first, fused)

    def undo(self) -> None:
        self._input_guard.undo()
        for layer in self._installed:
            layer.uninstall()


def _load_kernels(layers: list[PrivateLayer], clipping: Clipping) -> None:
    from rigdyno.engines.dp.kernels.loading import load_kernels

    always = ("norms", "noise") if clipping.private else ()
    load_kernels([*always, *(name for layer in layers for name in layer.kernels())])


def _find_chains(network: nn.Module, layers: list[PrivateLayer], clipping: Clipping) -> Iterator[Chain]:
    """Find every nn.Sequential in which an activation follows a GroupNorm."""
    norms = {id(layer.module): layer for layer in layers if isinstance(layer, GroupNorm)}
    for name, chain in network.named_modules():
        plain = isinstance(chain, nn.Sequential) and type(chain).forward is nn.Sequential.forward
        if plain and find_user_forward(chain) is None:
            pairs = zip(chain, [*chain][1:], strict=False)
            mine = [norms[id(one)] for one, after in pairs if id(one) in norms and type(after) in ACTIVATIONS]
            if mine:
                yield Chain(chain, name, clipping, mine)


def _find_pools(network: nn.Module, layers: list[PrivateLayer], clipping: Clipping) -> Iterator[PrivateLayer]:
    """Find the pooling modules that aren't inside another private layer."""
    inside = {id(part) for layer in layers for part in layer.module.modules()}
    for name, module in network.named_modules():
        if Pool.supports(module) and find_user_forward(module) is None and id(module) not in inside:
            yield Pool(module, name, clipping)


def _find_layers(
    network: nn.Module, clipping: Clipping, instead: Mapping[type[PrivateLayer], type[PrivateLayer]], name: str = ""
) -> Iterator[PrivateLayer]:
    """Find the modules to run by a rule, from the outside inwards; a rule runs a module with all its children.

    Modules without trained parameters are left alone. `instead` maps rules to those used in their place.
    """
    if not any(parameter in clipping.gradients for parameter in network.parameters()):
        return
    rule = find_rule(network)
    own = [parameter for parameter in network.parameters(recurse=False) if parameter in clipping.gradients]
    if rule is not None:
        yield instead.get(rule, rule)(network, name, clipping)
    elif own or is_parametrized(network) or (find_user_forward(network) is not None and rules().get(type(network))):
        yield Generic(network, name, clipping)
    else:
        for child_name, child in network.named_children():
            yield from _find_layers(child, clipping, instead, f"{name}.{child_name}".lstrip("."))


def find_rule(module: nn.Module) -> type[PrivateLayer] | None:
    """Return the rule for the module's class, or for the class whose forward it inherits; None if there is none.

    The module must have the parameters that the rule knows, no others, and no parametrization.
    """
    kind = next((kind for kind in type(module).__mro__ if kind in rules()), None)
    if kind is None or type(module).forward is not kind.forward or find_user_forward(module) is not None:
        return None
    rule = rules()[kind]
    held = module._parameters.keys()
    known = held <= rule.parameters and all(name in held for name in rule.parameters if hasattr(module, name))
    return rule if known and not is_parametrized(module) and rule.supports(module) else None


class PrivateTraining:
    """One private training: hooks into the optimizer's step, and releases the noisy mean gradient there."""

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        loader: Batches,
        ledger: Ledger,
        noise: Noise,
        noise_multiplier: float,
        bound: ClippingNorm,
        kernels: bool | None = None,
        batch_first: bool = True,
        expanded: bool = False,
    ) -> None:
        self._ledger, self._loader, self._pending, self._ranks = ledger, loader, loader.pending, RankGroup.current()
        self._noise, self._noise_multiplier, self._bound = noise, noise_multiplier, bound
        bound.noise_std(noise_multiplier)  # raises BadSetting if the noise multiplier is impossible
        named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        use_kernels = should_use_kernels(kernels, named[0][1].device)
        self.clipping = Clipping(named, bound, use_kernels, self._ranks.count, self._pending)
        self._inventory = Inventory(network, self.clipping)
        self._wiring = Wiring(network, self.clipping, batch_first, expanded)
        self._pending.on_skip = self._count_step
        self._steps_open, self._released_at = 0, -1
        self._counted_noise = math.inf
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        self._zero_grads = [ZeroGrad(owner, self.clipping.discard_sum) for owner in (optimizer, network)]
        memory.keep_freed_memory()

    @property
    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        """Set the noise multiplier from the next step on."""
        check_positive("noise_multiplier", value)
        self._bound.noise_std(value)
        self._noise_multiplier = value

    @property
    def max_grad_norm(self) -> float:
        assert self._bound.norm is not None
        return self._bound.norm

    @max_grad_norm.setter
    def max_grad_norm(self, value: float) -> None:
        check_positive("max_grad_norm", value)
        if type(self._bound) is not ClippingNorm:
            raise BadSetting(
                "max_grad_norm can be set with flat clipping only, not with per-layer or adaptive clipping"
            )
        if self.clipping.has_unreleased_sum:
            raise Unprotected("max_grad_norm can change between a step and the next backward, not within a sum")
        self._bound.norm = value

    def undo(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for zero_grad in self._zero_grads:
            zero_grad.undo()
        self._pending.on_skip = None
        self.clipping.discard_sum()
        self._wiring.undo()
        self.clipping.undo()
        memory.return_freed_memory()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Count the step and replace the gradients by their noisy mean, before the optimizer sees them."""
        if self._steps_open and self._released_at == self.clipping.changes:
            # A step that calls another optimizer's step, or follows one that failed: these gradients are released.
            self._inventory.check(optimizer)
            self.clipping.check_no_stray_gradient()
            self._steps_open += 1
            return None
        given = self._run_closure(optimizer, args, kwargs)
        self._inventory.check(optimizer)
        self.clipping.check_before_step()
        self._release()
        self._steps_open, self._released_at = 1, self.clipping.changes
        return given

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps_open = max(0, self._steps_open - 1)

    def _run_closure(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the closure once, before the noise. The optimizer gets its result, and an error if it calls it again."""
        values = [*args, *kwargs.values()]
        closures = [value for value in values if callable(value)]
        if any(value is not None and value is not optimizer and value not in closures for value in values):
            raise Unprotected("step() got more than a closure, and it isn't known what that would do: call step()")
        if not closures:
            return None
        with torch.enable_grad():
            result = ClosureResult(closures[0]())
        swapped = [result if value in closures else value for value in args]
        return tuple(swapped), {name: result if value in closures else value for name, value in kwargs.items()}

    def _release(self) -> None:
        batch = self._pending.next_batch()
        self._count_step(batch)
        self._pending.consume(batch)
        flat = self.clipping.take_sum()
        factor = 1.0 / (self._loader.expected_batch if batch is None else batch.expected_batch)
        if self._ranks.is_first:
            self._noise.release_(flat, self._bound.noise_std(self._noise_multiplier), factor)
        else:
            flat.mul_(factor)
        self._ranks.sum_(flat)
        if isinstance(self._bound, Adaptive):
            self._adapt_norm(self._bound, 1.0 / factor)
        self.clipping.gradients.publish()

    def _adapt_norm(self, bound: Adaptive, expected_batch: float) -> None:
        counts = bound.take_counts(self.clipping.gradients.flat)
        if self._ranks.is_first:
            self._noise.release_(counts, bound.count_std, 1.0)
        self._ranks.sum_(counts)
        bound.update_norm(float(counts), expected_batch)

    def _count_step(self, batch: PendingBatch | None) -> None:
        """Count a step in the ledger.

        A batch that an earlier batch has paid for isn't counted, unless the noise has fallen since.
        """
        if batch is None or batch.counts or self._noise_multiplier < self._counted_noise:
            self._counted_noise = self._noise_multiplier
            self._ledger.spend(self._noise_multiplier, self._loader.sample_rate if batch is None else batch.sample_rate)


class ClosureResult:
    """Stands for a closure that was run. A second call is refused: it would need the gradient at other parameters."""

    def __init__(self, loss: Any) -> None:
        self._loss, self._asked = loss, False

    def __call__(self) -> Any:
        if self._asked:
            raise Unprotected(
                "this optimizer evaluates its closure several times per step, and each time would release another "
                "gradient of the same batch; use one that evaluates it once, such as SGD or Adam"
            )
        self._asked = True
        return self._loss


class ZeroGrad:
    """Replaces zero_grad() of an optimizer or a module, to discard the hidden sum of gradients as well."""

    def __init__(self, owner: Any, discard: Callable[[], None]) -> None:
        self._owner, self._discard = owner, discard
        owner.zero_grad = self

    def undo(self) -> None:
        vars(self._owner).pop("zero_grad", None)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        type(self._owner).zero_grad(self._owner, *args, **kwargs)
        self._discard()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Give a copy of the network the zero_grad() of its class."""
        copy = memo[id(self._owner)]
        return types.MethodType(type(copy).zero_grad, copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, "zero_grad")


class Inventory:
    """The network's modules and parameters when it was made private: only these are clipped and get noise."""

    def __init__(self, network: nn.Module, clipping: Clipping) -> None:
        self._gradients = clipping.gradients
        self._network = network
        self._frozen = [parameter for parameter in network.parameters() if parameter not in self._gradients]
        kept = [held for module in network.modules() for held in (module._modules, module._parameters)]
        self._parts = [(held, list(held.values())) for held in kept if held]
        self._empty = [held for held in kept if not held]

    def check(self, optimizer: Optimizer) -> None:
        """Raise Unprotected if anything else would be trained."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in self._gradients and (parameter.requires_grad or parameter.grad is not None):
                    raise Unprotected(
                        f"{self._find_name(parameter)} began to train after make_private: {RESTART_ADVICE}"
                    )
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise Unprotected(f"{self._find_name(parameter)} began to train after make_private: {RESTART_ADVICE}")
        if self._has_changed():
            raise Unprotected(f"modules or parameters of the network were added or replaced: {RESTART_ADVICE}")

    def _has_changed(self) -> bool:
        for held, before in self._parts:
            if len(held) != len(before) or not all(map(is_, held.values(), before)):
                return True
        return any(self._empty)

    def _find_name(self, wanted: nn.Parameter) -> str:
        named = self._network.named_parameters()
        return next((name for name, parameter in named if parameter is wanted), "a parameter of the optimizer")
