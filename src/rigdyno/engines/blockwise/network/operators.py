"""Which layer each of torch's operators becomes; one function for a kind, and the table of their names at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Zyx, zyx
from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.arithmetic import ARITHMETIC, arithmetic
from rigdyno.engines.blockwise.network.calls import Call, Ref
from rigdyno.engines.blockwise.network.layers.activation import IN_PLACE, Activation
from rigdyno.engines.blockwise.network.layers.concatenation import Concatenation
from rigdyno.engines.blockwise.network.layers.convolution import Convolution
from rigdyno.engines.blockwise.network.layers.deconvolution import Deconvolution
from rigdyno.engines.blockwise.network.layers.layer import AXES, Layer
from rigdyno.engines.blockwise.network.layers.pointwise import Pointwise
from rigdyno.engines.blockwise.network.layers.pooling import Pooling
from rigdyno.engines.blockwise.network.layers.resizing import Resizing
from rigdyno.engines.blockwise.network.layers.weighted import Weighted
from rigdyno.engines.blockwise.network.maps import MAP_DIMENSIONS, Maps, NotUnderstood, WrongShape

Built = tuple[Layer, list[Ref]]
CHANNELS = (1, 1 - MAP_DIMENSIONS)  # as a dimension
TO_THE_END = 2**62  # how torch writes the end of x[:, 2:]


def _convolution(maps: Maps, call: Call) -> Built:
    given = call.arguments
    weight, bias = maps.constant(given["weight"]), maps.constant(given.get("bias"))
    if weight is None or weight.dim() != MAP_DIMENSIONS:
        raise NotUnderstood("the network has a convolution that isn't three-dimensional")
    stride, dilation = _three(given.get("stride", 1), 1), _three(given.get("dilation", 1), 1)
    padding, groups = given.get("padding", 0), _whole(given.get("groups", 1), 1)
    part: Convolution | Deconvolution
    if given.get("transposed") or call.plain_name == "conv_transpose3d":
        extra, inputs = _three(given.get("output_padding", 0), 0), weight.shape[0]
        part = Deconvolution(weight, bias, stride, _three(padding, 0), extra, dilation, groups)
        _require_no_gaps(part)
    else:
        inputs = weight.shape[1] * groups
        part = Convolution(weight, bias, stride, _padding(padding, weight, dilation), dilation, groups)
    fits = inputs == maps.width(given["input"]) and not weight.shape[0] % groups
    if not fits or not weight.numel() or (bias is not None and bias.shape != (part.channels,)):
        raise BadNetwork("the network has a convolution whose weights don't fit its input")
    return Weighted((part,)), [given["input"]]


def _require_no_gaps(part: Deconvolution) -> None:
    gaps = any(part.stride[axis] > part.reach(axis) for axis in AXES)
    beyond = any(part.output_padding[axis] > part.padding[axis] for axis in AXES)
    if gaps or beyond:
        raise NotUnderstood("the network has a transposed convolution that leaves voxels empty")


def _padding(padding: Any, weight: Tensor, dilation: Zyx) -> Zyx:
    reach = [(int(weight.shape[axis + 2]) - 1) * dilation[axis] for axis in AXES]
    if padding == "same":
        if any(length % 2 for length in reach):
            raise NotUnderstood("the network has an even kernel with padding='same'")
        return zyx(length // 2 for length in reach)
    numbers = (0, 0, 0) if padding == "valid" else _three(padding, 0)
    if any(numbers[axis] > reach[axis] for axis in AXES):
        raise NotUnderstood("the network has a convolution with more padding than its kernel reaches")
    return numbers


def _batch_norm(maps: Maps, call: Call) -> Built:
    given = call.arguments
    mean, variance = maps.constant(given.get("running_mean")), maps.constant(given.get("running_var"))
    if given.get("training") or mean is None or variance is None:
        raise BadNetwork("the network's BatchNorm has no running figures, or is in training mode; call .eval() on it")
    weight, bias = maps.constant(given.get("weight")), maps.constant(given.get("bias"))
    _require_width(maps.width(given["input"]), mean, variance, weight, bias)
    factor = torch.rsqrt(variance.double() + given["eps"]) * (1.0 if weight is None else weight)
    summand = (0.0 if bias is None else bias) - mean * factor
    affine = (factor.float(), summand.float())
    layer = Pointwise(len(mean), "batch_norm", partial(_affine, affine), affine=affine)
    return layer, [given["input"]]


def _affine(figures: tuple[Tensor, Tensor], tensor: Tensor) -> Tensor:
    factor, summand = (figure.view(1, -1, 1, 1, 1) for figure in figures)
    return tensor * factor + summand


def _block_norm(maps: Maps, call: Call) -> Built:
    """Their mean and variance are of the block, not of the volume: the answer depends on how it is cut."""
    given = call.arguments
    ref, width = given["input"], maps.width(given["input"])
    weight, bias = maps.constant(given.get("weight")), maps.constant(given.get("bias"))
    groups = width
    if call.plain_name == "group_norm":
        groups = _whole(given["num_groups"], 1)
    elif not given.get("use_input_stats", True):
        return _batch_norm(maps, Call(call.operator, {**given, "training": False}, call.result))
    _require_width(width, weight, bias)
    if width % groups:
        raise BadNetwork(f"the network has a norm of {groups} groups over {width} channels")
    norm = partial(_normed, groups, weight, bias, float(given.get("eps", 1e-5)))
    return Pointwise(width, call.plain_name, norm, sees_block=True), [ref]


def _normed(groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, tensor: Tensor) -> Tensor:
    return functional.group_norm(tensor, groups, weight, bias, eps)


def _require_width(width: int, *figures: Tensor | None) -> None:
    if any(figure is not None and figure.shape != (width,) for figure in figures):
        raise BadNetwork("the network has a norm whose figures don't fit its input")


def _activation(maps: Maps, call: Call) -> Built:
    name, given = call.plain_name, call.arguments
    if name == "gelu" and given.get("approximate", "none") != "none":
        raise NotUnderstood("the network uses an approximate GELU")
    if name == "elu" and (given.get("scale", 1) != 1 or given.get("input_scale", 1) != 1):
        raise NotUnderstood("the network uses an ELU with scales of its own")
    numbers = tuple(float(given.get(key, usual)) for key, usual in NUMBERS.get(name, {}).items())
    activation = Activation("hardtanh", (0.0, 6.0)) if name == "relu6" else Activation(name, numbers)
    ref = given["self"]
    return Pointwise(maps.width(ref), activation.name, partial(_apply, activation), activation=activation), [ref]


def _apply(activation: Activation, tensor: Tensor) -> Tensor:
    return activation.apply_(tensor.clone())


def _prelu(maps: Maps, call: Call) -> Built:
    ref, slope = call.arguments["self"], maps.constant(call.arguments["weight"])
    if slope is None or slope.numel() not in (1, maps.width(ref)):
        raise BadNetwork("the network has a PReLU whose slopes don't fit its input")
    return Pointwise(maps.width(ref), "prelu", partial(_with_slope, slope)), [ref]


def _with_slope(slope: Tensor, tensor: Tensor) -> Tensor:
    return functional.prelu(tensor, slope)


def _softmax(maps: Maps, call: Call) -> Built:
    ref = call.arguments["self"]
    if call.arguments["dim"] not in CHANNELS:
        raise NotUnderstood("the network takes a softmax over something else than channels")
    return Pointwise(maps.width(ref), "softmax", partial(torch.softmax, dim=1)), [ref]


def _pooling(maps: Maps, call: Call) -> Built:
    given = call.arguments
    ref, window = given["self"], _three(given["kernel_size"], 1)
    stride = _three(given["stride"], 1) if given.get("stride") else window
    usual = _three(given.get("padding", 0)) == (0, 0, 0) and _three(given.get("dilation", 1)) == (1, 1, 1)
    if not usual or given.get("ceil_mode") or given.get("divisor_override"):
        raise NotUnderstood(f"the network uses {call.operator} with padding, dilation or rounding up")
    return Pooling(maps.width(ref), window, stride, call.plain_name == "max_pool3d"), [ref]


def _resizing(maps: Maps, call: Call) -> Built:
    if call.arguments.get("align_corners"):
        raise NotUnderstood("the network resizes with aligned corners, which depends on a block's size")
    ref = call.arguments["input"]
    factor = call.arguments.get("scale_factors")
    if not factor:
        before, after = maps.shape(ref.name), maps.shape(call.result)
        factor = [after[axis] / before[axis] for axis in AXES]
    if any(number != int(number) or number < 1 for number in factor):
        raise WrongShape("the network resizes by something else than a whole factor")
    whole = _three([int(number) for number in factor], 1)
    return Resizing(maps.width(ref), whole, call.plain_name == "upsample_trilinear3d"), [ref]


def _concatenation(maps: Maps, call: Call) -> Built:
    refs = call.arguments["tensors"]
    if call.arguments.get("dim", 0) not in CHANNELS or not all(maps.is_map(ref) for ref in refs):
        raise NotUnderstood("the network concatenates something else than channels of maps")
    return Concatenation(tuple(maps.width(ref) for ref in refs)), refs


def _slice(maps: Maps, call: Call) -> Built:
    ref, given = call.arguments["self"], call.arguments
    if given.get("dim", 0) not in CHANNELS:
        raise NotUnderstood("the network cuts maps along space")
    chosen = slice(given.get("start"), given.get("end"), given.get("step", 1))
    width = len(range(maps.width(ref))[chosen])
    return Pointwise(width, "channels", partial(_channels, chosen)), [ref]


def _channels(chosen: slice, tensor: Tensor) -> Tensor:
    return tensor[:, chosen].clone()  # a view would keep all channels alive


def nothing_is_cut(call: Call) -> bool:
    """x[:, 1:3] also comes as cuts from the first to the last along the other dimensions."""
    given, end = call.arguments, call.arguments.get("end")
    from_first = call.plain_name == "slice" and given.get("start") in (None, 0) and given.get("step", 1) == 1
    return from_first and (end is None or (isinstance(end, int) and end >= TO_THE_END))


def _three(value: Any, least: int | None = None) -> Zyx:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return zyx(_whole(number, least) for number in (values * 3 if len(values) == 1 else values))


def _whole(value: Any, least: int | None = None) -> int:
    if not isinstance(value, int) or (least is not None and value < least):
        raise NotUnderstood("the network has a stride, a kernel or a padding that makes no sense")
    return value


COPIES = {"clone", "contiguous", "lift_fresh_copy"}
NOTHING = {*COPIES, "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "alias", "detach"}
VIEWS = {"slice"}
NUMBERS: dict[str, dict[str, float]] = {
    "leaky_relu": {"negative_slope": 0.01},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0},
    "elu": {"alpha": 1.0},
}
LAYERS: dict[str, Callable[[Maps, Call], Built]] = {
    "conv3d": _convolution,
    "conv_transpose3d": _convolution,
    "convolution": _convolution,
    "batch_norm": _batch_norm,
    "instance_norm": _block_norm,
    "group_norm": _block_norm,
    "max_pool3d": _pooling,
    "avg_pool3d": _pooling,
    "upsample_nearest3d": _resizing,
    "upsample_trilinear3d": _resizing,
    "cat": _concatenation,
    "slice": _slice,
    "softmax": _softmax,
    "prelu": _prelu,
    **dict.fromkeys([*IN_PLACE, "relu6"], _activation),
    **dict.fromkeys(ARITHMETIC, arithmetic),
}
