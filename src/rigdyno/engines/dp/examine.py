"""What must be known of a network before it is trained privately: that no sample sees another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rigdyno.engines.dp.checks.probing import Inputs
from rigdyno.engines.dp.errors import BadSetting, MixesSamples, PrivacyError
from rigdyno.engines.dp.forwards import is_private
from rigdyno.engines.dp.layers import rules


def refuse(network: nn.Module) -> None:
    """What is known from the modules alone."""
    for reason in _reasons(network):
        raise reason


def validate(network: nn.Module) -> list[str]:
    """All reasons for which make_private would refuse this network, a line each; none: it is accepted. What only
    running it shows, such as samples that mix in code of its own, is looked for at the first batch."""
    return [str(reason) for reason in _reasons(network)]


def _reasons(network: nn.Module) -> Iterator[PrivacyError]:
    if isinstance(network, DataParallel | DistributedDataParallel):
        yield BadSetting("pass the bare network: the engine itself sums over ranks, after clipping")
    if is_private(network):
        yield BadSetting("an engine trains this network, or a part of it, already: call engine.release() there first")
    kinds = {(p.dtype, p.device) for p in network.parameters() if p.requires_grad}
    if not kinds:
        yield BadSetting("the network has no parameter that is trained")
    elif len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
        yield BadSetting("all trained parameters must be float32, or all float64, on one device")
    for name, module in network.named_modules():
        what = f"{name or 'the network'} ({type(module).__name__})"
        if unfit := _unfit(module):
            yield BadSetting(f"{what}: {unfit}")
        if reason := why_it_mixes(module):
            yield MixesSamples(f"{what}: {reason}")


def _unfit(module: nn.Module) -> str | None:
    """Why per-sample gradients of this module would be wrong, in silence."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return None
    if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters(recurse=False)):
        return "its parameters have no shape yet; call the network once on a batch before make_private"
    if isinstance(module, torch.jit.ScriptModule):
        return "a scripted module can't be looked into; pass the module that it was made of"
    if hasattr(module, "_orig_mod"):
        return "a compiled module can't be looked into; pass the module before torch.compile"
    if any(isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod) for hook in _pre_hooks(module)):
        return (
            "a hook computes its weight from other parameters; use torch.nn.utils.parametrizations.weight_norm, "
            "remove_spectral_norm, or prune.remove"
        )
    if any(isinstance(part, _SpectralNorm) for part in module.children()):
        return (
            (
                "spectral_norm changes its estimate in every call, so there is no one gradient; remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations, or put the module into eval mode"
            )
            if module.training
            else None
        )
    return None


def _pre_hooks(module: nn.Module) -> list[Any]:
    return list(module._forward_pre_hooks.values())


def may_mix(module: nn.Module) -> bool:
    """Norms over the batch, which don't mix as long as they are in eval mode and have statistics."""
    return isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats)


def why_it_mixes(module: nn.Module) -> str | None:
    frozen = not module.training and getattr(module, "running_mean", None) is not None
    if isinstance(module, _BatchNorm) and not frozen:
        return (
            "a sample's output depends on the whole batch; try replace_batch_norm(network), which puts GroupNorm there"
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats and not frozen:
        return "its running statistics mix samples; make it with track_running_stats=False"
    rule = rules().get(type(module))
    return rule.refuses(module) if rule else None


def refuse_transposed(inputs: Inputs, drawn: Sequence[Tensor]) -> None:
    """Where a sequence is as long as the batch is large, the drawn batch itself tells which axis is which."""
    for given in inputs.by_sample():
        for batch in drawn:
            turned = batch.dim() > 1 and batch.shape[0] == batch.shape[1] and given.shape == batch.shape
            if turned and _equal(given, batch.transpose(0, 1)) and not _equal(given, batch):
                raise BadSetting(
                    f"the samples of the network's input aren't along axis {inputs.axis}: give make_private "
                    f"batch_first={inputs.axis == 1}, or the input its other layout"
                )


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.to(other.device, other.dtype), other)
