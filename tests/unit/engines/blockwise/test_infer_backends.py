"""Backends agree with each other, and the fastest is chosen, including its preparation."""

import json
import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from blockwise_networks import randomise_norms
from infer_cases import export_network, read_stored, single_thread
from torch import nn
from volumes_on_disk import numbers, zarr3

from rigdyno.engines.blockwise import (
    BadNetwork,
    BadSetting,
    Inference,
    Job,
    MissingExtra,
    TooLittleMemory,
    WontResume,
    backends,
)
from rigdyno.engines.blockwise.backend_choice import SampleBlock, choose_backend, make_backend
from rigdyno.engines.blockwise.backends import compile as compile_backend
from rigdyno.engines.blockwise.backends.compile import Compiled
from rigdyno.engines.blockwise.backends.torch import Eager
from rigdyno.engines.blockwise.network.loading import make_model
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.blockwise.normalising import Normalisation
from rigdyno.engines.blockwise.planning import Plan

SIZE, HALO = (6, 9, 4), (4, 2, 8)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return randomise_norms(UNet3d(2, 3, features=(4, 8), sigmoid=False))


@pytest.fixture(scope="module")
def model(module):
    with single_thread():
        return make_model(module, 2).model


def make_block(model, size=SIZE, halo=HALO):
    shape = (model.channels_in, *model.read_box(size, halo).shape)
    return np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)


def relative_error(answer, truth):
    return float(np.abs(answer - truth).max() / (truth.max() - truth.min()))


def test_torch_computes_the_original_network(model, module):
    backend = Eager(model, "cpu")
    for size, halo in ((SIZE, HALO), ((1, 1, 1), (8, 8, 8)), ((12, 8, 10), (0, 0, 0))):
        block = make_block(model, size, halo)
        answer = backend.predict(block, size, halo)
        assert answer.shape == (3, *size)
        assert answer.dtype == np.float32
        assert answer.flags.c_contiguous
        assert relative_error(answer, model.predict_reference(block, size, halo)) < 1e-5


def test_compile_agrees_and_prepares_a_shape_once(monkeypatch):
    """The network is as small as possible: the compiler is slow with any network."""
    model = make_model(nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.Sigmoid()), 1).model
    block, backend = make_block(model, (4, 5, 6), (1, 1, 1)), Compiled(model, "cpu")
    assert backend.one_shape
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # otherwise torch starts a pool of processes
    for _ in range(2):
        answer = backend.predict(block, (4, 5, 6), (1, 1, 1))
        assert np.abs(answer - model.predict_reference(block, (4, 5, 6), (1, 1, 1))).max() < 1e-6
        assert len(backend._ready) == 1


def test_an_error_of_the_compiler_is_one_line(model, monkeypatch):
    def run(*_):
        raise AssertionError("something deep inside\nand pages of reasons")

    monkeypatch.setattr(model, "run", run)
    with pytest.raises(BadNetwork, match=r"torch\.compile can't run the network on blocks of 6x9x4: \S.*$"):
        Compiled(model, "cpu").predict(make_block(model), SIZE, HALO)


@dataclass
class ManualClock:
    """A clock that only backends advance: once by their preparation, and each time by their step."""

    at: float = 0.0

    def __call__(self) -> float:
        return self.at


@dataclass
class Fakes:
    """Fake backends by name, with their costs and errors."""

    clock: ManualClock = field(default_factory=ManualClock)
    kinds: dict[str, type] = field(default_factory=dict)

    def add(self, name, *, preparation=0.0, step=1.0, off=0.0, why=None, fails=None):
        clock = self.clock

        class Backend:
            one_shape = False

            def __init__(self, model, device):
                self.model, self.device, self.prepared = model, device, False

            @staticmethod
            def why_not(device):
                return why

            def predict(self, block, size, halo):
                if fails:
                    raise fails
                clock.at += step + (0.0 if self.prepared else preparation)
                self.prepared = True
                truth = self.model.predict_reference(block, size, halo)
                return truth + np.float32(off * (truth.max() - truth.min()))

        self.kinds[name] = Backend


@pytest.fixture
def fakes(monkeypatch):
    fakes = Fakes()
    monkeypatch.setattr(backends, "list_names", lambda: sorted(fakes.kinds))
    monkeypatch.setattr(backends, "load_backend", lambda name: fakes.kinds[name])
    return fakes


def choose(fakes, model, *, seconds_of_torch, wanted="auto", device="cpu"):
    """Choose a backend for a volume that takes torch `seconds_of_torch`, if the sample takes it one second."""
    sample = SampleBlock(make_block(model), SIZE, HALO)
    products = int(model.products(SIZE, HALO) * seconds_of_torch)
    return choose_backend(wanted, model, device, sample, products, fakes.clock)


@pytest.mark.parametrize(
    ("seconds", "winner"), [(2_000, "torch"), (5_000, "quick"), (100_000, "quicker")],
)  # fmt: skip
def test_preparation_counts_against_the_size_of_the_volume(seconds, winner, fakes, model):
    fakes.add("torch")
    fakes.add("quick", preparation=2_000, step=0.5)
    fakes.add("quicker", preparation=10_000, step=0.4)
    choice = choose(fakes, model, seconds_of_torch=seconds)
    assert choice.trial.name == winner
    assert choice.remarks == ()
    preparation, step = {"torch": (0, 1.0), "quick": (2_000, 0.5), "quicker": (10_000, 0.4)}[winner]
    assert choice.trial.preparation_seconds == pytest.approx(preparation)
    assert choice.trial.seconds(10 * model.products(SIZE, HALO)) == pytest.approx(preparation + 10 * step)


def test_a_small_volume_uses_torch_without_trying_others(fakes, model):
    fakes.add("torch")
    fakes.add("quick", preparation=1e9, step=1e-6)
    choice = choose(fakes, model, seconds_of_torch=1_400)
    assert choice.trial.name == "torch"
    assert choice.remarks == ("quick wasn't tried: preparing it takes longer than it could save on this volume",)
    assert fakes.clock.at < 10


def test_a_backend_that_is_wrong_is_not_used(fakes, model):
    fakes.add("torch", off=5e-5)
    fakes.add("wrong", step=0.01, off=2e-3)
    choice = choose(fakes, model, seconds_of_torch=10_000)
    assert choice.trial.name == "torch"
    assert re.fullmatch(r"wrong isn't used: it is off by 0\.00[12] of the output range", choice.remarks[0])
    with pytest.raises(BadNetwork, match=r"--backend wrong is off by .*; try --backend torch"):
        choose(fakes, model, seconds_of_torch=10, wanted="wrong")


def test_a_backend_that_returns_nan_is_not_used(fakes, model):
    fakes.add("torch")
    fakes.add("wrong", step=0.01, off=np.nan)
    assert choose(fakes, model, seconds_of_torch=10_000).trial.name == "torch"


def test_an_error_of_torch_itself_is_reported(fakes, model):
    """torch is used all the same if there is nothing else."""
    fakes.add("torch", off=2e-3)
    for wanted in ("auto", "torch"):
        choice = choose(fakes, model, seconds_of_torch=10, wanted=wanted)
        assert choice.trial.name == "torch"
        assert "which is more than rounding" in choice.remarks[0]
    fakes.add("right", step=3.0)
    assert choose(fakes, model, seconds_of_torch=10_000).trial.name == "right"


def test_a_backend_that_fails_is_left_out_with_the_reason(fakes, model):
    fakes.add("torch")
    fakes.add("broken", fails=BadNetwork("it can't"))
    fakes.add("greedy", fails=TooLittleMemory("too much"))
    choice = choose(fakes, model, seconds_of_torch=10_000)
    assert choice.trial.name == "torch"
    assert choice.remarks == ("broken isn't used: it can't", "greedy isn't used: too much")
    with pytest.raises(BadNetwork, match="it can't"):
        choose(fakes, model, seconds_of_torch=10_000, wanted="broken")


def test_a_backend_that_is_not_installed_is_left_out(fakes, model):
    fakes.add("torch")
    fakes.add("absent", why="it isn't installed; pip install 'rigdyno[absent]'")
    choice = choose(fakes, model, seconds_of_torch=10_000)
    assert (choice.trial.name, choice.remarks) == ("torch", ())
    with pytest.raises(MissingExtra, match=r"pip install 'rigdyno\[absent\]'"):
        choose(fakes, model, seconds_of_torch=10, wanted="absent")


def test_unknown_names_are_refused(model):
    assert backends.list_names() == ["compile", "openvino", "torch"]
    with pytest.raises(BadSetting, match="no backend named 'tensorrt'; there are auto, compile, openvino, torch"):
        make_backend("tensorrt", model, "cpu")


def test_openvino_says_how_to_get_it(model):
    if backends.load_backend("openvino").why_not("cpu") is None:
        pytest.skip("OpenVINO is installed here")
    with pytest.raises(MissingExtra, match=r"pip install 'rigdyno\[openvino\]'"):
        make_backend("openvino", model, "cpu")


def test_compile_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(compile_backend.shutil, "which", lambda name: None)
    assert "install g++" in Compiled.why_not("cpu")
    assert Compiled.why_not("cuda:0") is None


def test_rounding_in_a_nearly_constant_sample_is_no_error():
    """Rounding errors are relative to the values, not to the small differences between them."""
    flat = UNet3d(features=(4, 4), sigmoid=False)
    nn.init.constant_(flat.last.weight, 1e-9)
    nn.init.constant_(flat.last.bias, 7.0)
    model = make_model(flat.eval(), 1).model
    choice = choose_backend("torch", model, "cpu", SampleBlock(make_block(model), SIZE, HALO), 10**6)
    assert choice.remarks == ()


def test_a_network_that_returns_nan_is_refused(model):
    block = np.full_like(make_block(model), np.nan)
    with pytest.raises(BadNetwork, match="isn't finite"):
        choose_backend("torch", model, "cpu", SampleBlock(block, SIZE, HALO), 10**6)


OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError("no kernel\nand pages of reasons"), BadNetwork, "torch can't run .* blocks of 6x9x4: no kernel$"),
        (MemoryError(), TooLittleMemory, "allow less with --memory"),
        (RuntimeError(OUT_OF_MEMORY), TooLittleMemory, "allow less with --memory"),
    ],
)
def test_an_error_of_torch_is_one_line(error, kind, words, model, monkeypatch):
    def run(*_):
        raise error

    monkeypatch.setattr(model, "run", run)
    with pytest.raises(kind, match=words):
        Eager(model, "cpu").predict(make_block(model), SIZE, HALO)


class OneShape(Eager):
    """A backend that is prepared for one shape, like compilers."""

    one_shape = True
    asked: ClassVar[list[object]] = []

    def predict(self, block, size, halo):
        self.asked.append((block.shape, size, halo))
        return super().predict(block, size, halo)


@pytest.mark.parametrize("block", [None, (6, 8, 10)])
def test_a_backend_of_one_shape_gets_blocks_of_one_shape(block, module, tmp_path, monkeypatch):
    """Blocks at the end of the volume are computed as large as the others, and cropped afterwards."""
    kinds = {"torch": Eager, "stiff": OneShape}
    monkeypatch.setattr(backends, "list_names", lambda: sorted(kinds))
    monkeypatch.setattr(backends, "load_backend", lambda name: kinds[name])
    source = zarr3(tmp_path / "in.zarr", numbers(2, 13, 21, 17, dtype=np.uint8), (1, 8, 8, 8))
    job = Job(
        source=str(source), output="", model=export_network(tmp_path / "net.pt2", module, 2), halo="exact", block=block,
        dtype="float16",
    )  # fmt: skip
    answers = {}
    for name in kinds:
        OneShape.asked.clear()
        done = Inference(replace(job, output=str(tmp_path / name), backend=name)).run()
        assert done.plan.alike is (name == "stiff")
        answers[name] = read_stored(tmp_path / name)
    timed, again, *run = OneShape.asked
    assert timed == again
    assert {size for _, size, _ in run} == {done.plan.block}
    assert len(run) == done.plan.blocks == done.counts.done
    assert np.abs(answers["stiff"] - answers["torch"]).max() < 1e-3 * np.abs(answers["torch"]).max()


PLAN = Plan(
    shape=(1, 2, 3), channels=1, block=(4, 5, 6), halo=(0, 1, 2), exact_halo=None, halo_error=None,
    halo_mean_error=None, halo_places=0, backend="torch", alike=False, blocks=1, recomputation=1.0, products=7,
    memory_bytes=8, output_bytes=9, seconds=0.5, normalisation=Normalisation((1.0,), (2.0,), "given"), remarks=("a",),
)  # fmt: skip


def test_a_plan_is_the_same_after_json():
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


@pytest.mark.parametrize("damage", [{"shape": 3}, {"normalisation": {}}, {"later": 1}, None])
def test_a_damaged_plan_is_refused(damage):
    stored = None if damage is None else {**PLAN.to_json(), **damage}
    with pytest.raises(WontResume, match=r"can't be read .* --overwrite"):
        Plan.from_json(stored)
