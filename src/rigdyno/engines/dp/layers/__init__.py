"""How each kind of layer tells its per-sample gradients: one file a rule, found by itself.

A rule names the modules that it `handles` and takes over their `forward`. What no rule handles goes the generic way.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from rigdyno.engines.dp.checks.axes import Axes, Signature, refuse_axis, signature, tensors_in
from rigdyno.engines.dp.clipping import Clipping
from rigdyno.engines.dp.contributions import Contribution, PerSample
from rigdyno.engines.dp.errors import MixesSamples, Unprotected
from rigdyno.engines.dp.forwards import Forward
from rigdyno.engines.dp.passes import Pass

if TYPE_CHECKING:
    from rigdyno.engines.dp.checks.door import Door

# A weight and its bias. In a tuple, so that autograd doesn't see them: their gradients go another way.
Affine: TypeAlias = "tuple[Tensor, Tensor | None]"


class Layer:
    """One module of the network, run by a rule; `forward` stands in for the module's own."""

    handles: ClassVar[tuple[type[nn.Module], ...]] = ()
    parameters: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})  # all that the rule knows of
    any_axis: ClassVar[bool] = False  # whether its inputs' leading axes are all alike, so that any may be the samples'

    def __init__(self, module: nn.Module, name: str, clipping: Clipping) -> None:
        self.module, self.name, self.clipping = module, name, clipping
        self.axes: dict[Signature, Axes] = {}
        self.door: Door | None = None
        self._forward: Forward | None = None
        held = [part._parameters for part in module.modules() if part._parameters]
        self._held = [(parameters, list(parameters.values())) for parameters in held]

    def take(self) -> None:
        self._forward = Forward(self.module, self.forward)

    def give_back(self) -> None:
        if self._forward is not None:
            self._forward.undo()

    @classmethod
    def can(cls, module: nn.Module) -> bool:
        """Whether the rule covers this module's options; the generic way covers the rest."""
        return True

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        """Why this module can't be trained privately at all."""
        return None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        inputs = args[0] if args else next(iter(kwargs.values()))
        axis = self.axes_of((inputs,), {}).given[0]
        if axis == 0:
            return self.run(inputs)
        refuse_axis(self.name, axis)
        if not self.any_axis:
            raise MixesSamples(f"{self.name}: its samples are along axis {axis}, and this layer mixes along it")
        return self.run(inputs.transpose(0, 1)).transpose(0, 1)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """As the module itself would."""
        own = self._forward and self._forward.own
        if own:
            return own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """For inputs with a sample in every row."""
        raise NotImplementedError

    def kernels(self) -> tuple[str, ...]:
        """The files of kernels/ that it will call, where kernels are used."""
        return ()

    def axes_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Axes:
        """Of a call with gradients."""
        for parameters, before in self._held:
            if not all(map(is_, parameters.values(), before)):
                raise Unprotected(
                    f"parameters of {self.name} were added or replaced, and their gradient would get lost: call "
                    "engine.release() and make_private again; instead of torch.func.functional_call, make what it does "
                    "a parametrization"
                )
        single = not kwargs and len(args) == 1 and isinstance(args[0], Tensor)
        found = self.axes.get((args[0].dim(),) if single else signature(tensors_in((args, kwargs))))
        if found is not None:
            return found
        assert self.door is not None
        return self.door.axes(self, args, kwargs)

    def kernels_fit(self, inputs: Tensor) -> bool:
        return self.clipping.kernels and inputs.dtype == torch.float32 and inputs.device.type == "cpu"

    def trained(self, parameter: Any) -> bool:
        """A parameter that is frozen later stays as it is."""
        return parameter is not None and parameter in self.clipping.gradients and parameter.requires_grad

    def call(self, inputs: Tensor) -> LayerCall:
        """For inputs with a sample in every row."""
        passing = self.clipping.passing(inputs)
        passing.check_samples(inputs.shape[0], self.name)
        return LayerCall(self, passing)


class LayerCall:
    """One call of a layer in one pass: what an autograd function keeps, and reports to during backward."""

    __slots__ = ("layer", "passing")

    def __init__(self, layer: Layer, passing: Pass) -> None:
        self.layer, self.passing = layer, passing

    @property
    def module(self) -> nn.Module:
        return self.layer.module

    @property
    def anchor(self) -> Tensor:
        return self.layer.clipping.anchor

    def trained(self, parameter: Any) -> bool:
        return self.layer.trained(parameter)

    def add(self, parameter: Any, contribution: Contribution) -> None:
        self.passing.add(parameter, contribution)

    def add_sums(self, *told: tuple[Any, Tensor, Tensor | None]) -> None:
        """Gradients, a sample each, and their squared norms where they are known; of parameters that are trained."""
        for parameter, sums, squared in told:
            if self.trained(parameter):
                self.add(parameter, PerSample(sums, squared))


@cache
def rules() -> dict[type[nn.Module], type[Layer]]:
    """By the exact type: a subclass may compute something else, and goes the generic way."""
    found: dict[type[nn.Module], type[Layer]] = {}
    for entry in pkgutil.iter_modules(__path__):
        if entry.ispkg or entry.name.startswith("_"):
            continue
        rule = importlib.import_module(f"{__name__}.{entry.name}").Rule
        found.update(dict.fromkeys(rule.handles, rule))
    return found
