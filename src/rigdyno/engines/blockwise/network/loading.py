"""From what the user wrote to a network; weights are data, and never run code.

unet3d                    ours; --set features=32,64,128
monai:BasicUNet           a network of MONAI; --set features=32,32,64,128,256,32
net.py:build              a class, a function or a module in a file of the user's own
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

from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting, BlockwiseError, MissingExtra
from rigdyno.engines.blockwise.network.archive import read_archive
from rigdyno.engines.blockwise.network.calls import first_line
from rigdyno.engines.blockwise.network.maps import NotUnderstood, WrongShape
from rigdyno.engines.blockwise.network.model import Model
from rigdyno.engines.blockwise.network.opaque import Opaque
from rigdyno.engines.blockwise.network.saving import settings_in, settings_in_header
from rigdyno.engines.blockwise.network.tracing import traced
from rigdyno.engines.blockwise.network.understood import Understood
from rigdyno.engines.blockwise.network.unet import UNet3d

TRACED_ON: tuple[Zyx, ...] = ((32, 32, 32), (64, 64, 64), (27, 81, 81), (81, 81, 81), (96, 96, 96))
SEED = 0
INSIDE = ("state_dict", "model_state_dict", "model", "network")  # where checkpoints keep their weights
KINDS = "unet3d, monai:NAME, FILE.pt2 or FILE.py:NAME"


@dataclass(frozen=True)
class Loaded:
    model: Model
    name: str
    remarks: tuple[str, ...] = ()


def load_model(
    text: str, *, settings: Mapping[str, str] | None = None, weights: Path | None = None, channels: int = 1
) -> Loaded:
    settings = dict(settings or {})
    if text.endswith(".pt2"):
        if weights or settings:
            raise BadSetting(f"{text} has its weights and settings inside; --weights and --set are for other models")
        return Loaded(_understood_archive(Path(text)), Path(text).name)
    torch.manual_seed(SEED)
    saved = read_weights(weights) if weights else Weights({})
    module = _module(text, settings, channels, saved.settings)
    if weights:
        fill(module, saved.tensors, weights)
    loaded = model_of(module, channels)
    remarks = list(loaded.remarks)
    if not weights and ".py:" not in text:
        remarks.append("random weights: good for timing, the answer means nothing; --weights FILE gives trained ones")
    return Loaded(loaded.model, text, tuple(remarks))


def model_of(module: nn.Module, channels: int) -> Loaded:
    """Trimmed and fused where all layers are known, else as it is."""
    name = type(module).__name__
    try:
        return Loaded(_understood(module, channels), name)
    except NotUnderstood as error:
        why = str(error)
    return Loaded(_opaque(module, channels), name, (f"{why}: nothing is trimmed or fused, which is slower",))


def _understood(module: nn.Module, channels: int) -> Understood:
    """Traced on the first shape that will do: some networks want multiples of 3, some of 32."""
    for shape in TRACED_ON[:-1]:
        try:
            return Understood(traced(module, channels, shape))
        except WrongShape:
            continue
    return Understood(traced(module, channels, TRACED_ON[-1]))


def _opaque(module: nn.Module, channels: int) -> Opaque:
    try:
        return Opaque(module, channels)
    except BadNetwork:
        raise
    except Exception as error:
        raise BadNetwork(f"the network can't be run: {first_line(error)}") from error


@dataclass(frozen=True)
class Weights:
    tensors: dict[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)  # of our U-Net, where it was saved by `--save`


def load_weights(path: Path) -> dict[str, Tensor]:
    return read_weights(path).tensors


def read_weights(path: Path) -> Weights:
    """Tensors by name; a checkpoint that would need to run code is refused."""
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadNetwork(f"there is no file {path}") from None
    except Exception as error:
        if isinstance(error, MissingExtra):
            raise
        raise BadNetwork(
            f"{path} holds something else than weights, or is truncated; save model.state_dict() ({first_line(error)})"
        ) from None
    settings = settings_in(content)
    for key in INSIDE:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise BadNetwork(f"{path} isn't a state dict; save model.state_dict()")
    return Weights(content, settings)


def _understood_archive(path: Path) -> Understood:
    calls = read_archive(path)
    try:
        return Understood(calls)
    except NotUnderstood as error:
        raise BadNetwork(f"{path}: {error}; give the network as Python instead (net.py:Net)") from None
    except BlockwiseError as error:
        raise BadNetwork(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError, RuntimeError) as error:
        raise BadNetwork(f"{path} isn't understood ({type(error).__name__}: {first_line(error)})") from None


def _module(text: str, settings: dict[str, str], channels: int, saved: Mapping[str, Any]) -> nn.Module:
    if text == "unet3d":
        return _made(UNet3d, {"in_channels": channels, **saved}, settings, text)
    if text.startswith("monai:"):
        return _made(
            _monai(text.removeprefix("monai:")),
            {"spatial_dims": 3, "in_channels": channels, "out_channels": 1},
            settings,
            text,
        )
    file, colon, name = text.rpartition(":")
    if colon and file.endswith(".py"):
        return _own(Path(file), name, settings)
    raise BadNetwork(f"no model named '{text}'; try {KINDS}")


def _made(make: Any, defaults: dict[str, Any], settings: dict[str, str], name: str) -> nn.Module:
    try:
        known = inspect.signature(make).parameters
    except ValueError:
        raise BadNetwork(f"{name} is nothing that a network could be made by") from None
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for key in settings:
        if key not in known and not open_ended:
            raise BadSetting(f"{name} has no setting '{key}'; it has {', '.join(known)}")
    values = {key: value for key, value in defaults.items() if key in known or open_ended}
    values |= {key: _value(value) for key, value in settings.items()}
    try:
        made = make(**values)
    except (Exception, SystemExit) as error:
        raise BadSetting(f"{name} can't be made: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise BadNetwork(f"{name} gave a {type(made).__name__}, not a torch.nn.Module")
    return made


def _value(text: str) -> Any:
    """Numbers, words and lists of them: 32,64 is (32, 64), true is True."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _monai(name: str) -> Any:
    try:
        from monai.networks import nets
    except ImportError:
        raise MissingExtra("MONAI isn't installed; pip install monai") from None
    made = getattr(nets, name, None)
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise BadNetwork(f"MONAI has no network named '{name}'; try monai:BasicUNet")
    return made


def _own(path: Path, name: str, settings: dict[str, str]) -> nn.Module:
    # Under a name of our own: a file called random.py must not stand in for Python's.
    name_here = f"rigdyno_network_{re.sub(r'[^a-zA-Z0-9]', '_', path.stem)}"
    specification = importlib.util.spec_from_file_location(name_here, path)
    if not path.is_file() or specification is None or specification.loader is None:
        raise BadNetwork(f"there is no file {path}")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name_here] = module
    # What lies beside it can be imported; last, for a random.py there must not stand in for Python's either.
    sys.path.append(str(path.parent.resolve()))
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name_here]
        raise BadNetwork(f"{path} can't be imported: {type(error).__name__}: {first_line(error)}") from error
    found = getattr(module, name, None)
    if isinstance(found, nn.Module):
        if settings:
            raise BadSetting(f"{path}:{name} is made already; --set {next(iter(settings))} has nothing to set")
        return found
    if not callable(found):
        raise BadNetwork(f"{path} has no network named '{name}'")
    return _made(found, {}, settings, f"{path}:{name}")


def fill(module: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    try:
        module.load_state_dict(_matching(module, weights, path))
    except RuntimeError as error:
        raise BadNetwork(f"{path} doesn't fit the network: {first_line(error)}") from None


def _matching(module: nn.Module, weights: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    own = module.state_dict()
    if not set(own) & set(weights):
        weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}  # as DDP saves them
    lacking, surplus = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
    if lacking or surplus:
        what = f"lacks {lacking[0]}" if lacking else f"has {surplus[0]}, which the network lacks"
        raise BadNetwork(f"{path} doesn't fit the network: it {what}; check --model and --set")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(own[name].shape)}"
            raise BadNetwork(f"{path} doesn't fit the network: {name} is {shapes}; check --model and --set")
    return weights


def _safetensors(path: Path) -> Weights:
    try:
        from safetensors import safe_open
        from safetensors.torch import load_file
    except ImportError:
        raise MissingExtra("reading .safetensors needs safetensors; pip install 'rigdyno[volume]'") from None
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    return Weights(load_file(path), settings_in_header(header))
