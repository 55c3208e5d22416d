"""Rule for nn.GroupNorm: its backward pass also gives the per-sample gradients of scale and shift.

With kernels, an activation that follows it in an nn.Sequential is computed in the same pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from rigdyno.engines.dp.gradients.clipping import Clipping
from rigdyno.engines.dp.gradients.memory import empty_channels_last, find_layout, sum_over_positions, to_rows
from rigdyno.engines.dp.layers import LayerCall, PrivateLayer
from rigdyno.engines.dp.layers.common.recompute import Recipe, attach_recipe

ACTIVATIONS: dict[type[nn.Module], int] = {nn.SiLU: 1, nn.ReLU: 2}  # the numbers of kernels/group_norm.py


class Rule(PrivateLayer):
    handles = (nn.GroupNorm,)

    def kernels(self) -> tuple[str, ...]:
        return ("group_norm",) if self.module.affine else ()

    def run(self, inputs: Tensor) -> Tensor:
        return self.run_with_activation(inputs, None)

    def run_with_activation(self, inputs: Tensor, activation: type[nn.Module] | None) -> Tensor:
        """Run the norm, and the activation that follows it."""
        if inputs.dim() == 2:
            return self.run_with_activation(inputs.unsqueeze(2), activation).squeeze(2)
        call = self.call(inputs)
        if self.kernels_fit(inputs) and self.module.affine:
            return run_fused(inputs, call, activation)
        found = _GroupNorm.apply(inputs, call.anchor, call)
        return (
            found if activation is None else functional.relu(found) if activation is nn.ReLU else functional.silu(found)
        )


class Chain(PrivateLayer):
    """An nn.Sequential with pairs of GroupNorm and activation.

    Only its own forward may run a pair together: a network that iterates over it, or slices it, calls the modules one
    by one.
    """

    def __init__(self, module: nn.Sequential, name: str, clipping: Clipping, norms: Sequence[Rule]) -> None:
        super().__init__(module, name, clipping)
        self._norms = {id(norm.module): norm for norm in norms}

    def fused_modules(self) -> list[nn.Module]:
        """Return the norms, and the activations that follow them."""
        modules = [module for module in self.module._modules.values() if module is not None]
        pairs = [pair for pair in itertools.pairwise(modules) if id(pair[0]) in self._norms]
        return [module for pair in pairs for module in pair]

    def forward(self, inputs: Any) -> Any:
        modules, fuse = list(self.module._modules.values()), torch.is_grad_enabled()
        following = iter([*modules[1:], None])
        skip = False
        for module in modules:
            assert module is not None
            after = next(following)
            if skip:
                skip = False
            elif fuse and after is not None and self._fits(module, after, inputs):
                inputs, skip = self._norms[id(module)].run_with_activation(inputs, type(after)), True
            else:
                inputs = module(inputs)
        return inputs

    def _fits(self, norm: nn.Module, activation: nn.Module, inputs: Any) -> bool:
        rule = self._norms.get(id(norm))
        if rule is None or type(activation) not in ACTIVATIONS or "forward" in vars(activation):
            return False
        if _has_hooks(norm) or _has_hooks(activation):
            return False
        return rule.find_axes((inputs,), {}).inputs[0] == 0


def _has_hooks(module: nn.Module) -> bool:
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks)


class _GroupNorm(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall) -> Tensor:
        module = call.module
        assert isinstance(module, nn.GroupNorm)
        inputs = inputs.contiguous(memory_format=find_layout(inputs))
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
        _report(ctx.call, inputs, gradient, mean, rstd)
        if not ctx.needs_input_grad[0]:
            return None, None, None
        weight, wanted = ctx.call.module.weight, [True, False, False]
        gradient = gradient.contiguous(memory_format=find_layout(inputs))
        found = torch.ops.aten.native_group_norm_backward(gradient, inputs, mean, rstd, weight, *ctx.sizes, wanted)
        return found[0], None, None


def run_fused(inputs: Tensor, call: LayerCall, activation: type[nn.Module] | None) -> Tensor:
    """Run norm and activation by a kernel. Only the norm's input is kept; its output is computed again in backward."""
    module, rows = call.module, to_rows(inputs.detach())
    assert isinstance(module, nn.GroupNorm)
    figures = rows.new_empty(2, len(rows), module.num_groups)  # mean and rstd
    recipe = Recipe((rows, figures), module.weight, module.bias, 0 if activation is None else ACTIVATIONS[activation])
    found: Tensor = _Fused.apply(inputs, call.anchor, call, recipe)
    attach_recipe(found, recipe)
    return found


class _Fused(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, call: LayerCall, recipe: Recipe) -> Tensor:
        from rigdyno.engines.dp.kernels import group_norm

        rows, figures = recipe.tensors
        samples, _, channels = rows.shape
        found = empty_channels_last(samples, channels, inputs.shape[2:], inputs)
        scale, shift, mean, rstd, after = recipe.arguments(figures)
        eps: Any = call.module.eps
        group_norm.forward(rows.numpy(), scale, shift, to_rows(found).numpy(), mean, rstd, eps, after)
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
        back = empty_channels_last(samples, channels, gradient.shape[2:], rows)
        sums, squared = rows.new_empty(2, samples, channels), torch.empty(2, samples, dtype=torch.float64)
        *known, after = ctx.recipe.arguments(figures)
        wanted = (to_rows(back).numpy(), *sums.numpy(), squared.numpy())
        arguments: Any = (rows.numpy(), to_rows(gradient).numpy(), *known, *wanted, after)
        group_norm.backward(*arguments)
        ctx.call.add_sums(*zip((weight, bias), sums.unbind(), squared.unbind(), strict=True))
        return back, None, None, None


def _report(call: LayerCall, inputs: Tensor, gradient: Tensor, mean: Tensor, rstd: Tensor) -> None:
    """Report the gradients of scale and shift.

    The normalised input is (x - mean) * rstd, where mean and rstd are the same for a whole group of channels.
    """
    shifts = sum_over_positions(gradient)
    wide = inputs.shape[1] // mean.shape[1]
    mean, rstd = mean.repeat_interleave(wide, dim=1), rstd.repeat_interleave(wide, dim=1)
    scales = (sum_over_positions(inputs * gradient) - mean * shifts) * rstd
    call.add_sums((call.module.weight, scales, None), (call.module.bias, shifts, None))
