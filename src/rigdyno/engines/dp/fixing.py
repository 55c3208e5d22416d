"""Copies of networks in which layers that can't be trained privately are replaced by ones that can."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrizations, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rigdyno.engines.dp.errors import BadSetting

MOST_GROUPS = 32
LEAST_CHANNELS_OF_ROWS = 4


def fix(network: nn.Module) -> nn.Module:
    """A copy with GroupNorm for BatchNorm, InstanceNorm without running statistics, and parametrizations for weight
    norm and spectral norm of the old hook style, with the same weights. A norm that is in eval mode in a network in
    train mode is frozen on purpose, and stays. `validate` tells what is left."""

    def replaced(norm: nn.Module) -> nn.Module:
        if network.training and not norm.training and getattr(norm, "running_mean", None) is not None:
            return norm
        if isinstance(norm, _BatchNorm):
            return _group_norm(norm)
        return _instance_norm(norm) if isinstance(norm, _InstanceNorm) and norm.track_running_stats else norm

    fixed = _with(_copied(network), replaced)
    for module in list(fixed.modules()):
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                _parametrize_weight_norm(module, hook)
            elif isinstance(hook, SpectralNorm):
                _parametrize_spectral_norm(module, hook)
    return fixed


def replace_batch_norm(network: nn.Module) -> nn.Module:
    """A copy with GroupNorm wherever there was BatchNorm; scale and shift are kept, running statistics are not."""
    return _with(_copied(network), lambda norm: _group_norm(norm) if isinstance(norm, _BatchNorm) else norm)


def _copied(network: nn.Module) -> nn.Module:
    """Hooks of the old style keep the weight that they computed, which torch doesn't copy."""
    if any(map(is_lazy, network.buffers())):
        raise BadSetting("a lazy norm was never called, and can't be copied; call the network once on a batch first")
    attributes = [value for module in network.modules() for value in vars(module).values()]
    computed = [value for value in attributes if isinstance(value, Tensor) and not value.is_leaf]
    return copy.deepcopy(network, {id(value): value.detach().clone() for value in computed})


def _with(network: nn.Module, replaced: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A norm that is used in several places is replaced by one."""
    known: dict[nn.Module, nn.Module] = {}
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            if child is not None and not any(map(is_lazy, child.parameters(recurse=False))):
                known.setdefault(child, replaced(child))
                parent._modules[name] = known[child]
    return replaced(network)


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    # Rows have one value a channel: a group of one channel would always answer with its shift.
    most = max(1, channels // LEAST_CHANNELS_OF_ROWS) if isinstance(norm, nn.BatchNorm1d) else channels
    groups = next(count for count in range(min(MOST_GROUPS, most), 0, -1) if channels % count == 0)
    found = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine)
    _take_over(norm, found)
    return found


def _instance_norm(norm: _InstanceNorm) -> nn.Module:
    found = type(norm)(norm.num_features, eps=norm.eps, affine=norm.affine, track_running_stats=False)
    _take_over(norm, found)
    return found


def _take_over(norm: Any, found: Any) -> None:
    """Scale, shift and mode."""
    if norm.affine:
        found.load_state_dict({"weight": norm.weight, "bias": norm.bias})
        found.to(norm.weight)
        found.weight.requires_grad_(norm.weight.requires_grad)
        found.bias.requires_grad_(norm.bias.requires_grad)
    found.train(norm.training)


def _parametrize_weight_norm(module: Any, hook: WeightNorm) -> None:
    name = hook.name
    sizes, directions = getattr(module, f"{name}_g"), getattr(module, f"{name}_v")
    remove_weight_norm(module, name)
    parametrizations.weight_norm(module, name, hook.dim)
    parts = module.parametrizations[name]
    _refill(parts.original0, sizes)
    _refill(parts.original1, directions)


def _parametrize_spectral_norm(module: Any, hook: SpectralNorm) -> None:
    name = hook.name
    whole, left, right = (getattr(module, f"{name}_{part}") for part in ("orig", "u", "v"))
    remove_spectral_norm(module, name)
    parametrizations.spectral_norm(module, name, hook.n_power_iterations, hook.eps, hook.dim)
    parts = module.parametrizations[name]
    _refill(parts.original, whole)
    if whole.dim() > 1:  # of one row there is nothing to be estimated
        parts[0]._u.copy_(left)
        parts[0]._v.copy_(right)


def _refill(parameter: nn.Parameter, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)
    parameter.requires_grad_(value.requires_grad)
