"""Volumes are cut into the blocks that need the least computation and fit into memory."""

import itertools
import re
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infer_cases import FakeVolume, single_thread
from torch import nn

from rigdyno.engines.blockwise import BadSetting, TooLittleMemory
from rigdyno.engines.blockwise.blocks import Buffers, Cut, _list_blocks, count_products, find_best_cut, make_given_cut
from rigdyno.engines.blockwise.boxes import Box, Grid, Zyx, zyx
from rigdyno.engines.blockwise.network.loading import make_model
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.blockwise.normalising import find_normalisation
from rigdyno.engines.blockwise.planning import PROGRAM_GROWTH_BYTES, Planner, PlanRequest
from rigdyno.engines.blockwise.volumes.reading import read_reflected

BUFFERS = Buffers(read_voxel=5, written_voxel=9, program=1_000_000)
LENGTHS = st.integers(1, 3000)

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class CountingModel:
    """A network that only knows its costs, those of two layers: the first sees the halo, the second doesn't."""

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


MODELS = {"plain": CountingModel(), "slices": CountingModel((1, 3, 3)), "odd": CountingModel((5, 7, 12))}


@pytest.fixture(scope="module")
def model():
    with single_thread():
        return make_model(UNet3d(features=(4, 8)), 1).model


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


def test_costs_of_a_cut_are_those_of_its_blocks(model):
    halo, cut = (8, 8, 8), Cut((70, 90, 65), (32, 64, 48), (8, 8, 8), alike=False)
    assert cut.products(model) == sum(model.products(box.shape, halo) for box in Grid(cut.shape, cut.block))
    largest = model.peak_bytes((32, 64, 48), halo)
    read = model.read_box((32, 64, 48), halo).voxels
    assert cut.memory_bytes(model, BUFFERS) == largest + 1_000_000 + 5 * read + 9 * 32 * 64 * 48
    alike = Cut(cut.shape, cut.block, halo, alike=True)
    assert alike.products(model) == 3 * 2 * 2 * model.products(cut.block, halo) > cut.products(model)
    assert alike.memory_bytes(model, BUFFERS) == cut.memory_bytes(model, BUFFERS)


def test_a_block_larger_than_the_volume_costs_what_the_volume_costs(model):
    cut = Cut((10, 10, 10), (64, 64, 64), (0, 0, 0), alike=False)
    assert cut.memory_bytes(model, BUFFERS) == Cut((10, 10, 10), (10, 10, 10), (0, 0, 0), alike=False).memory_bytes(
        model, BUFFERS
    )
    assert cut.recomputation(model) == pytest.approx(1.0, abs=0.3)


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(LENGTHS, LENGTHS, LENGTHS), st.integers(30_000_000, 10**9), st.booleans(), st.sampled_from(sorted(MODELS))
)
def test_the_best_cut_fits_into_memory(shape, memory, alike, name):
    network, halo = MODELS[name], tuple(3 * step for step in MODELS[name].step)
    cut = find_best_cut(network, shape, halo, memory, BUFFERS, alike=alike)
    assert cut.memory_bytes(network, BUFFERS) <= memory
    assert all(edge % step == 0 for edge, step in zip(cut.block, network.step, strict=True))
    assert cut.alike is alike


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("shape", [(30, 40, 50), (7, 100, 60), (1, 1, 300)])
def test_the_best_cut_is_the_best_by_brute_force(name, alike, shape):
    network, halo = MODELS[name], tuple(2 * step for step in MODELS[name].step)
    everything = [Cut(shape, block, halo, alike) for block in _list_blocks(network, shape, alike)]
    for memory in (1_020_000, 1_500_000, 10**10):
        fitting = [cut for cut in everything if cut.memory_bytes(network, BUFFERS) <= memory]
        if not fitting:
            with pytest.raises(TooLittleMemory):
                find_best_cut(network, shape, halo, memory, BUFFERS, alike=alike)
        else:
            found = find_best_cut(network, shape, halo, memory, BUFFERS, alike=alike)
            assert found.products(network) == min(cut.products(network) for cut in fitting)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("alike", [False, True])
def test_other_multiples_of_the_step_are_hardly_better(name, alike):
    """Only few edges are tried; compare them with all, in a volume where that is possible."""
    network, shape, halo = MODELS[name], (48, 60, 55), MODELS[name].step
    edges = [range(step, length + step, step) for length, step in zip(shape, network.step, strict=True)]
    cuts = [Cut(shape, block, halo, alike) for block in itertools.product(*(list(own)[-1::-2] for own in edges))]
    for memory in (1_300_000, 2_000_000):
        least = min(cut.products(network) for cut in cuts if cut.memory_bytes(network, BUFFERS) <= memory)
        assert find_best_cut(network, shape, halo, memory, BUFFERS, alike=alike).products(network) <= 1.1 * least


def test_blocks_of_a_large_volume_are_whole_chunks():
    cut = find_best_cut(MODELS["plain"], (5000, 6000, 7000), (8, 8, 8), 400_000_000, BUFFERS, alike=False)
    assert all(edge % 64 == 0 for edge in cut.block)
    assert max(cut.block) < 3 * min(cut.block)


@pytest.mark.parametrize("name", MODELS)
def test_equal_blocks_of_a_large_volume_are_hardly_worse(name):
    """There is no gap between the small edges and those of a few parts, and few voxels extend over the end."""
    network, halo = MODELS[name], tuple(4 * step for step in MODELS[name].step)
    loose, alike = (
        find_best_cut(network, (5000, 6000, 7000), halo, 400_000_000, BUFFERS, alike=alike) for alike in (False, True)
    )
    assert alike.products(network) <= 1.1 * loose.products(network)


@pytest.mark.parametrize("memory", [0, 1_000_000, 1_010_000])
def test_too_little_memory_names_an_amount_that_is_enough(memory):
    shape, halo = (300, 300, 300), (8, 8, 8)
    with pytest.raises(TooLittleMemory) as refused:
        find_best_cut(MODELS["plain"], shape, halo, memory, BUFFERS, alike=False)
    assert find_best_cut(MODELS["plain"], shape, halo, named_amount(refused), BUFFERS, alike=False).blocks > 1


@pytest.mark.parametrize("program", [1_234_567_890, 999_999_999, 123_456_789_012])
def test_the_named_amount_is_rounded_up(program):
    """Rounded to three digits, 1.2346 GB would be too little again."""
    buffers = Buffers(5, 9, program)
    with pytest.raises(TooLittleMemory) as refused:
        find_best_cut(MODELS["plain"], (64, 64, 64), (8, 8, 8), program, buffers, alike=False)
    find_best_cut(MODELS["plain"], (64, 64, 64), (8, 8, 8), named_amount(refused), buffers, alike=False)


def named_amount(refused):
    return int(float(re.search(r"--memory ([\d.]+)GB would do", str(refused.value))[1]) * 1e9)


@pytest.mark.parametrize("block", [(0, 2, 2), (3, 4, 4), (-2, 4, 4), (64, 64, 65)])
def test_given_blocks_that_dont_fit_the_network_are_refused(block, model):
    with pytest.raises(BadSetting, match="must be multiples of 2x2x2"):
        make_given_cut(model, (64, 64, 64), block, (8, 8, 8), alike=False)


def test_a_network_without_multiplications_is_measured_by_voxels():
    network = CountingModel(multiplies=0, products_per_voxel=1.0)
    assert count_products(network, (8, 8, 8), (1, 1, 1)) == 1000
    assert Cut((8, 8, 8), (8, 8, 8), (1, 1, 1), False).recomputation(network) == pytest.approx(1000 / 512)


def make_planner(model, tmp_path, **options):
    volume = FakeVolume(np.random.default_rng(0).normal(0, 1, (1, 40, 40, 40)).astype(np.float32))
    figures = find_normalisation("none", volume)
    read = lambda box: figures.apply(read_reflected(volume, box).values)  # noqa: E731
    return Planner(volume, model, PlanRequest(**options), figures, read, tmp_path / "out")


def test_a_plan_states_the_memory_its_blocks_were_chosen_by(model, tmp_path, monkeypatch):
    """The program grows while it plans; the plan must state the memory from before the blocks were chosen."""
    grown = iter(range(300_000_000, 10**10, 50_000_000))
    monkeypatch.setattr("psutil.Process.memory_info", lambda self: type("Info", (), {"rss": next(grown)}))
    plan = make_planner(model, tmp_path, halo="exact", memory=302_500_000 + PROGRAM_GROWTH_BYTES).plan().plan
    assert 300_000_000 < plan.memory_bytes - PROGRAM_GROWTH_BYTES <= 302_500_000


def test_given_blocks_must_fit_into_the_given_memory(model, tmp_path):
    with pytest.raises(TooLittleMemory, match=r"blocks of 40x40x40 .* would do"):
        make_planner(model, tmp_path, halo="exact", memory=1_000_000, block=(40, 40, 40)).plan()
    assert make_planner(model, tmp_path, halo="exact", block=(40, 40, 40)).plan().plan.block == (40, 40, 40)


def test_a_network_without_multiplications_can_be_planned(tmp_path):
    network = make_model(nn.Sequential(nn.MaxPool3d(3, stride=1), nn.ReLU()), 1).model
    plan = make_planner(network, tmp_path).plan().plan
    assert plan.seconds > 0
    assert 0 < plan.voxels_per_second < 1e12
    assert 1 <= plan.recomputation < 10
