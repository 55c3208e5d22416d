"""The multiplying itself: oneDNN's fused kernels in channels-last order on CPUs, torch's own elsewhere.

oneDNN can add to a sum that exists and apply the activation in the same pass; torch.compile reaches it through these
operators, and calling them without compiling costs nothing to prepare.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.network.layers.activation import Activation

LAYOUT = torch.channels_last_3d


@dataclass(frozen=True)
class Settings:
    padding: Zyx
    stride: Zyx
    dilation: Zyx
    groups: int


@dataclass(eq=False)
class Packed:
    """A weight, and the order in which oneDNN wants it, made on first use."""

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


def fused(tensor: Tensor) -> bool:
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
    packed: Packed,
    bias: Tensor | None,
    settings: Settings,
    sum_so_far: Tensor | None,
    then: Activation | None,
) -> Tensor:
    if not fused(tensor):
        return _plain(tensor, packed.weight, bias, settings, sum_so_far, then)
    tensor = tensor.contiguous(memory_format=LAYOUT)
    weight = packed.for_convolution(tensor, settings)
    name = _fused_name(then, added=sum_so_far is not None)
    numbers = list(then.numbers) if then and name else []
    where = (settings.padding, settings.stride, settings.dilation, settings.groups)
    if sum_so_far is None:
        answer = torch.ops.mkldnn._convolution_pointwise(tensor, weight, bias, *where, name or "none", numbers, "")
    else:
        answer = torch.ops.mkldnn._convolution_pointwise_(
            sum_so_far, tensor, weight, bias, *where, "add", None, name, numbers, None
        )
    return answer if name or not then else then.apply_(answer)


def _fused_name(then: Activation | None, *, added: bool) -> str | None:
    """What can be done in the same pass: after adding to a sum, torch lets only this one through."""
    if then is None or (added and then.name != "relu"):
        return None
    return then.fused_name


def deconvolve(tensor: Tensor, packed: Packed, bias: Tensor | None, settings: Settings, extra: Zyx) -> Tensor:
    if not fused(tensor):
        return functional.conv_transpose3d(
            tensor, packed.weight, bias, settings.stride, settings.padding, extra, settings.groups, settings.dilation
        )
    tensor = tensor.contiguous(memory_format=LAYOUT)
    weight: Any = packed.for_deconvolution(tensor, settings, extra)
    where = (settings.padding, extra, settings.stride, settings.dilation, settings.groups)
    answer: Tensor = torch.ops.mkldnn._convolution_transpose_pointwise(tensor, weight, bias, *where, "none", [], "")
    return answer


def _plain(
    tensor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    settings: Settings,
    sum_so_far: Tensor | None,
    then: Activation | None,
) -> Tensor:
    answer = functional.conv3d(
        tensor, weight, bias, settings.stride, settings.padding, settings.dilation, settings.groups
    )
    if sum_so_far is not None:
        answer = sum_so_far.add_(answer)
    return then.apply_(answer) if then else answer
