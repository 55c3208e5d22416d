"""How a volume is cut: within memory, with the least to compute."""

import itertools
import re
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infer_cases import Fake, single_thread
from torch import nn

from rigdyno.engines.blockwise import BadSetting, TooLittleMemory
from rigdyno.engines.blockwise.boxes import Box, Zyx, zyx
from rigdyno.engines.blockwise.cutting import Buffers, Cut, _blocks, best_cut, given_cut, products
from rigdyno.engines.blockwise.grid import Grid
from rigdyno.engines.blockwise.network.loading import model_of
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.blockwise.normalising import normalisation
from rigdyno.engines.blockwise.planning import GROWTH, Asked, Planner
from rigdyno.engines.blockwise.volumes.reflect import read_reflected

BUFFERS = Buffers(read_voxel=5, written_voxel=9, program=1_000_000)
LENGTHS = st.integers(1, 3000)

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Reckoned:
    """A network that only knows what it takes, in two layers: the first sees the halo, the second doesn't."""

    step: Zyx = (2, 2, 2)
    multiplies: int = 100
    products_per_voxel: float = 150.0

    def read_box(self, size, halo):
        rounded = (-(-length // step) * step for length, step in zip(size, self.step, strict=True))
        return Box((0, 0, 0), zyx(rounded)).grown(halo)

    def products(self, size, halo):
        return self.multiplies * self.read_box(size, halo).voxels + self.multiplies // 2 * prod(size)

    def peak_bytes(self, size, halo):
        return 4 * self.read_box(size, halo).voxels + 16 * prod(size)


MODELS = {"plain": Reckoned(), "slices": Reckoned((1, 3, 3)), "odd": Reckoned((5, 7, 12))}


@pytest.fixture(scope="module")
def model():
    with single_thread():
        return model_of(UNet3d(features=(4, 8)), 1).model


@given(st.tuples(LENGTHS, LENGTHS, LENGTHS), st.tuples(*[st.integers(1, 700)] * 3), st.booleans())
def test_sizes_add_up_to_the_volume(shape, block, alike):
    cut = Cut(shape, block, (0, 0, 0), alike)
    sizes = cut.sizes()
    assert len(sizes) <= 8
    assert cut.blocks == sum(count for _, count in sizes) == len(Grid(shape, block))
    if alike:
        assert {size for size, _ in sizes} == {block}
    else:
        assert sum(prod(size) * count for size, count in sizes) == prod(shape)


@given(st.tuples(*[st.integers(1, 12)] * 3), st.tuples(*[st.integers(1, 13)] * 3))
def test_sizes_are_those_of_the_grid(shape, block):
    sizes = [[size] * count for size, count in Cut(shape, block, (0, 0, 0), False).sizes()]
    assert sorted(itertools.chain(*sizes)) == sorted(box.shape for box in Grid(shape, block))


def test_what_a_cut_takes_is_what_its_blocks_take(model):
    halo, cut = (8, 8, 8), Cut((70, 90, 65), (32, 64, 48), (8, 8, 8), alike=False)
    assert cut.products(model) == sum(model.products(box.shape, halo) for box in Grid(cut.shape, cut.block))
    largest = model.peak_bytes((32, 64, 48), halo)
    read = model.read_box((32, 64, 48), halo).voxels
    assert cut.memory(model, BUFFERS) == largest + 1_000_000 + 5 * read + 9 * 32 * 64 * 48
    alike = Cut(cut.shape, cut.block, halo, alike=True)
    assert alike.products(model) == 3 * 2 * 2 * model.products(cut.block, halo) > cut.products(model)
    assert alike.memory(model, BUFFERS) == cut.memory(model, BUFFERS)


def test_a_block_larger_than_the_volume_takes_what_the_volume_takes(model):
    cut = Cut((10, 10, 10), (64, 64, 64), (0, 0, 0), alike=False)
    assert cut.memory(model, BUFFERS) == Cut((10, 10, 10), (10, 10, 10), (0, 0, 0), alike=False).memory(model, BUFFERS)
    assert cut.recomputation(model) == pytest.approx(1.0, abs=0.3)


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(LENGTHS, LENGTHS, LENGTHS), st.integers(30_000_000, 10**9), st.booleans(), st.sampled_from(sorted(MODELS))
)
def test_never_more_than_memory_allows(shape, memory, alike, name):
    network, halo = MODELS[name], tuple(3 * step for step in MODELS[name].step)
    cut = best_cut(network, shape, halo, memory, BUFFERS, alike=alike)
    assert cut.memory(network, BUFFERS) <= memory
    assert all(edge % step == 0 for edge, step in zip(cut.block, network.step, strict=True))
    assert cut.alike is alike


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("shape", [(30, 40, 50), (7, 100, 60), (1, 1, 300)])
def test_the_least_to_compute_by_brute_force(name, alike, shape):
    network, halo = MODELS[name], tuple(2 * step for step in MODELS[name].step)
    everything = [Cut(shape, block, halo, alike) for block in _blocks(network, shape, alike)]
    for memory in (1_020_000, 1_500_000, 10**10):
        fitting = [cut for cut in everything if cut.memory(network, BUFFERS) <= memory]
        if not fitting:
            with pytest.raises(TooLittleMemory):
                best_cut(network, shape, halo, memory, BUFFERS, alike=alike)
        else:
            found = best_cut(network, shape, halo, memory, BUFFERS, alike=alike)
            assert found.products(network) == min(cut.products(network) for cut in fitting)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("alike", [False, True])
def test_any_multiple_of_the_step_could_do_little_better(name, alike):
    """The edges that are tried are few. Against all of them, in a volume where they can be."""
    network, shape, halo = MODELS[name], (48, 60, 55), MODELS[name].step
    edges = [range(step, length + step, step) for length, step in zip(shape, network.step, strict=True)]
    cuts = [Cut(shape, block, halo, alike) for block in itertools.product(*(list(own)[-1::-2] for own in edges))]
    for memory in (1_300_000, 2_000_000):
        least = min(cut.products(network) for cut in cuts if cut.memory(network, BUFFERS) <= memory)
        assert best_cut(network, shape, halo, memory, BUFFERS, alike=alike).products(network) <= 1.1 * least


def test_blocks_of_a_large_volume_lie_on_whole_chunks():
    cut = best_cut(MODELS["plain"], (5000, 6000, 7000), (8, 8, 8), 400_000_000, BUFFERS, alike=False)
    assert all(edge % 64 == 0 for edge in cut.block)
    assert max(cut.block) < 3 * min(cut.block)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_a_large_volume_are_cut_as_well_if_they_are_alike(name):
    """No gap between the small edges and those of a few parts, and little that reaches over the end."""
    network, halo = MODELS[name], tuple(4 * step for step in MODELS[name].step)
    loose, alike = (
        best_cut(network, (5000, 6000, 7000), halo, 400_000_000, BUFFERS, alike=alike) for alike in (False, True)
    )
    assert alike.products(network) <= 1.1 * loose.products(network)


@pytest.mark.parametrize("memory", [0, 1_000_000, 1_010_000])
def test_too_little_says_what_would_do(memory):
    shape, halo = (300, 300, 300), (8, 8, 8)
    with pytest.raises(TooLittleMemory) as refused:
        best_cut(MODELS["plain"], shape, halo, memory, BUFFERS, alike=False)
    assert best_cut(MODELS["plain"], shape, halo, enough(refused), BUFFERS, alike=False).blocks > 1


@pytest.mark.parametrize("program", [1_234_567_890, 999_999_999, 123_456_789_012])
def test_what_would_do_is_rounded_up(program):
    """Three digits of 1.2346 GB would be too little again."""
    buffers = Buffers(5, 9, program)
    with pytest.raises(TooLittleMemory) as refused:
        best_cut(MODELS["plain"], (64, 64, 64), (8, 8, 8), program, buffers, alike=False)
    best_cut(MODELS["plain"], (64, 64, 64), (8, 8, 8), enough(refused), buffers, alike=False)


def enough(refused):
    return int(float(re.search(r"--memory ([\d.]+)GB would do", str(refused.value))[1]) * 1e9)


@pytest.mark.parametrize("block", [(0, 2, 2), (3, 4, 4), (-2, 4, 4), (64, 64, 65)])
def test_given_blocks_that_dont_fit_the_network(block, model):
    with pytest.raises(BadSetting, match="must be multiples of 2x2x2"):
        given_cut(model, (64, 64, 64), block, (8, 8, 8), alike=False)


def test_a_network_that_multiplies_nothing_is_reckoned_by_voxels():
    network = Reckoned(multiplies=0, products_per_voxel=1.0)
    assert products(network, (8, 8, 8), (1, 1, 1)) == 1000
    assert Cut((8, 8, 8), (8, 8, 8), (1, 1, 1), False).recomputation(network) == pytest.approx(1000 / 512)


def planner(model, tmp_path, **asked):
    volume = Fake(np.random.default_rng(0).normal(0, 1, (1, 40, 40, 40)).astype(np.float32))
    figures = normalisation("none", volume)
    read = lambda box: figures.apply(read_reflected(volume, box).values)  # noqa: E731
    return Planner(volume, model, Asked(**asked), figures, read, tmp_path / "out")


def test_a_plan_says_what_its_blocks_were_cut_by(model, tmp_path, monkeypatch):
    """The program grows while it plans: what it took before the blocks were cut must be what is said."""
    grown = iter(range(300_000_000, 10**10, 50_000_000))
    monkeypatch.setattr("psutil.Process.memory_info", lambda self: type("Info", (), {"rss": next(grown)}))
    plan = planner(model, tmp_path, halo="exact", memory=302_500_000 + GROWTH).plan().plan
    assert 300_000_000 < plan.memory_bytes - GROWTH <= 302_500_000


def test_given_blocks_keep_to_the_memory_that_is_given(model, tmp_path):
    with pytest.raises(TooLittleMemory, match=r"blocks of 40x40x40 .* would do"):
        planner(model, tmp_path, halo="exact", memory=1_000_000, block=(40, 40, 40)).plan()
    assert planner(model, tmp_path, halo="exact", block=(40, 40, 40)).plan().plan.block == (40, 40, 40)


def test_a_network_that_multiplies_nothing_can_be_planned(tmp_path):
    network = model_of(nn.Sequential(nn.MaxPool3d(3, stride=1), nn.ReLU()), 1).model
    plan = planner(network, tmp_path).plan().plan
    assert plan.seconds > 0
    assert 0 < plan.voxels_per_second < 1e12
    assert 1 <= plan.recomputation < 10
