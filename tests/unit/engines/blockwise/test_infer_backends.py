"""Who does the multiplying: all agree, and the quickest is taken, its preparation counted."""

import json
import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from blockwise_networks import lively
from infer_cases import exported, single_thread, stored
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
from rigdyno.engines.blockwise.backends import compile as compile_backend
from rigdyno.engines.blockwise.backends.compile import Compiled
from rigdyno.engines.blockwise.backends.torch import Eager
from rigdyno.engines.blockwise.choosing import Sample, choose_backend, made
from rigdyno.engines.blockwise.network.loading import model_of
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.blockwise.normalising import Normalisation
from rigdyno.engines.blockwise.planning import Plan

SIZE, HALO = (6, 9, 4), (4, 2, 8)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return lively(UNet3d(2, 3, features=(4, 8), sigmoid=False))


@pytest.fixture(scope="module")
def model(module):
    with single_thread():
        return model_of(module, 2).model


def block_of(model, size=SIZE, halo=HALO):
    shape = (model.channels_in, *model.read_box(size, halo).shape)
    return np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)


def off(answer, truth):
    return float(np.abs(answer - truth).max() / (truth.max() - truth.min()))


def test_torch_is_the_network_as_it_was_written(model, module):
    backend = Eager(model, "cpu")
    for size, halo in ((SIZE, HALO), ((1, 1, 1), (8, 8, 8)), ((12, 8, 10), (0, 0, 0))):
        block = block_of(model, size, halo)
        answer = backend.predict(block, size, halo)
        assert answer.shape == (3, *size)
        assert answer.dtype == np.float32
        assert answer.flags.c_contiguous
        assert off(answer, model.reference(block, size, halo)) < 1e-5


def test_compile_agrees_and_prepares_a_shape_once(monkeypatch):
    """The smallest network there is: the compiler takes its time whatever it is given."""
    model = model_of(nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.Sigmoid()), 1).model
    block, backend = block_of(model, (4, 5, 6), (1, 1, 1)), Compiled(model, "cpu")
    assert backend.one_shape
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # or else torch starts a pool of processes
    for _ in range(2):
        answer = backend.predict(block, (4, 5, 6), (1, 1, 1))
        assert np.abs(answer - model.reference(block, (4, 5, 6), (1, 1, 1))).max() < 1e-6
        assert len(backend._ready) == 1


def test_what_cant_be_compiled_is_one_line(model, monkeypatch):
    def run(*_):
        raise AssertionError("something deep inside\nand pages of reasons")

    monkeypatch.setattr(model, "run", run)
    with pytest.raises(BadNetwork, match=r"torch\.compile can't run the network on blocks of 6x9x4: \S.*$"):
        Compiled(model, "cpu").predict(block_of(model), SIZE, HALO)


@dataclass
class Scripted:
    """A clock that only backends move: by their preparation at first, by their step each time."""

    at: float = 0.0

    def __call__(self) -> float:
        return self.at


@dataclass
class Fakes:
    """Backends by name, with what they cost and how they calculate."""

    clock: Scripted = field(default_factory=Scripted)
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
                truth = self.model.reference(block, size, halo)
                return truth + np.float32(off * (truth.max() - truth.min()))

        self.kinds[name] = Backend


@pytest.fixture
def fakes(monkeypatch):
    fakes = Fakes()
    monkeypatch.setattr(backends, "names", lambda: sorted(fakes.kinds))
    monkeypatch.setattr(backends, "backend", lambda name: fakes.kinds[name])
    return fakes


def chosen(fakes, model, *, seconds_of_torch, wanted="auto", device="cpu"):
    """Over a volume for which a torch that takes one second for the sample would need so many."""
    sample = Sample(block_of(model), SIZE, HALO)
    products = int(model.products(SIZE, HALO) * seconds_of_torch)
    return choose_backend(wanted, model, device, sample, products, fakes.clock)


@pytest.mark.parametrize(
    ("seconds", "winner"), [(2_000, "torch"), (5_000, "quick"), (100_000, "quicker")],
)  # fmt: skip
def test_preparation_counts_against_the_size_of_the_volume(seconds, winner, fakes, model):
    fakes.add("torch")
    fakes.add("quick", preparation=2_000, step=0.5)
    fakes.add("quicker", preparation=10_000, step=0.4)
    choice = chosen(fakes, model, seconds_of_torch=seconds)
    assert choice.trial.name == winner
    assert choice.remarks == ()
    preparation, step = {"torch": (0, 1.0), "quick": (2_000, 0.5), "quicker": (10_000, 0.4)}[winner]
    assert choice.trial.preparation_seconds == pytest.approx(preparation)
    assert choice.trial.seconds(10 * model.products(SIZE, HALO)) == pytest.approx(preparation + 10 * step)


def test_on_a_small_volume_nothing_else_is_prepared(fakes, model):
    fakes.add("torch")
    fakes.add("quick", preparation=1e9, step=1e-6)
    choice = chosen(fakes, model, seconds_of_torch=1_400)
    assert choice.trial.name == "torch"
    assert choice.remarks == ("quick wasn't tried: preparing it takes longer than it could save on this volume",)
    assert fakes.clock.at < 10


def test_who_disagrees_isnt_used_however_quick(fakes, model):
    fakes.add("torch", off=5e-5)
    fakes.add("wrong", step=0.01, off=2e-3)
    choice = chosen(fakes, model, seconds_of_torch=10_000)
    assert choice.trial.name == "torch"
    assert re.fullmatch(r"wrong isn't used: it is off by 0\.00[12] of the answer's range", choice.remarks[0])
    with pytest.raises(BadNetwork, match=r"--backend wrong is off by .*; try --backend torch"):
        chosen(fakes, model, seconds_of_torch=10, wanted="wrong")


def test_nor_who_gives_what_is_no_number(fakes, model):
    fakes.add("torch")
    fakes.add("wrong", step=0.01, off=np.nan)
    assert chosen(fakes, model, seconds_of_torch=10_000).trial.name == "torch"


def test_torch_itself_is_doubted_aloud(fakes, model):
    """There is nothing else to turn to, but it is said."""
    fakes.add("torch", off=2e-3)
    for wanted in ("auto", "torch"):
        choice = chosen(fakes, model, seconds_of_torch=10, wanted=wanted)
        assert choice.trial.name == "torch"
        assert "which is more than rounding" in choice.remarks[0]
    fakes.add("right", step=3.0)
    assert chosen(fakes, model, seconds_of_torch=10_000).trial.name == "right"


def test_who_cant_prepare_is_left_out_with_the_reason(fakes, model):
    fakes.add("torch")
    fakes.add("broken", fails=BadNetwork("it can't"))
    fakes.add("greedy", fails=TooLittleMemory("too much"))
    choice = chosen(fakes, model, seconds_of_torch=10_000)
    assert choice.trial.name == "torch"
    assert choice.remarks == ("broken isn't used: it can't", "greedy isn't used: too much")
    with pytest.raises(BadNetwork, match="it can't"):
        chosen(fakes, model, seconds_of_torch=10_000, wanted="broken")


def test_who_isnt_installed_is_left_out_and_said_if_asked_for(fakes, model):
    fakes.add("torch")
    fakes.add("absent", why="it isn't installed; pip install 'rigdyno[absent]'")
    choice = chosen(fakes, model, seconds_of_torch=10_000)
    assert (choice.trial.name, choice.remarks) == ("torch", ())
    with pytest.raises(MissingExtra, match=r"pip install 'rigdyno\[absent\]'"):
        chosen(fakes, model, seconds_of_torch=10, wanted="absent")


def test_unknown_names(model):
    assert backends.names() == ["compile", "openvino", "torch"]
    with pytest.raises(BadSetting, match="no backend named 'tensorrt'; there are auto, compile, openvino, torch"):
        made("tensorrt", model, "cpu")


def test_openvino_says_how_to_get_it(model):
    if backends.backend("openvino").why_not("cpu") is None:
        pytest.skip("OpenVINO is installed here")
    with pytest.raises(MissingExtra, match=r"pip install 'rigdyno\[openvino\]'"):
        made("openvino", model, "cpu")


def test_compile_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(compile_backend.shutil, "which", lambda name: None)
    assert "install g++" in Compiled.why_not("cpu")
    assert Compiled.why_not("cuda:0") is None


def test_a_sample_that_is_nearly_the_same_everywhere_is_no_disagreement():
    """Rounding is a share of the values, not of the little that lies between them."""
    flat = UNet3d(features=(4, 4), sigmoid=False)
    nn.init.constant_(flat.last.weight, 1e-9)
    nn.init.constant_(flat.last.bias, 7.0)
    model = model_of(flat.eval(), 1).model
    choice = choose_backend("torch", model, "cpu", Sample(block_of(model), SIZE, HALO), 10**6)
    assert choice.remarks == ()


def test_an_answer_that_is_no_number_is_said(model):
    block = np.full_like(block_of(model), np.nan)
    with pytest.raises(BadNetwork, match="isn't finite"):
        choose_backend("torch", model, "cpu", Sample(block, SIZE, HALO), 10**6)


OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError("no kernel\nand pages of reasons"), BadNetwork, "torch can't run .* blocks of 6x9x4: no kernel$"),
        (MemoryError(), TooLittleMemory, "allow less with --memory"),
        (RuntimeError(OUT_OF_MEMORY), TooLittleMemory, "allow less with --memory"),
    ],
)
def test_what_torch_says_is_one_line(error, kind, words, model, monkeypatch):
    def run(*_):
        raise error

    monkeypatch.setattr(model, "run", run)
    with pytest.raises(kind, match=words):
        Eager(model, "cpu").predict(block_of(model), SIZE, HALO)


class Stiff(Eager):
    """Prepared for one shape, as compilers are."""

    one_shape = True
    asked: ClassVar[list[object]] = []

    def predict(self, block, size, halo):
        self.asked.append((block.shape, size, halo))
        return super().predict(block, size, halo)


@pytest.mark.parametrize("block", [None, (6, 8, 10)])
def test_blocks_for_a_backend_of_one_shape_are_alike(block, module, tmp_path, monkeypatch):
    """Those at the volume's end are computed as large as the others, and cut afterwards."""
    kinds = {"torch": Eager, "stiff": Stiff}
    monkeypatch.setattr(backends, "names", lambda: sorted(kinds))
    monkeypatch.setattr(backends, "backend", lambda name: kinds[name])
    source = zarr3(tmp_path / "in.zarr", numbers(2, 13, 21, 17, dtype=np.uint8), (1, 8, 8, 8))
    job = Job(
        source=str(source), output="", model=exported(tmp_path / "net.pt2", module, 2), halo="exact", block=block,
        dtype="float16",
    )  # fmt: skip
    answers = {}
    for name in kinds:
        Stiff.asked.clear()
        done = Inference(replace(job, output=str(tmp_path / name), backend=name)).run()
        assert done.plan.alike is (name == "stiff")
        answers[name] = stored(tmp_path / name)
    timed, again, *run = Stiff.asked
    assert timed == again
    assert {size for _, size, _ in run} == {done.plan.block}
    assert len(run) == done.plan.blocks == done.counts.done
    assert np.abs(answers["stiff"] - answers["torch"]).max() < 1e-3 * np.abs(answers["torch"]).max()


PLAN = Plan(
    shape=(1, 2, 3), channels=1, block=(4, 5, 6), halo=(0, 1, 2), exact_halo=None, halo_error=None,
    halo_mean_error=None, halo_places=0, backend="torch", alike=False, blocks=1, recomputation=1.0, products=7,
    memory_bytes=8, output_bytes=9, seconds=0.5, normalisation=Normalisation((1.0,), (2.0,), "given"), remarks=("a",),
)  # fmt: skip


def test_a_plan_survives_its_file():
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


@pytest.mark.parametrize("damage", [{"shape": 3}, {"normalisation": {}}, {"later": 1}, None])
def test_a_plan_of_another_kind_is_refused(damage):
    stored = None if damage is None else {**PLAN.to_json(), **damage}
    with pytest.raises(WontResume, match=r"isn't understood .* --overwrite"):
        Plan.from_json(stored)
