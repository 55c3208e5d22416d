"""Networks are loaded by name, and mistakes give one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting, BlockwiseError
from rigdyno.engines.blockwise.network.loading import load_model, load_weights, make_model
from rigdyno.engines.blockwise.network.understood import Understood
from rigdyno.engines.blockwise.network.unet import UNet3d

pytestmark = pytest.mark.usefixtures("one_thread", "_restore_path")
SMALL = {"features": "2,3", "norm": "false"}


@pytest.fixture
def _restore_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width: int = 2, bias: bool = True) -> None:
        super().__init__()
        self.body = nn.Conv3d(1, width, 3, padding=1, bias=bias)
    def forward(self, x):
        return torch.sigmoid(self.body(x))

def build(width=3):
    return Net(width)

torch.manual_seed(0)
ready = Net()
number = 3
anything = dict
empty = lambda: {}
broken = lambda: [][0]
"""


def run(model, block: Tensor) -> Tensor:
    size = tuple(block.shape[2:])
    return model.run(block, size, (0, 0, 0))


@pytest.fixture
def own(tmp_path) -> Path:
    path = tmp_path / "random.py"  # the name of a module of Python's library
    path.write_text(OWN)
    return path


def refused(kind: type[BlockwiseError] | type[MissingExtra], text: str, **options) -> str:
    with pytest.raises(kind) as caught:
        load_model(text, **options)
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 500
    return line


def test_unet3d_takes_settings():
    loaded = load_model("unet3d", settings={**SMALL, "factor": "(1,3,3)", "out_channels": "2", "activation": "elu"})
    assert isinstance(loaded.model, Understood)
    assert (loaded.model.channels_in, loaded.model.channels_out) == (1, 2)
    assert loaded.model.step == (1, 3, 3)
    assert loaded.model.bounded
    assert any("random weights" in remark for remark in loaded.remarks)


def test_unet3d_takes_two_channels_without_sigmoid():
    model = load_model("unet3d", settings={**SMALL, "sigmoid": "False"}, channels=2).model
    assert model.channels_in == 2
    assert not model.bounded


def test_random_weights_are_the_same_every_time():
    one, other = (load_model("unet3d", settings=SMALL).model.identity() for _ in range(2))
    assert one == other


@pytest.mark.parametrize(("name", "channels"), [("Net", 2), ("build", 3), ("ready", 2)])
def test_a_network_is_loaded_from_a_python_file(own, name, channels):
    import random

    loaded = load_model(f"{own}:{name}")
    assert loaded.model.channels_out == channels
    assert loaded.remarks == ()
    assert sys.modules["random"] is random


def test_a_python_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "beside_the_network.py").write_text(OWN)
    (tmp_path / "colorsys.py").write_text("raise AssertionError('this is Python's')")
    (tmp_path / "net.py").write_text("import colorsys\nfrom beside_the_network import build")
    assert load_model(f"{tmp_path}/net.py:build").model.channels_out == 3


def test_settings_are_passed_to_a_python_file(own):
    assert load_model(f"{own}:Net", settings={"width": "5", "bias": "false"}).model.channels_out == 5


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("Net", {"wdith": "5"}, "no setting 'wdith'; it has width, bias"),
        ("Net", {"width": "five"}, "can't be made"),
        ("ready", {"width": "5"}, "an instance already"),
        ("broken", {}, "IndexError"),
    ],
)
def test_wrong_settings_for_a_python_file_are_refused(own, name, settings, said):
    assert said in refused(BadSetting, f"{own}:{name}", settings=settings)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Nett", "no network named 'Nett'"),
        ("number", "no network named"),
        ("empty", "a dict, not"),
        ("anything", "can't be called to make a network"),
    ],
)
def test_wrong_names_in_a_python_file_are_refused(own, name, said):
    assert said in refused(BadNetwork, f"{own}:{name}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("def build(:\n", "SyntaxError"),
        ("import nothing_of_this_name\n", "ModuleNotFoundError"),
        ("raise ValueError('line one\\nline two')\n", "ValueError: line one"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("raise RuntimeError\n", "RuntimeError"),
    ],
)
def test_a_python_file_that_cant_be_imported_is_refused(tmp_path, content, said):
    (tmp_path / "net.py").write_text(content)
    assert said in refused(BadNetwork, f"{tmp_path}/net.py:build")


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("unet", BadNetwork, "no model named 'unet'; try unet3d"),
        ("", BadNetwork, "no model named"),
        ("net.py", BadNetwork, "no model named"),
        ("nowhere.py:build", BadNetwork, "there is no file nowhere.py"),
        ("nowhere.pt2", BadNetwork, "there is no file nowhere.pt2"),
        ("monai:BasicUNet", MissingExtra, "pip install monai"),
    ],
)
def test_unknown_names_are_refused(text, kind, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "monai", None)
    assert said in refused(kind, text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"featurs": "1,2"}, "no setting 'featurs'"),
        ({"features": "a,b"}, "can't be made"),
        ({"activation": "rleu"}, "no activation named 'rleu'"),
        ({"features": "[1"}, "can't be made"),
    ],
)
def test_wrong_settings_for_unet3d_are_refused(settings, said):
    assert said in refused(BadSetting, "unet3d", settings=settings)


def test_an_exported_file_takes_no_settings_and_no_weights():
    assert "inside" in refused(BadSetting, "net.pt2", settings={"width": "3"})
    assert "inside" in refused(BadSetting, "net.pt2", weights=Path("weights.pt"))


def small() -> UNet3d:
    torch.manual_seed(7)
    return UNet3d(features=(2, 3), norm=False)


def test_weights_are_read_in_every_form(tmp_path):
    module = small().eval()
    state = module.state_dict()
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"epoch": 3, "optimizer": {"lr": 0.1}, "state_dict": state}, tmp_path / "nested.ckpt")
    torch.save({"model": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "parallel.pth")
    save_file(state, tmp_path / "safe.safetensors")
    block = torch.randn(1, 1, 6, 4, 8)
    with torch.no_grad():
        wanted = module(block)
    for path in sorted(tmp_path.iterdir()):
        loaded = load_model("unet3d", settings=SMALL, weights=path)
        assert loaded.remarks == ()
        torch.testing.assert_close(run(loaded.model, block), wanted)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_weights_that_would_run_code_are_refused(tmp_path):
    for name in ("bomb.pt", "bomb.safetensors"):
        torch.save({"state_dict": small().state_dict(), "more": Bomb(tmp_path / "was run")}, tmp_path / name)
        assert "doesn't hold weights" in refused(BadNetwork, "unet3d", settings=SMALL, weights=tmp_path / name)
    assert not (tmp_path / "was run").exists()


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, b"\x80\x02."])
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_files_that_hold_no_weights_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadNetwork, match="doesn't hold weights"):
        load_weights(tmp_path / name)


@pytest.mark.parametrize("content", [[1, 2], {"a": 1.0}, {0: torch.zeros(1)}, torch.zeros(3)])
def test_files_that_hold_no_state_dict_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(BadNetwork, match="isn't a state dict"):
        load_weights(tmp_path / "weights.pt")


def test_missing_weights_are_refused(tmp_path):
    for name in ("nowhere.pt", "nowhere.safetensors"):
        with pytest.raises(BadNetwork, match="there is no file"):
            load_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("last.bias"), "lacks last.bias"),
        (lambda state: state.update(more=torch.zeros(1)), "has more, which the network lacks"),
        (lambda state: state.update({"last.bias": torch.zeros(7)}), r"last.bias is (7,), not (1,)"),
        (lambda state: state.clear(), "lacks"),
        (lambda state: state.update({"last.bias": torch.zeros(1, device="meta")}), "doesn't fit"),
    ],
)
def test_weights_that_dont_fit_are_refused(tmp_path, change, said):
    state = dict(small().state_dict())
    change(state)
    torch.save(state, tmp_path / "weights.pt")
    assert said in refused(BadNetwork, "unet3d", settings=SMALL, weights=tmp_path / "weights.pt")


class Two(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x


class TakesTwo(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("line one\nline two")


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (Two(), "returns 2 tensors"),
        (TakesTwo(), "can't be run"),
        (Flat(), "must return one tensor"),
        (Fails(), "can't be run"),
        (nn.Conv3d(2, 1, 3, padding=1), "can't be run"),
        (nn.Conv3d(1, 1, 3, stride=2, padding=1), "one for each"),
        (nn.Conv3d(1, 1, 4), "one for each"),
        (nn.AdaptiveAvgPool3d(1), "one for each"),
    ],
)
def test_networks_without_one_output_per_voxel_are_refused(network, said):
    with pytest.raises(BadNetwork, match=said) as caught:
        make_model(network, 1)
    assert str(caught.value).isprintable()


def test_a_network_of_thirds_is_traced_on_a_multiple_of_three():
    """32 isn't a multiple of 3: on a cube of 32 the network would resize by 3.2."""

    class Thirds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv3d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            small = self.body(nn.functional.max_pool3d(x, (1, 3, 3)))
            return nn.functional.interpolate(small, size=x.shape[2:]) + x

    loaded = make_model(Thirds(), 1)
    assert isinstance(loaded.model, Understood)
    assert loaded.model.step == (1, 3, 3)
