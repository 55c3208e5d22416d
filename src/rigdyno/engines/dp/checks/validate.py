"""Validate a network before private training, and fix it.

`validate` lists the modules that mix samples or can't be clipped. `fix` returns a copy in which they are replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter, is_lazy
from torch.nn.utils import parametrizations, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rigdyno.engines.dp.checks.forwards import is_private
from rigdyno.engines.dp.checks.probing import Inputs
from rigdyno.engines.dp.errors import BadSetting, MixesSamples, PrivacyError
from rigdyno.engines.dp.layers import rules

MOST_GROUPS = 32

LEAST_CHANNELS_OF_ROWS = 4  # channels per group for rows, which have one value per channel


def check_network(network: nn.Module) -> None:
    """Raise the first problem that `validate` would list."""
    for reason in _find_problems(network):
        raise reason


def validate(network: nn.Module) -> list[str]:
    """Return all reasons why make_private would refuse this network, one line each; an empty list if it is accepted.

    Problems that only show when the network runs, such as samples that mix in its own code, are found at the first
    batch.
    """
    return [str(reason) for reason in _find_problems(network)]


def _find_problems(network: nn.Module) -> Iterator[PrivacyError]:
    if isinstance(network, DataParallel | DistributedDataParallel):
        yield BadSetting("pass the bare network: the engine itself sums over ranks, after clipping")
    if is_private(network):
        yield BadSetting("an engine already trains this network, or a part of it: call engine.release() there first")
    kinds = {(p.dtype, p.device) for p in network.parameters() if p.requires_grad}
    if not kinds:
        yield BadSetting("the network has no parameter that is trained")
    elif len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
        yield BadSetting("all trained parameters must be float32, or all float64, on one device")
    for name, module in network.named_modules():
        what = f"{name or 'the network'} ({type(module).__name__})"
        if unfit := _explain_unfit(module):
            yield BadSetting(f"{what}: {unfit}")
        if reason := explain_mixing(module):
            yield MixesSamples(f"{what}: {reason}")


def _explain_unfit(module: nn.Module) -> str | None:
    """Return why per-sample gradients of this module would be wrong without notice; None if they are right."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return None
    if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters(recurse=False)):
        return "its parameters have no shape yet; call the network once on a batch before make_private"
    if isinstance(module, torch.jit.ScriptModule):
        return "a scripted module can't be inspected; pass the module that it was made from"
    if hasattr(module, "_orig_mod"):
        return "a compiled module can't be inspected; pass the module before torch.compile"
    if any(isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod) for hook in _pre_hooks(module)):
        return (
            "a hook computes its weight from other parameters; use torch.nn.utils.parametrizations.weight_norm, "
            "remove_spectral_norm, or prune.remove"
        )
    if any(isinstance(part, _SpectralNorm) for part in module.children()):
        return (
            (
                "spectral_norm changes its estimate in every call, so there is no single gradient; remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations, or put the module into eval mode"
            )
            if module.training
            else None
        )
    return None


def _pre_hooks(module: nn.Module) -> list[Any]:
    return list(module._forward_pre_hooks.values())


def may_mix(module: nn.Module) -> bool:
    """Return True for norms over the batch; they don't mix as long as they are in eval mode and have statistics."""
    return isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats)


def explain_mixing(module: nn.Module) -> str | None:
    """Return why this module mixes samples, and what to do; None if it doesn't."""
    frozen = not module.training and getattr(module, "running_mean", None) is not None
    if isinstance(module, _BatchNorm) and not frozen:
        return (
            "a sample's output depends on the whole batch; try replace_batch_norm(network), which puts GroupNorm there"
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats and not frozen:
        return "its running statistics mix samples; make it with track_running_stats=False"
    rule = rules().get(type(module))
    return rule.explain_refusal(module) if rule else None


def check_not_transposed(inputs: Inputs, drawn: Sequence[Tensor]) -> None:
    """Raise BadSetting if the input is the transpose of a drawn batch.

    If a sequence is as long as the batch, only the drawn batch shows which axis is that of the samples.
    """
    for given in inputs.sample_tensors():
        for batch in drawn:
            turned = batch.dim() > 1 and batch.shape[0] == batch.shape[1] and given.shape == batch.shape
            if turned and _equal(given, batch.transpose(0, 1)) and not _equal(given, batch):
                raise BadSetting(
                    f"the samples of the network's input aren't along axis {inputs.axis}: give make_private "
                    f"batch_first={inputs.axis == 1}, or transpose the input"
                )


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.to(other.device, other.dtype), other)


def fix(network: nn.Module) -> nn.Module:
    """Return a copy of the network that can be trained privately, with the same weights.

    BatchNorm becomes GroupNorm, InstanceNorm loses its running statistics, and weight norm and spectral norm of the old
    hook style become parametrizations. A norm in eval mode in a network in train mode is frozen on purpose, and stays.
    `validate` lists the remaining problems.
    """

    def replace(norm: nn.Module) -> nn.Module:
        if network.training and not norm.training and getattr(norm, "running_mean", None) is not None:
            return norm
        if isinstance(norm, _BatchNorm):
            return _make_group_norm(norm)
        return _make_instance_norm(norm) if isinstance(norm, _InstanceNorm) and norm.track_running_stats else norm

    fixed = _replace_modules(_copy_network(network), replace)
    for module in list(fixed.modules()):
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                _parametrize_weight_norm(module, hook)
            elif isinstance(hook, SpectralNorm):
                _parametrize_spectral_norm(module, hook)
    return fixed


def replace_batch_norm(network: nn.Module) -> nn.Module:
    """Return a copy with GroupNorm instead of BatchNorm. Scale and shift are kept, running statistics are not."""
    return _replace_modules(
        _copy_network(network), lambda norm: _make_group_norm(norm) if isinstance(norm, _BatchNorm) else norm
    )


def _copy_network(network: nn.Module) -> nn.Module:
    """Copy a network, including the weights computed by old-style hooks, which torch doesn't copy."""
    if any(map(is_lazy, network.buffers())):
        raise BadSetting("a lazy norm was never called, and can't be copied; call the network once on a batch first")
    attributes = [value for module in network.modules() for value in vars(module).values()]
    computed = [value for value in attributes if isinstance(value, Tensor) and not value.is_leaf]
    return copy.deepcopy(network, {id(value): value.detach().clone() for value in computed})


def _replace_modules(network: nn.Module, replace: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Replace modules in place. A norm that is used several times is replaced by one new norm."""
    known: dict[nn.Module, nn.Module] = {}
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            if child is not None and not any(map(is_lazy, child.parameters(recurse=False))):
                known.setdefault(child, replace(child))
                parent._modules[name] = known[child]
    return replace(network)


def _make_group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    # Rows have one value per channel: the output of a group of one channel would always be its shift.
    most = max(1, channels // LEAST_CHANNELS_OF_ROWS) if isinstance(norm, nn.BatchNorm1d) else channels
    groups = next(count for count in range(min(MOST_GROUPS, most), 0, -1) if channels % count == 0)
    found = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine)
    _copy_affine(norm, found)
    return found


def _make_instance_norm(norm: _InstanceNorm) -> nn.Module:
    found = type(norm)(norm.num_features, eps=norm.eps, affine=norm.affine, track_running_stats=False)
    _copy_affine(norm, found)
    return found


def _copy_affine(norm: Any, found: Any) -> None:
    """Copy scale, shift and mode."""
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
    _fill(parts.original0, sizes)
    _fill(parts.original1, directions)


def _parametrize_spectral_norm(module: Any, hook: SpectralNorm) -> None:
    name = hook.name
    whole, left, right = (getattr(module, f"{name}_{part}") for part in ("orig", "u", "v"))
    remove_spectral_norm(module, name)
    parametrizations.spectral_norm(module, name, hook.n_power_iterations, hook.eps, hook.dim)
    parts = module.parametrizations[name]
    _fill(parts.original, whole)
    if whole.dim() > 1:  # a weight with one axis has no estimate
        parts[0]._u.copy_(left)
        parts[0]._v.copy_(right)


def _fill(parameter: nn.Parameter, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)
    parameter.requires_grad_(value.requires_grad)
