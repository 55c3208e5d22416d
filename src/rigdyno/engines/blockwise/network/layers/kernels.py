"""Kernels of convolutions: oneDNN's fused ones in channels-last order on CPUs, torch's own elsewhere.

oneDNN can add to an existing sum and apply the activation in the same pass. torch.compile uses these operators for it;
calling them directly needs no preparation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.layers.pointwise import Activation

LAYOUT = torch.channels_last_3d


@dataclass(frozen=True)
class Settings:
    padding: Zyx
    stride: Zyx
    dilation: Zyx
    groups: int


@dataclass(eq=False)
class PackedWeight:
    """A weight, and its copy in oneDNN's memory layout, made on first use."""

    weight: Tensor
    ready: Tensor | None = field(default=None, init=False)

    def for_convolution(self, tensor: Tensor, settings: Settings) -> Tensor:
        if self.ready is None:
            self.ready = torch.ops.mkldnn._reorder_convolution_weight(
                self.weight, settings.padding, settings.stride, settings.dilation, settings.groups, list(tensor.shape)
            )
        return self.ready

    def for_deconvolution(self, tensor: Tensor, settings: Settings, extra: Zyx) -> Tensor:
        if self.ready is None:
            self.ready = torch.ops.mkldnn._reorder_convolution_transpose_weight(
                self.weight,
                settings.padding,
                extra,
                settings.stride,
                settings.dilation,
                settings.groups,
                list(tensor.shape),
            )
        return self.ready


def can_fuse(tensor: Tensor) -> bool:
    return bool(
        tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and not torch.compiler.is_compiling()
        and not torch._C._get_tracing_state()
    )


def convolve(
    tensor: Tensor,
    packed: PackedWeight,
    bias: Tensor | None,
    settings: Settings,
    sum_so_far: Tensor | None,
    activation: Activation | None,
) -> Tensor:
    if not can_fuse(tensor):
        return _convolve_unfused(tensor, packed.weight, bias, settings, sum_so_far, activation)
    tensor = tensor.contiguous(memory_format=LAYOUT)
    weight = packed.for_convolution(tensor, settings)
    name = _fused_name(activation, added=sum_so_far is not None)
    numbers = list(activation.numbers) if activation and name else []
    where = (settings.padding, settings.stride, settings.dilation, settings.groups)
    if sum_so_far is None:
        answer = torch.ops.mkldnn._convolution_pointwise(tensor, weight, bias, *where, name or "none", numbers, "")
    else:
        answer = torch.ops.mkldnn._convolution_pointwise_(
            sum_so_far, tensor, weight, bias, *where, "add", None, name, numbers, None
        )
    return answer if name or not activation else activation.apply_(answer)


def _fused_name(activation: Activation | None, *, added: bool) -> str | None:
    """Return oneDNN's name of an activation that can be fused; when adding to a sum, torch allows only ReLU."""
    if activation is None or (added and activation.name != "relu"):
        return None
    return activation.fused_name


def deconvolve(tensor: Tensor, packed: PackedWeight, bias: Tensor | None, settings: Settings, extra: Zyx) -> Tensor:
    if not can_fuse(tensor):
        return functional.conv_transpose3d(
            tensor, packed.weight, bias, settings.stride, settings.padding, extra, settings.groups, settings.dilation
        )
    tensor = tensor.contiguous(memory_format=LAYOUT)
    weight: Any = packed.for_deconvolution(tensor, settings, extra)
    where = (settings.padding, extra, settings.stride, settings.dilation, settings.groups)
    answer: Tensor = torch.ops.mkldnn._convolution_transpose_pointwise(tensor, weight, bias, *where, "none", [], "")
    return answer


def _convolve_unfused(
    tensor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    settings: Settings,
    sum_so_far: Tensor | None,
    activation: Activation | None,
) -> Tensor:
    answer = functional.conv3d(
        tensor, weight, bias, settings.stride, settings.padding, settings.dilation, settings.groups
    )
    if sum_so_far is not None:
        answer = sum_so_far.add_(answer)
    return activation.apply_(answer) if activation else answer
