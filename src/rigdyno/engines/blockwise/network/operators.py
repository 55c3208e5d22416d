"""Convert calls of torch's operators to layers; the table LAYERS at the end maps operators to functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rigdyno.engines.blockwise.boxes import Zyx, zyx
from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.calls import OperatorCall, Ref
from rigdyno.engines.blockwise.network.layers.concatenation import Concatenation
from rigdyno.engines.blockwise.network.layers.convolution import Convolution, ConvolutionSum, Deconvolution
from rigdyno.engines.blockwise.network.layers.layer import AXES, Layer
from rigdyno.engines.blockwise.network.layers.pointwise import IN_PLACE, Activation, Pointwise
from rigdyno.engines.blockwise.network.layers.pooling import Pooling, Resizing
from rigdyno.engines.blockwise.network.maps import MAP_DIMENSIONS, Maps, NotUnderstood, WrongShape

MAP = object()  # placeholder for a map among the arguments of an operator

# Arguments of each operator in order, with torch's defaults; ... if there is no default.
_TWO: dict[str, Any] = {"self": ..., "other": ...}

ARITHMETIC: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "add": (torch.add, _TWO),
    "sub": (torch.sub, _TWO),
    "rsub": (torch.rsub, _TWO),
    "mul": (torch.mul, _TWO),
    "div": (torch.div, _TWO),
    "maximum": (torch.maximum, _TWO),
    "minimum": (torch.minimum, _TWO),
    "exp": (torch.exp, {"self": ...}),
    "neg": (torch.neg, {"self": ...}),
    "abs": (torch.abs, {"self": ...}),
    "mish": (functional.mish, {"self": ...}),
    "selu": (torch.selu, {"self": ...}),
    "hardsigmoid": (functional.hardsigmoid, {"self": ...}),
    "clamp": (torch.clamp, {"self": ..., "min": None, "max": None}),
    "softplus": (functional.softplus, {"self": ..., "beta": 1.0, "threshold": 20.0}),
}

# Other arguments are accepted with these values only.
USUAL_VALUES = {"alpha": 1, "rounding_mode": None}

COPIES = {"clone", "contiguous", "lift_fresh_copy"}

NO_OPERATION = {*COPIES, "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "alias", "detach"}

VIEWS = {"slice"}

ACTIVATION_DEFAULTS: dict[str, dict[str, float]] = {
    "leaky_relu": {"negative_slope": 0.01},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0},
    "elu": {"alpha": 1.0},
}

Built = tuple[Layer, list[Ref]]

CHANNELS = (1, 1 - MAP_DIMENSIONS)  # the dimension of channels, counted from either end

TO_THE_END = 2**62  # torch writes the end of x[:, 2:] as at least this number


def _build_arithmetic(maps: Maps, call: OperatorCall) -> tuple[Pointwise, list[Ref]]:
    compute, parameters = ARITHMETIC[call.plain_name]
    given = {**parameters, **call.arguments}
    if any(
        name not in parameters and (name not in USUAL_VALUES or value != USUAL_VALUES[name])
        for name, value in given.items()
    ):
        raise NotUnderstood(f"the network uses {call.operator} in an unusual way")
    values = [given[name] for name in parameters]
    refs = [value for value in values if maps.is_map(value)]
    if not refs and call.in_place:
        raise NotUnderstood("the network changes its own buffers; call .eval() on it before exporting it")
    if not refs:
        raise NotUnderstood("the network computes some of its weights")
    fixed = [MAP if maps.is_map(value) else _require_uniform(maps, value) for value in values]
    width = _broadcast_channels([maps.channels(ref) for ref in refs], fixed)
    return Pointwise(width, call.plain_name, partial(_call_with_maps, compute, fixed), len(refs)), refs


def _require_uniform(maps: Maps, value: Any) -> Any:
    if value is None or isinstance(value, (int, float)):
        return value
    constant = maps.find_constant(value)
    if constant is None:
        raise NotUnderstood("the network computes with something that is neither a map nor a number")
    if constant.numel() == 1:
        return constant.reshape(())
    per_channel = constant.dim() in (len(AXES) + 1, MAP_DIMENSIONS) and constant.numel() == constant.shape[-4]
    if not per_channel:
        raise NotUnderstood("the network uses constants that differ from voxel to voxel")
    return constant


def _broadcast_channels(widths: list[int], fixed: list[Any]) -> int:
    """Return the channels of the result; a map of one channel is broadcast, as in torch."""
    constants = [int(value.shape[-4]) for value in fixed if isinstance(value, Tensor) and value.dim()]
    widest = max(widths + constants)
    if set(widths + constants) - {1, widest}:
        raise NotUnderstood("the network combines maps with different numbers of channels")
    return widest


def _call_with_maps(compute: Callable[..., Tensor], fixed: list[Any], *maps: Tensor) -> Tensor:
    remaining = iter(maps)
    return compute(*[next(remaining) if value is MAP else value for value in fixed])


def _build_convolution(maps: Maps, call: OperatorCall) -> Built:
    given = call.arguments
    weight, bias = maps.find_constant(given["weight"]), maps.find_constant(given.get("bias"))
    if weight is None or weight.dim() != MAP_DIMENSIONS:
        raise NotUnderstood("the network has a convolution that isn't three-dimensional")
    stride, dilation = _three(given.get("stride", 1), 1), _three(given.get("dilation", 1), 1)
    padding, groups = given.get("padding", 0), _require_integer(given.get("groups", 1), 1)
    part: Convolution | Deconvolution
    if given.get("transposed") or call.plain_name == "conv_transpose3d":
        extra, inputs = _three(given.get("output_padding", 0), 0), weight.shape[0]
        part = Deconvolution(weight, bias, stride, _three(padding, 0), extra, dilation, groups)
        _require_no_gaps(part)
    else:
        inputs = weight.shape[1] * groups
        part = Convolution(weight, bias, stride, _padding(padding, weight, dilation), dilation, groups)
    fits = inputs == maps.channels(given["input"]) and not weight.shape[0] % groups
    if not fits or not weight.numel() or (bias is not None and bias.shape != (part.channels,)):
        raise BadNetwork("the network has a convolution whose weights don't fit its input")
    return ConvolutionSum((part,)), [given["input"]]


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


def _build_batch_norm(maps: Maps, call: OperatorCall) -> Built:
    given = call.arguments
    mean, variance = maps.find_constant(given.get("running_mean")), maps.find_constant(given.get("running_var"))
    if given.get("training") or mean is None or variance is None:
        raise BadNetwork(
            "the network's BatchNorm has no running statistics, or is in training mode; call .eval() on it"
        )
    weight, bias = maps.find_constant(given.get("weight")), maps.find_constant(given.get("bias"))
    _require_width(maps.channels(given["input"]), mean, variance, weight, bias)
    factor = torch.rsqrt(variance.double() + given["eps"]) * (1.0 if weight is None else weight)
    summand = (0.0 if bias is None else bias) - mean * factor
    affine = (factor.float(), summand.float())
    layer = Pointwise(len(mean), "batch_norm", partial(_apply_affine, affine), affine=affine)
    return layer, [given["input"]]


def _apply_affine(figures: tuple[Tensor, Tensor], tensor: Tensor) -> Tensor:
    factor, summand = (figure.view(1, -1, 1, 1, 1) for figure in figures)
    return tensor * factor + summand


def _build_block_norm(maps: Maps, call: OperatorCall) -> Built:
    """Convert InstanceNorm and GroupNorm, whose mean and variance are those of the block, not of the volume."""
    given = call.arguments
    ref, width = given["input"], maps.channels(given["input"])
    weight, bias = maps.find_constant(given.get("weight")), maps.find_constant(given.get("bias"))
    groups = width
    if call.plain_name == "group_norm":
        groups = _require_integer(given["num_groups"], 1)
    elif not given.get("use_input_stats", True):
        return _build_batch_norm(maps, OperatorCall(call.operator, {**given, "training": False}, call.result))
    _require_width(width, weight, bias)
    if width % groups:
        raise BadNetwork(f"the network has a norm of {groups} groups over {width} channels")
    norm = partial(_group_norm, groups, weight, bias, float(given.get("eps", 1e-5)))
    return Pointwise(width, call.plain_name, norm, sees_block=True), [ref]


def _group_norm(groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, tensor: Tensor) -> Tensor:
    return functional.group_norm(tensor, groups, weight, bias, eps)


def _require_width(width: int, *figures: Tensor | None) -> None:
    if any(figure is not None and figure.shape != (width,) for figure in figures):
        raise BadNetwork("the network has a norm whose weights don't fit its input")


def _build_activation(maps: Maps, call: OperatorCall) -> Built:
    name, given = call.plain_name, call.arguments
    if name == "gelu" and given.get("approximate", "none") != "none":
        raise NotUnderstood("the network uses an approximate GELU")
    if name == "elu" and (given.get("scale", 1) != 1 or given.get("input_scale", 1) != 1):
        raise NotUnderstood("the network uses an ELU with scales")
    numbers = tuple(float(given.get(key, usual)) for key, usual in ACTIVATION_DEFAULTS.get(name, {}).items())
    activation = Activation("hardtanh", (0.0, 6.0)) if name == "relu6" else Activation(name, numbers)
    ref = given["self"]
    return Pointwise(
        maps.channels(ref), activation.name, partial(_apply_activation, activation), activation=activation
    ), [ref]


def _apply_activation(activation: Activation, tensor: Tensor) -> Tensor:
    return activation.apply_(tensor.clone())


def _build_prelu(maps: Maps, call: OperatorCall) -> Built:
    ref, slope = call.arguments["self"], maps.find_constant(call.arguments["weight"])
    if slope is None or slope.numel() not in (1, maps.channels(ref)):
        raise BadNetwork("the network has a PReLU whose slopes don't fit its input")
    return Pointwise(maps.channels(ref), "prelu", partial(_apply_prelu, slope)), [ref]


def _apply_prelu(slope: Tensor, tensor: Tensor) -> Tensor:
    return functional.prelu(tensor, slope)


def _build_softmax(maps: Maps, call: OperatorCall) -> Built:
    ref = call.arguments["self"]
    if call.arguments["dim"] not in CHANNELS:
        raise NotUnderstood("the network applies a softmax to something other than channels")
    return Pointwise(maps.channels(ref), "softmax", partial(torch.softmax, dim=1)), [ref]


def _build_pooling(maps: Maps, call: OperatorCall) -> Built:
    given = call.arguments
    ref, window = given["self"], _three(given["kernel_size"], 1)
    stride = _three(given["stride"], 1) if given.get("stride") else window
    usual = _three(given.get("padding", 0)) == (0, 0, 0) and _three(given.get("dilation", 1)) == (1, 1, 1)
    if not usual or given.get("ceil_mode") or given.get("divisor_override"):
        raise NotUnderstood(f"the network uses {call.operator} with padding, dilation or rounding up")
    return Pooling(maps.channels(ref), window, stride, call.plain_name == "max_pool3d"), [ref]


def _build_resizing(maps: Maps, call: OperatorCall) -> Built:
    if call.arguments.get("align_corners"):
        raise NotUnderstood("the network resizes with aligned corners, which depends on a block's size")
    ref = call.arguments["input"]
    factor = call.arguments.get("scale_factors")
    if not factor:
        before, after = maps.shape(ref.name), maps.shape(call.result)
        factor = [after[axis] / before[axis] for axis in AXES]
    if any(number != int(number) or number < 1 for number in factor):
        raise WrongShape("the network resizes by a factor that isn't a whole number")
    whole = _three([int(number) for number in factor], 1)
    return Resizing(maps.channels(ref), whole, call.plain_name == "upsample_trilinear3d"), [ref]


def _build_concatenation(maps: Maps, call: OperatorCall) -> Built:
    refs = call.arguments["tensors"]
    if call.arguments.get("dim", 0) not in CHANNELS or not all(maps.is_map(ref) for ref in refs):
        raise NotUnderstood("the network concatenates something other than channels of maps")
    return Concatenation(tuple(maps.channels(ref) for ref in refs)), refs


def _build_slice(maps: Maps, call: OperatorCall) -> Built:
    ref, given = call.arguments["self"], call.arguments
    if given.get("dim", 0) not in CHANNELS:
        raise NotUnderstood("the network slices maps along z, y or x")
    chosen = slice(given.get("start"), given.get("end"), given.get("step", 1))
    width = len(range(maps.channels(ref))[chosen])
    return Pointwise(width, "channels", partial(_take_channels, chosen)), [ref]


def _take_channels(chosen: slice, tensor: Tensor) -> Tensor:
    return tensor[:, chosen].clone()  # a view would keep all channels alive


def cuts_nothing(call: OperatorCall) -> bool:
    """Return whether a slice keeps everything: x[:, 1:3] is traced as slices along all dimensions."""
    given, end = call.arguments, call.arguments.get("end")
    from_first = call.plain_name == "slice" and given.get("start") in (None, 0) and given.get("step", 1) == 1
    return from_first and (end is None or (isinstance(end, int) and end >= TO_THE_END))


def _three(value: Any, least: int | None = None) -> Zyx:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return zyx(_require_integer(number, least) for number in (values * 3 if len(values) == 1 else values))


def _require_integer(value: Any, least: int | None = None) -> int:
    if not isinstance(value, int) or (least is not None and value < least):
        raise NotUnderstood("the network has a stride, a kernel or a padding that makes no sense")
    return value


LAYERS: dict[str, Callable[[Maps, OperatorCall], Built]] = {
    "conv3d": _build_convolution,
    "conv_transpose3d": _build_convolution,
    "convolution": _build_convolution,
    "batch_norm": _build_batch_norm,
    "instance_norm": _build_block_norm,
    "group_norm": _build_block_norm,
    "max_pool3d": _build_pooling,
    "avg_pool3d": _build_pooling,
    "upsample_nearest3d": _build_resizing,
    "upsample_trilinear3d": _build_resizing,
    "cat": _build_concatenation,
    "slice": _build_slice,
    "softmax": _build_softmax,
    "prelu": _build_prelu,
    **dict.fromkeys([*IN_PLACE, "relu6"], _build_activation),
    **dict.fromkeys(ARITHMETIC, _build_arithmetic),
}
