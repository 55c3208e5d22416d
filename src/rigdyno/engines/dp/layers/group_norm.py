"""nn.GroupNorm: per-sample gradients of scale and shift fall out of its backward pass.

An activation that follows it in an nn.Sequential is computed in the same pass where there are kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from rigdyno.engines.dp.clipping import Clipping
from rigdyno.engines.dp.layers import Layer, LayerCall
from rigdyno.engines.dp.layers._again import Recipe, leave_recipe
from rigdyno.engines.dp.layout import channels_inside, over_places, own_layout, rows_of

ACTIVATIONS: dict[type[nn.Module], int] = {nn.SiLU: 1, nn.ReLU: 2}  # as kernels/group_norm.py counts them


class Rule(Layer):
    handles = (nn.GroupNorm,)

    def kernels(self) -> tuple[str, ...]:
        return ("group_norm",) if self.module.affine else ()

    def run(self, inputs: Tensor) -> Tensor:
        return self.run_with(inputs, None)

    def run_with(self, inputs: Tensor, activation: type[nn.Module] | None) -> Tensor:
        """And the activation that comes after it."""
        if inputs.dim() == 2:
            return self.run_with(inputs.unsqueeze(2), activation).squeeze(2)
        call = self.call(inputs)
        if self.kernels_fit(inputs) and self.module.affine:
            return fused(inputs, call, activation)
        found = _GroupNorm.apply(inputs, call.anchor, call)
        return (
            found if activation is None else functional.relu(found) if activation is nn.ReLU else functional.silu(found)
        )


class Chain(Layer):
    """An nn.Sequential with such pairs. Only its own forward knows that one module follows the other: a network that
    walks over it, or slices it, calls them one by one."""

    def __init__(self, module: nn.Sequential, name: str, clipping: Clipping, norms: Sequence[Rule]) -> None:
        super().__init__(module, name, clipping)
        self._norms = {id(norm.module): norm for norm in norms}

    def fused(self) -> list[nn.Module]:
        """The norms, and the activations that follow them."""
        modules = [module for module in self.module._modules.values() if module is not None]
        pairs = [pair for pair in itertools.pairwise(modules) if id(pair[0]) in self._norms]
        return [module for pair in pairs for module in pair]

    def forward(self, inputs: Any) -> Any:
        modules, taken = list(self.module._modules.values()), torch.is_grad_enabled()
        following = iter([*modules[1:], None])
        silent = False
        for module in modules:
            assert module is not None
            after = next(following)
            if silent:
                silent = False
            elif taken and after is not None and self._fits(module, after, inputs):
                inputs, silent = self._norms[id(module)].run_with(inputs, type(after)), True
            else:
                inputs = module(inputs)
        return inputs

    def _fits(self, norm: nn.Module, activation: nn.Module, inputs: Any) -> bool:
        rule = self._norms.get(id(norm))
        if rule is None or type(activation) not in ACTIVATIONS or "forward" in vars(activation):
            return False
        if _watched(norm) or _watched(activation):
            return False
        return rule.axes_of((inputs,), {}).given[0] == 0


def _watched(module: nn.Module) -> bool:
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks)


class _GroupNorm(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall) -> Tensor:
        module = call.module
        assert isinstance(module, nn.GroupNorm)
        inputs = inputs.contiguous(memory_format=own_layout(inputs))
        ctx.sizes = len(inputs), inputs.shape[1], inputs.shape[2:].numel(), module.num_groups
        known: Any = (inputs, module.weight, module.bias, *ctx.sizes, module.eps)
        found, mean, rstd = torch.native_group_norm(*known)
        ctx.save_for_backward(inputs, mean, rstd)
        ctx.call = call
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, mean, rstd = ctx.saved_tensors
        _tell(ctx.call, inputs, gradient, mean, rstd)
        if not ctx.needs_input_grad[0]:
            return None, None, None
        weight, wanted = ctx.call.module.weight, [True, False, False]
        gradient = gradient.contiguous(memory_format=own_layout(inputs))
        found = torch.ops.aten.native_group_norm_backward(gradient, inputs, mean, rstd, weight, *ctx.sizes, wanted)
        return found[0], None, None


def fused(inputs: Tensor, call: LayerCall, activation: type[nn.Module] | None) -> Tensor:
    """By our own kernel, with the activation; only the norm's input is kept, its output is computed again."""
    module, rows = call.module, rows_of(inputs.detach())
    assert isinstance(module, nn.GroupNorm)
    figures = rows.new_empty(2, len(rows), module.num_groups)  # mean and rstd
    recipe = Recipe((rows, figures), module.weight, module.bias, 0 if activation is None else ACTIVATIONS[activation])
    found: Tensor = _Fused.apply(inputs, call.anchor, call, recipe)
    leave_recipe(found, recipe)
    return found


class _Fused(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall, recipe: Recipe) -> Tensor:
        from rigdyno.engines.dp.kernels import group_norm

        rows, figures = recipe.tensors
        samples, _, channels = rows.shape
        found = channels_inside(samples, channels, inputs.shape[2:], inputs)
        scale, shift, mean, rstd, after = recipe.arguments(figures)
        eps: Any = call.module.eps
        group_norm.forward(rows.numpy(), scale, shift, rows_of(found).numpy(), mean, rstd, eps, after)
        ctx.save_for_backward(rows, figures)
        ctx.call, ctx.recipe = call, recipe.without_tensors()
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from rigdyno.engines.dp.kernels import group_norm

        rows, figures = ctx.saved_tensors
        weight, bias = ctx.call.module.weight, ctx.call.module.bias
        samples, _, channels = rows.shape
        back = channels_inside(samples, channels, gradient.shape[2:], rows)
        sums, squared = rows.new_empty(2, samples, channels), torch.empty(2, samples, dtype=torch.float64)
        *known, after = ctx.recipe.arguments(figures)
        wanted = (rows_of(back).numpy(), *sums.numpy(), squared.numpy())
        arguments: Any = (rows.numpy(), rows_of(gradient).numpy(), *known, *wanted, after)
        group_norm.backward(*arguments)
        ctx.call.add_sums(*zip((weight, bias), sums.unbind(), squared.unbind(), strict=True))
        return back, None, None, None


def _tell(call: LayerCall, inputs: Tensor, gradient: Tensor, mean: Tensor, rstd: Tensor) -> None:
    """The normalised input is (x - mean) rstd, and mean and rstd are the same for a whole group of channels."""
    shifts = over_places(gradient)
    wide = inputs.shape[1] // mean.shape[1]
    mean, rstd = mean.repeat_interleave(wide, dim=1), rstd.repeat_interleave(wide, dim=1)
    scales = (over_places(inputs * gradient) - mean * shifts) * rstd
    call.add_sums((call.module.weight, scales, None), (call.module.bias, shifts, None))
