"""A network, its optimizer and its loader, wired together: what every step checks, counts and releases."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rigdyno.engines.dp import heap
from rigdyno.engines.dp.bounds import Adaptive, Bound, check_positive
from rigdyno.engines.dp.clipping import Clipping
from rigdyno.engines.dp.errors import BadSetting, Unprotected
from rigdyno.engines.dp.kernels import usable
from rigdyno.engines.dp.ledger import Ledger
from rigdyno.engines.dp.noise import Noise
from rigdyno.engines.dp.ranks import Ranks
from rigdyno.engines.dp.sampling import GivenBatches, PoissonLoader
from rigdyno.engines.dp.shuffled import ShuffledLoader
from rigdyno.engines.dp.tray import Slot
from rigdyno.engines.dp.wiring import Wiring

Batches = PoissonLoader | ShuffledLoader | GivenBatches
ANEW = "call engine.release() and make_private again, which goes on with the same ledger"


class PrivateTraining:
    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        loader: Batches,
        ledger: Ledger,
        noise: Noise,
        noise_multiplier: float,
        bound: Bound,
        kernels: bool | None = None,
        batch_first: bool = True,
        expanded: bool = False,
    ) -> None:
        self._ledger, self._loader, self._tray, self._ranks = ledger, loader, loader.tray, Ranks.here()
        self._noise, self._noise_multiplier, self._bound = noise, noise_multiplier, bound
        bound.noise_std(noise_multiplier)  # raises where there is none
        named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        able = usable(kernels, named[0][1].device)
        self.clipping = Clipping(named, bound, able, self._ranks.count, self._tray)
        self._inventory = Inventory(network, self.clipping)
        self._wiring = Wiring(network, self.clipping, batch_first, expanded)
        self._tray.skipped = self._count
        self._steps_open, self._released_at = 0, -1
        self._paid_for = math.inf
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        self._noticed = [ZeroGrad(owner, self.clipping.forget) for owner in (optimizer, network)]
        heap.keep()

    @property
    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        """From the next step on, which is counted with it."""
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
        if type(self._bound) is not Bound:
            raise BadSetting("the norm of per-layer clipping is given once, and an adaptive one moves by itself")
        if self.clipping.under_way:
            raise Unprotected("max_grad_norm can change between a step and the next backward, not within a sum")
        self._bound.norm = value

    def undo(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for noticed in self._noticed:
            noticed.undo()
        self._tray.skipped = None
        self.clipping.forget()
        self._wiring.undo()
        self.clipping.undo()
        heap.let_go()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The optimizer sees the noisy mean alone, and only after it was counted."""
        if self._steps_open and self._released_at == self.clipping.changes:
            # An optimizer's step that calls another's, or one that broke off: what it sees is released already.
            self._inventory.check(optimizer)
            self.clipping.refuse_arrived()
            self._steps_open += 1
            return None
        given = self._run_closure(optimizer, args, kwargs)
        self._inventory.check(optimizer)
        self.clipping.refuse_unfit()
        self._release()
        self._steps_open, self._released_at = 1, self.clipping.changes
        return given

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps_open = max(0, self._steps_open - 1)

    def _run_closure(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Once, before the noise; the optimizer gets its answer, and an error if it asks again."""
        values = [*args, *kwargs.values()]
        closures = [value for value in values if callable(value)]
        if any(value is not None and value is not optimizer and value not in closures for value in values):
            raise Unprotected("step() got more than a closure, and what it would do with it isn't known; call step()")
        if not closures:
            return None
        with torch.enable_grad():
            answer = Answer(closures[0]())
        swapped = [answer if value in closures else value for value in args]
        return tuple(swapped), {name: answer if value in closures else value for name, value in kwargs.items()}

    def _release(self) -> None:
        slot = self._tray.next_up()
        self._count(slot)
        self._tray.consume(slot)
        flat = self.clipping.take()
        factor = 1.0 / (self._loader.expected_batch if slot is None else slot.expected_batch)
        if self._ranks.first:
            self._noise.release_(flat, self._bound.noise_std(self._noise_multiplier), factor)
        else:
            flat.mul_(factor)
        self._ranks.sum_(flat)
        if isinstance(self._bound, Adaptive):
            self._move(self._bound, 1.0 / factor)
        self.clipping.gradients.publish()

    def _move(self, bound: Adaptive, expected_batch: float) -> None:
        counts = bound.take_counts(self.clipping.gradients.flat)
        if self._ranks.first:
            self._noise.release_(counts, bound.count_std, 1.0)
        self._ranks.sum_(counts)
        bound.move(float(counts), expected_batch)

    def _count(self, slot: Slot | None) -> None:
        """With less noise than what was paid for, a batch that another one pays for counts by itself."""
        if slot is None or slot.counts or self._noise_multiplier < self._paid_for:
            self._paid_for = self._noise_multiplier
            self._ledger.spend(self._noise_multiplier, self._loader.sample_rate if slot is None else slot.sample_rate)


class Answer:
    """Stands for a closure that was run: an optimizer that asks twice wants the gradient at another place."""

    def __init__(self, loss: Any) -> None:
        self._loss, self._asked = loss, False

    def __call__(self) -> Any:
        if self._asked:
            raise Unprotected(
                "this optimizer evaluates its closure several times a step, and each time would release another "
                "gradient of the same batch; take one that evaluates it once, such as SGD or Adam"
            )
        self._asked = True
        return self._loss


class ZeroGrad:
    """Notices an optimizer's or a module's zero_grad(): gradients that are hidden can't be seen to go."""

    def __init__(self, owner: Any, forget: Callable[[], None]) -> None:
        self._owner, self._forget = owner, forget
        owner.zero_grad = self

    def undo(self) -> None:
        vars(self._owner).pop("zero_grad", None)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        type(self._owner).zero_grad(self._owner, *args, **kwargs)
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of a network is no longer this one: it has its own class's."""
        copy = memo[id(self._owner)]
        return types.MethodType(type(copy).zero_grad, copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, "zero_grad")


class Inventory:
    """What the network was when it was made private. Whatever trains must be what is clipped and given noise."""

    def __init__(self, network: nn.Module, clipping: Clipping) -> None:
        self._gradients = clipping.gradients
        self._network = network
        self._frozen = [parameter for parameter in network.parameters() if parameter not in self._gradients]
        kept = [held for module in network.modules() for held in (module._modules, module._parameters)]
        self._parts = [(held, list(held.values())) for held in kept if held]
        self._empty = [held for held in kept if not held]

    def check(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in self._gradients and (parameter.requires_grad or parameter.grad is not None):
                    raise Unprotected(f"{self._name(parameter)} began to train after make_private: {ANEW}")
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise Unprotected(f"{self._name(parameter)} began to train after make_private: {ANEW}")
        if self._changed():
            raise Unprotected(f"modules or parameters of the network were added or replaced: {ANEW}")

    def _changed(self) -> bool:
        for held, before in self._parts:
            if len(held) != len(before) or not all(map(is_, held.values(), before)):
                return True
        return any(self._empty)

    def _name(self, wanted: nn.Parameter) -> str:
        named = self._network.named_parameters()
        return next((name for name, parameter in named if parameter is wanted), "a parameter of the optimizer")
