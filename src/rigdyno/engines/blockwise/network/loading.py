"""Load the network that the user names, and its weights, which are read as data and never run code.

unet3d                    Rigdyno's U-Net; --set features=32,64,128
monai:BasicUNet           a network of MONAI; --set features=32,32,64,128,256,32
net.py:build              a class, a function or a module in the user's own file
net.pt2                   a file of torch.export.save
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting, BlockwiseError
from rigdyno.engines.blockwise.network.archive import read_archive
from rigdyno.engines.blockwise.network.calls import first_line
from rigdyno.engines.blockwise.network.maps import NotUnderstood, WrongShape
from rigdyno.engines.blockwise.network.model import Model
from rigdyno.engines.blockwise.network.opaque import Opaque
from rigdyno.engines.blockwise.network.tracing import trace_module
from rigdyno.engines.blockwise.network.understood import Understood
from rigdyno.engines.blockwise.network.unet import UNet3d, settings_in, settings_in_header

TRACED_ON: tuple[Zyx, ...] = ((32, 32, 32), (64, 64, 64), (27, 81, 81), (81, 81, 81), (96, 96, 96))

SEED = 0

WEIGHT_KEYS = ("state_dict", "model_state_dict", "model", "network")  # keys under which checkpoints store their weights

KINDS = "unet3d, monai:NAME, FILE.pt2 or FILE.py:NAME"


@dataclass(frozen=True)
class Loaded:
    model: Model
    name: str
    remarks: tuple[str, ...] = ()


def load_model(
    text: str, *, settings: Mapping[str, str] | None = None, weights: Path | None = None, channels: int = 1
) -> Loaded:
    """Load the network that `text` names, with random weights unless it has its own or a file is given."""
    settings = dict(settings or {})
    if text.endswith(".pt2"):
        if weights or settings:
            raise BadSetting(f"{text} has its weights and settings inside; --weights and --set are for other models")
        return Loaded(_load_archive(Path(text)), Path(text).name)
    torch.manual_seed(SEED)
    saved = read_weights(weights) if weights else Weights({})
    module = _load_module(text, settings, channels, saved.settings)
    if weights:
        load_weights_into(module, saved.tensors, weights)
    loaded = make_model(module, channels)
    remarks = list(loaded.remarks)
    if not weights and ".py:" not in text:
        remarks.append("random weights: good for timing, the answer means nothing; --weights FILE gives trained ones")
    return Loaded(loaded.model, text, tuple(remarks))


def make_model(module: nn.Module, channels: int) -> Loaded:
    """Return the network trimmed and fused if all its layers are known, else unchanged and with a remark."""
    name = type(module).__name__
    try:
        return Loaded(_trace_understood(module, channels), name)
    except NotUnderstood as error:
        why = str(error)
    return Loaded(_make_opaque(module, channels), name, (f"{why}: nothing is trimmed or fused, which is slower",))


def _trace_understood(module: nn.Module, channels: int) -> Understood:
    """Trace the network on the first shape that works: some networks need multiples of 3, some of 32."""
    for shape in TRACED_ON[:-1]:
        try:
            return Understood(trace_module(module, channels, shape))
        except WrongShape:
            continue
    return Understood(trace_module(module, channels, TRACED_ON[-1]))


def _make_opaque(module: nn.Module, channels: int) -> Opaque:
    try:
        return Opaque(module, channels)
    except BadNetwork:
        raise
    except Exception as error:
        raise BadNetwork(f"the network can't be run: {first_line(error)}") from error


@dataclass(frozen=True)
class Weights:
    tensors: dict[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)  # of our U-Net, if the file was written by `--save`


def load_weights(path: Path) -> dict[str, Tensor]:
    return read_weights(path).tensors


def read_weights(path: Path) -> Weights:
    """Read tensors by name; refuse a checkpoint that would have to run code."""
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadNetwork(f"there is no file {path}") from None
    except Exception as error:
        if isinstance(error, MissingExtra):
            raise
        raise BadNetwork(
            f"{path} doesn't hold weights, or is truncated; save model.state_dict() ({first_line(error)})"
        ) from None
    settings = settings_in(content)
    for key in WEIGHT_KEYS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise BadNetwork(f"{path} isn't a state dict; save model.state_dict()")
    return Weights(content, settings)


def _load_archive(path: Path) -> Understood:
    calls = read_archive(path)
    try:
        return Understood(calls)
    except NotUnderstood as error:
        raise BadNetwork(f"{path}: {error}; give the network as Python instead (net.py:Net)") from None
    except BlockwiseError as error:
        raise BadNetwork(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError, RuntimeError) as error:
        raise BadNetwork(f"{path} isn't understood ({type(error).__name__}: {first_line(error)})") from None


def _load_module(text: str, settings: dict[str, str], channels: int, saved: Mapping[str, Any]) -> nn.Module:
    if text == "unet3d":
        return _construct(UNet3d, {"in_channels": channels, **saved}, settings, text)
    if text.startswith("monai:"):
        return _construct(
            _find_monai(text.removeprefix("monai:")),
            {"spatial_dims": 3, "in_channels": channels, "out_channels": 1},
            settings,
            text,
        )
    file, colon, name = text.rpartition(":")
    if colon and file.endswith(".py"):
        return _load_from_file(Path(file), name, settings)
    raise BadNetwork(f"no model named '{text}'; try {KINDS}")


def _construct(make: Any, defaults: dict[str, Any], settings: dict[str, str], name: str) -> nn.Module:
    try:
        known = inspect.signature(make).parameters
    except ValueError:
        raise BadNetwork(f"{name} can't be called to make a network") from None
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for key in settings:
        if key not in known and not open_ended:
            raise BadSetting(f"{name} has no setting '{key}'; it has {', '.join(known)}")
    values = {key: value for key, value in defaults.items() if key in known or open_ended}
    values |= {key: _parse_value(value) for key, value in settings.items()}
    try:
        made = make(**values)
    except (Exception, SystemExit) as error:
        raise BadSetting(f"{name} can't be made: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise BadNetwork(f"{name} returned a {type(made).__name__}, not a torch.nn.Module")
    return made


def _parse_value(text: str) -> Any:
    """Parse numbers, words and lists of them: 32,64 is (32, 64), true is True."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _find_monai(name: str) -> Any:
    try:
        from monai.networks import nets
    except ImportError:
        raise MissingExtra("MONAI isn't installed; pip install monai") from None
    made = getattr(nets, name, None)
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise BadNetwork(f"MONAI has no network named '{name}'; try monai:BasicUNet")
    return made


def _load_from_file(path: Path, name: str, settings: dict[str, str]) -> nn.Module:
    # Under another name: a file called random.py must not replace Python's module.
    name_here = f"rigdyno_network_{re.sub(r'[^a-zA-Z0-9]', '_', path.stem)}"
    specification = importlib.util.spec_from_file_location(name_here, path)
    if not path.is_file() or specification is None or specification.loader is None:
        raise BadNetwork(f"there is no file {path}")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name_here] = module
    # The file may import its neighbours; at the end of the path, so that a random.py there doesn't replace Python's.
    sys.path.append(str(path.parent.resolve()))
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name_here]
        raise BadNetwork(f"{path} can't be imported: {type(error).__name__}: {first_line(error)}") from error
    found = getattr(module, name, None)
    if isinstance(found, nn.Module):
        if settings:
            raise BadSetting(f"{path}:{name} is an instance already; --set {next(iter(settings))} has nothing to set")
        return found
    if not callable(found):
        raise BadNetwork(f"{path} has no network named '{name}'")
    return _construct(found, {}, settings, f"{path}:{name}")


def load_weights_into(module: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load weights into a module; `path` is for messages."""
    try:
        module.load_state_dict(_match_names(module, weights, path))
    except RuntimeError as error:
        raise BadNetwork(f"{path} doesn't fit the network: {first_line(error)}") from None


def _match_names(module: nn.Module, weights: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    own = module.state_dict()
    if not set(own) & set(weights):
        weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}  # prefix that DDP adds
    lacking, surplus = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
    if lacking or surplus:
        what = f"lacks {lacking[0]}" if lacking else f"has {surplus[0]}, which the network lacks"
        raise BadNetwork(f"{path} doesn't fit the network: it {what}; check --model and --set")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(own[name].shape)}"
            raise BadNetwork(f"{path} doesn't fit the network: {name} is {shapes}; check --model and --set")
    return weights


def _read_safetensors(path: Path) -> Weights:
    try:
        from safetensors import safe_open
        from safetensors.torch import load_file
    except ImportError:
        raise MissingExtra("reading .safetensors needs safetensors; pip install 'rigdyno[volume]'") from None
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    return Weights(load_file(path), settings_in_header(header))
