"""What must be known of a network before it is trained privately: that no sample sees another."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map

from rigdyno.engines.dp.errors import BadSetting, MixesSamples
from rigdyno.engines.dp.layers import rules

MOST_GROUPS = 32
SAME_WITHIN = 1e-4  # of the largest value: the same sample, computed twice in batches of one size


def refuse(network: nn.Module) -> None:
    """What is known from the modules alone."""
    if isinstance(network, DataParallel | DistributedDataParallel):
        raise BadSetting("pass the bare network: the engine itself sums over ranks, after clipping")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise BadSetting("the network has no parameter that is trained")
    for name, module in network.named_modules():
        reason = _reason(module)
        if reason:
            raise MixesSamples(f"{name or 'the network'} ({type(module).__name__}): {reason}")


def _reason(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm):
        return (
            "a sample's output depends on the whole batch; try replace_batch_norm(network), which puts GroupNorm there"
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "its running statistics mix samples; make it with track_running_stats=False"
    rule = rules().get(type(module))
    return rule.refuses(module) if rule else None


def replace_batch_norm(network: nn.Module) -> nn.Module:
    """A copy with GroupNorm wherever there was BatchNorm; scale and shift are kept, running statistics are not."""
    network = copy.deepcopy(network)
    if isinstance(network, _BatchNorm):
        return _group_norm(network)
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _group_norm(child))
    return network


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    groups = next(count for count in range(min(MOST_GROUPS, channels), 0, -1) if channels % count == 0)
    found = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        found.load_state_dict({"weight": norm.weight, "bias": norm.bias})
        found.to(norm.weight)
    return found.train(norm.training)


def refuse_mixing(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], samples: int) -> None:
    """One sample in two companies: whatever answers differently has looked at the others."""
    first = _answers_to_the_first(network, _picked((args, kwargs), [0, 1], samples))
    second = _answers_to_the_first(network, _picked((args, kwargs), [0, 0] if samples == 2 else [0, 2], samples))
    for (name, one), (_, other) in zip(first, second, strict=False):
        if one.shape == other.shape and not _same(one, other):
            raise MixesSamples(
                f"{name or 'the network'}: what it answers to a sample depends on the other samples of the batch; "
                "clipping one sample's gradient then bounds nothing"
            )


def _picked(inputs: Any, rows: list[int], samples: int) -> Any:
    def pick(leaf: Any) -> Any:
        return leaf[rows] if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == samples else leaf

    return tree_map(pick, inputs)


def _answers_to_the_first(network: nn.Module, inputs: Any) -> list[tuple[str, Tensor]]:
    """Of every module, in the order in which they end, so that the innermost culprit comes first."""
    found: list[tuple[str, Tensor]] = []

    def listen(name: str) -> Any:
        def hear(module: nn.Module, args: Any, answer: Any) -> None:
            found.extend((name, leaf[0].detach().clone()) for leaf in tree_leaves(answer) if _has_rows(leaf))

        return hear

    handles = [module.register_forward_hook(listen(name)) for name, module in network.named_modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            network(*inputs[0], **inputs[1])
    finally:
        for handle in handles:
            handle.remove()
    return found


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == 2


def _same(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return bool((one == other).all())
    largest = float(one.abs().nan_to_num().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=SAME_WITHIN * largest + 1e-30, equal_nan=True)
