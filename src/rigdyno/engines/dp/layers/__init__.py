"""Rules for per-sample gradients: one file for each kind of layer, found automatically.

A rule lists the module types that it `handles` and replaces their `forward`. All other modules are run by
`common/generic.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from rigdyno.engines.dp.checks.axes import Axes, Signature, check_axis, signature, tensors_in
from rigdyno.engines.dp.checks.forwards import ReplacedForward
from rigdyno.engines.dp.errors import MixesSamples, Unprotected
from rigdyno.engines.dp.gradients.clipping import Clipping
from rigdyno.engines.dp.gradients.contributions import Contribution, PerSample
from rigdyno.engines.dp.gradients.passes import Pass

if TYPE_CHECKING:
    from rigdyno.engines.dp.checks.input_guard import InputGuard

# A weight and its bias. They are in a tuple to hide them from autograd: their gradients are reported separately.
Affine: TypeAlias = "tuple[Tensor, Tensor | None]"


class PrivateLayer:
    """One module of the network that is run by a rule: `forward` replaces the module's own forward."""

    handles: ClassVar[tuple[type[nn.Module], ...]] = ()
    parameters: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})  # all that the rule knows
    any_axis: ClassVar[bool] = False  # True if any leading axis of its inputs may be the sample axis

    def __init__(self, module: nn.Module, name: str, clipping: Clipping) -> None:
        self.module, self.name, self.clipping = module, name, clipping
        self.axes: dict[Signature, Axes] = {}
        self.input_guard: InputGuard | None = None
        self._forward: ReplacedForward | None = None
        held = [part._parameters for part in module.modules() if part._parameters]
        self._held = [(parameters, list(parameters.values())) for parameters in held]

    def install(self) -> None:
        self._forward = ReplacedForward(self.module, self.forward)

    def uninstall(self) -> None:
        if self._forward is not None:
            self._forward.undo()

    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        """Return True if the rule supports this module's options. Otherwise the generic layer is used."""
        return True

    @classmethod
    def explain_refusal(cls, module: nn.Module) -> str | None:
        """Return why this module can't be trained privately at all; None if it can."""
        return None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.run_plain(*args, **kwargs)
        inputs = args[0] if args else next(iter(kwargs.values()))
        axis = self.find_axes((inputs,), {}).inputs[0]
        if axis == 0:
            return self.run(inputs)
        check_axis(self.name, axis)
        if not self.any_axis:
            raise MixesSamples(f"{self.name}: its samples are along axis {axis}, but this layer mixes along that axis")
        return self.run(inputs.transpose(0, 1)).transpose(0, 1)

    def run_plain(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward."""
        own = self._forward and self._forward.user_forward
        if own:
            return own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer on inputs with one sample per row."""
        raise NotImplementedError

    def kernels(self) -> tuple[str, ...]:
        """Return the names of the files of kernels/ that this layer calls if kernels are used."""
        return ()

    def find_axes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Axes:
        """Return the sample axes of a call with gradients."""
        for parameters, before in self._held:
            if not all(map(is_, parameters.values(), before)):
                raise Unprotected(
                    f"parameters of {self.name} were added or replaced, and their gradient would be lost: call "
                    "engine.release() and make_private again; instead of torch.func.functional_call, use a "
                    "parametrization"
                )
        single = not kwargs and len(args) == 1 and isinstance(args[0], Tensor)
        found = self.axes.get((args[0].dim(),) if single else signature(tensors_in((args, kwargs))))
        if found is not None:
            return found
        assert self.input_guard is not None
        return self.input_guard.find_layer_axes(self, args, kwargs)

    def kernels_fit(self, inputs: Tensor) -> bool:
        return self.clipping.kernels and inputs.dtype == torch.float32 and inputs.device.type == "cpu"

    def is_trained(self, parameter: Any) -> bool:
        """Return True if the parameter is trained. One that is frozen after make_private isn't."""
        return parameter is not None and parameter in self.clipping.gradients and parameter.requires_grad

    def call(self, inputs: Tensor) -> LayerCall:
        """Begin a call of this layer, for inputs with one sample per row."""
        current_pass = self.clipping.find_pass(inputs)
        current_pass.check_samples(inputs.shape[0], self.name)
        return LayerCall(self, current_pass)


class LayerCall:
    """One call of a layer in one pass. The layer's autograd function keeps it, and reports to it during backward."""

    __slots__ = ("current_pass", "layer")

    def __init__(self, layer: PrivateLayer, current_pass: Pass) -> None:
        self.layer, self.current_pass = layer, current_pass

    @property
    def module(self) -> nn.Module:
        return self.layer.module

    @property
    def anchor(self) -> Tensor:
        return self.layer.clipping.anchor

    def is_trained(self, parameter: Any) -> bool:
        return self.layer.is_trained(parameter)

    def add(self, parameter: Any, contribution: Contribution) -> None:
        self.current_pass.add(parameter, contribution)

    def add_sums(self, *reports: tuple[Any, Tensor, Tensor | None]) -> None:
        """Report (parameter, per-sample gradients, their squared norms or None) for each parameter that is trained."""
        for parameter, sums, squared in reports:
            if self.is_trained(parameter):
                self.add(parameter, PerSample(sums, squared))


@cache
def rules() -> dict[type[nn.Module], type[PrivateLayer]]:
    """Return the rules by module type. A subclass may compute something else, so only exact types have a rule."""
    found: dict[type[nn.Module], type[PrivateLayer]] = {}
    for entry in pkgutil.iter_modules(__path__):
        if entry.ispkg or entry.name.startswith("_"):
            continue
        rule = importlib.import_module(f"{__name__}.{entry.name}").Rule
        found.update(dict.fromkeys(rule.handles, rule))
    return found


def report_scale_and_shift(call: LayerCall, normalised: Tensor, gradient: Tensor, axes: int) -> None:
    """Report the gradients of a norm's scale and shift.

    `normalised` and `gradient` are (samples, positions ..., normalised axes ...); `axes` is the number of the latter.
    """
    weight, bias = call.module.weight, getattr(call.module, "bias", None)
    if call.is_trained(weight):
        call.add(weight, PerSample(_sum_over_positions(normalised * gradient, axes)))
    if call.is_trained(bias):
        call.add(bias, PerSample(_sum_over_positions(gradient, axes)))


def _sum_over_positions(values: Tensor, axes: int) -> Tensor:
    between = values.dim() - 1 - axes
    return values.flatten(1, between).sum(dim=1) if between else values
