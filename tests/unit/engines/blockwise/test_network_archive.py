"""Files of torch.export.save are read back exactly; hostile ones run no code and exhaust no memory."""

from __future__ import annotations

import json
import pickle
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from blockwise_networks import Level, ToSize, assert_close, expected, randomise_norms
from torch import Tensor, nn

from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.loading import load_model
from rigdyno.engines.blockwise.network.unet import UNet3d

pytestmark = pytest.mark.usefixtures("one_thread")
GRAPH = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
MOST_BYTES = 16 * 2**20


class Figures(nn.Module):
    """A network with buffers, persistent or not, constants, an unusual memory order and shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(4, 4, 3, padding=1)
        self.third = nn.Conv3d(4, 4, 3, padding=1)
        self.third.weight = self.second.weight
        self.register_buffer("kept", torch.linspace(0.5, 1, 4).view(1, 4, 1, 1, 1))
        self.register_buffer("lost", torch.tensor(0.5), persistent=False)
        self.register_buffer("spread", torch.tensor([2.0]).expand(4).view(1, 4, 1, 1, 1))
        self.to(memory_format=torch.channels_last_3d)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.relu_(self.second(self.first(x) * self.kept)) + self.lost + torch.tensor(0.25)
        return self.third(found * self.spread).clamp(max=0.5)


NETWORKS = {
    "u-net": lambda: UNet3d(features=(2, 4), activation="leaky_relu"),
    "figures": Figures,
    "to a size": lambda: Level(nn.MaxPool3d(2), nn.Conv3d(1, 3, 3, padding="same"), ToSize("trilinear"), "cat"),
    "transposed": lambda: nn.Sequential(
        nn.Conv3d(1, 4, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Dropout3d(),
        nn.ConvTranspose3d(4, 2, 2, 2),
        nn.Softmax(1),
    ),
    "half precision": lambda: nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ELU(0.5), nn.Conv3d(4, 1, 1)).bfloat16(),
}
DYNAMIC = {
    "static": None,
    "any": torch.export.Dim.AUTO,
    "named": [2 * torch.export.Dim(f"half_{axis}", min=2, max=512) for axis in "zyx"],
}


def saved(module: nn.Module, path: Path, dynamic=None) -> Path:
    example = torch.zeros(1, 1, 16, 12, 8, dtype=next(module.parameters()).dtype)
    sizes = dynamic if isinstance(dynamic, list) else [dynamic] * 3
    shapes = None if dynamic is None else ({axis + 2: size for axis, size in enumerate(sizes)},)
    torch.export.save(torch.export.export(module.eval(), (example,), dynamic_shapes=shapes), path)
    return path


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [*((name, "static") for name in NETWORKS), ("u-net", "any"), ("to a size", "any"), ("to a size", "named")],
)
@pytest.mark.filterwarnings("ignore:No complete tensor")
def test_a_saved_network_is_read_back(name, dynamic, tmp_path):
    torch.manual_seed(0)
    module = randomise_norms(NETWORKS[name]())
    model = load_model(str(saved(module, tmp_path / "net.pt2", DYNAMIC[dynamic]))).model
    size, halo = (5, 4, 6), (2, 4, 0)
    box = model.read_box((6, 4, 6), halo)
    block = torch.randn(1, 1, 6 + 4, 4 + 8, 6)
    start = [own + far for own, far in zip(box.start, halo, strict=True)]
    given = block[:, :, start[0] : start[0] + box.shape[0], start[1] : start[1] + box.shape[1], start[2] :]
    wanted = expected(module, block, size, halo, (0, 0, 0))
    assert_close(model.run(given, (6, 4, 6), halo)[:, :, :5], wanted)


def test_identity_changes_with_any_weight(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv3d(2, 1, 1)).bfloat16()
    first = load_model(str(saved(module, tmp_path / "a.pt2"))).model.identity()
    assert load_model(str(saved(module, tmp_path / "b.pt2"))).model.identity() == first
    with torch.no_grad():
        module[2].bias += 1
    changed = load_model(str(saved(module, tmp_path / "c.pt2"))).model.identity()
    module[1].negative_slope = 0.2
    assert len({first, changed, load_model(str(saved(module, tmp_path / "d.pt2"))).model.identity()}) == 3


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 1, 3, padding=1))
    return saved(network, tmp_path_factory.mktemp("archives") / "good.pt2")


Change = Callable[[bytes], bytes | None]


def tampered(good: Path, path: Path, changes: dict[str, Change | bytes]) -> str:
    """Return a copy of the file with some entries changed, removed (None) or added."""
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(path, "w") as new:
        entries = {name.split("/", 1)[1]: old.read(name) for name in old.namelist()}
        for name, change in changes.items():
            entries[name] = change if isinstance(change, bytes) else change(entries[name])
        for name, content in entries.items():
            if content is not None:
                new.writestr(f"good/{name}", content)
    return str(path)


def edited(edit: Callable[[dict], object]) -> Change:
    def change(content: bytes) -> bytes:
        document = json.loads(content)
        edit(document)
        return json.dumps(document).encode()

    return change


def refused(text: str) -> str:
    """Return the message of the refusal; check that it is one line and that little memory was used."""
    tracemalloc.start()
    try:
        with pytest.raises(BadNetwork) as caught:
            load_model(text)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    line = str(caught.value)
    assert line.isprintable()
    assert Path(text).name in line
    return line


def weight(**changes) -> Change:
    """Change the description of the first convolution's weight."""

    def edit(document: dict) -> None:
        entry = document["config"]["0.weight"]
        for key, value in changes.items():
            (entry if key in entry else entry["tensor_meta"])[key] = value

    return edited(edit)


def ints(*numbers: int) -> list[dict[str, int]]:
    return [{"as_int": number} for number in numbers]


def call(number: int, **changes) -> Change:
    """Change a call in the graph: its target, or one of its arguments."""

    def edit(document: dict) -> None:
        node = document["graph_module"]["graph"]["nodes"][number]
        node["target"] = changes.pop("target", node["target"])
        node["inputs"] += [{"name": key, "arg": value, "kind": 1} for key, value in changes.items()]

    return edited(edit)


HOSTILE: dict[str, tuple[dict[str, Change | bytes], str]] = {
    "no graph": ({GRAPH: lambda content: None}, "has no models/model.json"),
    "no weights": ({WEIGHTS: lambda content: None}, "has no data/weights"),
    "garbage": ({GRAPH: b"\xff\xfe{]"}, "isn't understood"),
    "another document": ({GRAPH: b"[1, 2, 3]"}, "isn't understood"),
    "nested": ({GRAPH: b"[" * 200_000 + b"]" * 200_000}, "RecursionError"),
    "a long number": ({GRAPH: b"1" * 10_000}, "isn't understood"),
    "an unknown operator": ({GRAPH: call(0, target="torch.ops.aten.cumsum.default")}, "aten.cumsum.default"),
    "an operator of the system": ({GRAPH: call(0, target="os.system")}, "os.system"),
    "a name that moves the cursor": ({GRAPH: call(0, target="torch.ops.aten.\x1b[2J\nrelu")}, "isn't known here"),
    "a stride of zero": ({GRAPH: call(0, stride={"as_ints": [0, 1, 1]})}, "makes no sense"),
    "a negative padding": ({GRAPH: call(0, padding={"as_ints": [-1, 1, 1]})}, "makes no sense"),
    "words for a stride": ({GRAPH: call(0, stride={"as_string": "abc"})}, "makes no sense"),
    "no groups": ({GRAPH: call(0, groups={"as_int": 0})}, "makes no sense"),
    "groups that don't fit": ({GRAPH: call(3, groups={"as_int": 3})}, "don't fit"),
    "a norm of something else": ({GRAPH: call(1, running_mean={"as_tensor": {"name": "p_3_bias"}})}, "don't fit"),
    "a tensor that isn't there": ({GRAPH: call(0, weight={"as_tensor": {"name": "nowhere"}})}, "weights"),
    "nothing to clamp by": ({GRAPH: call(2, target="torch.ops.aten.clamp.default")}, "clamp.default wrongly"),
    "an unknown type": ({WEIGHTS: weight(dtype=99)}, "type that isn't known"),
    "a pickle for a weight": ({WEIGHTS: weight(use_pickle=True)}, "pickle, which could run code"),
    "less than was said": ({"data/weights/weight_0": lambda content: content[:-4]}, "elements are stored"),
    "terabytes": ({WEIGHTS: weight(sizes=ints(2**20, 2**20, 1, 1, 1))}, "elements are stored"),
    "terabytes from one number": (
        {WEIGHTS: weight(sizes=ints(2**20, 2**20, 1, 1, 1), strides=ints(0, 0, 0, 0, 0))},
        "larger than its stored data",
    ),
    "more than can be counted": (
        {WEIGHTS: weight(sizes=ints(2**40, 2**40, 1, 1, 1), strides=ints(0, 0, 0, 0, 0))},
        "larger than its stored data",
    ),
    "out of bounds": ({WEIGHTS: weight(storage_offset={"as_int": 1})}, "elements are stored"),
    "before the beginning": ({WEIGHTS: weight(storage_offset={"as_int": -1})}, "elements are stored"),
    "backwards": ({WEIGHTS: weight(strides=ints(27, 27, 9, 3, -1))}, "elements are stored"),
    "another number of strides": ({WEIGHTS: weight(strides=ints(27, 1))}, "elements are stored"),
    "a path out of the file": ({WEIGHTS: weight(path_name="../../../../etc/passwd")}, "has no data/weights/"),
    "a path from the root": ({WEIGHTS: weight(path_name="/etc/passwd")}, "has no data/weights/"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused_in_one_line(what, good, tmp_path):
    changes, said = HOSTILE[what]
    assert said in refused(tampered(good, tmp_path / "bad.pt2", changes))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_pickles_in_a_file_are_never_run(good, tmp_path):
    bomb = pickle.dumps(Bomb(tmp_path / "was run"))
    everywhere = {"data/sample_inputs/model.pt": bomb, "data/weights/weight_0": bomb, "extra/more.pkl": bomb}
    assert "pickle" in refused(tampered(good, tmp_path / "bad.pt2", {**everywhere, WEIGHTS: weight(use_pickle=True)}))
    load_model(tampered(good, tmp_path / "fine.pt2", {"data/sample_inputs/model.pt": bomb}))
    assert not (tmp_path / "was run").exists()


def test_truncated_files_and_other_files_are_refused(good, tmp_path):
    content = good.read_bytes()
    for number, wrong in enumerate([b"", b"PK", content[: len(content) // 2], b"not a zip" * 100]):
        path = tmp_path / f"{number}.pt2"
        path.write_bytes(wrong)
        assert "truncated" in refused(str(path))
    assert "there is no file" in refused(str(tmp_path / "nowhere.pt2"))
    (tmp_path / "folder.pt2").mkdir()
    refused(str(tmp_path / "folder.pt2"))
    with zipfile.ZipFile(tmp_path / "empty.pt2", "w"):
        pass
    refused(str(tmp_path / "empty.pt2"))


def test_a_compressed_bomb_is_not_unpacked(good, tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.pt2", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("good/models/model.json", b" " * (40 * 2**20))
    assert "compressed" in refused(str(tmp_path / "bad.pt2"))


def test_files_with_random_changes_are_read_or_refused(good, tmp_path):
    """No other error occurs."""
    generator, content, path = random.Random(0), good.read_bytes(), tmp_path / "changed.pt2"
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(generator.choice([1, 20, 400])):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        path.write_bytes(changed)
        with suppress(BadNetwork):
            load_model(str(path))


def test_a_network_in_training_mode_is_refused(tmp_path):
    network = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.BatchNorm3d(2)).train()
    program = torch.export.export(network, (torch.zeros(1, 1, 8, 8, 8),))
    torch.export.save(program, tmp_path / "training.pt2")
    assert ".eval()" in refused(str(tmp_path / "training.pt2"))


def test_a_network_with_two_outputs_is_refused(tmp_path):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv3d(1, 1, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(x), x

    assert "returns 2 tensors" in refused(str(saved(Two(), tmp_path / "two.pt2")))
