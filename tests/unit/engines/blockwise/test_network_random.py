"""Random networks give the same block by block as in one piece: trimming and folding change nothing."""

from __future__ import annotations

import pytest
import torch
from blockwise_networks import (
    assert_close,
    blockwise,
    both_graphs,
    expected,
    full_shape,
    part,
    random_networks,
    sizes,
    some_halos,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rigdyno.engines.blockwise.network.understood import Trimming

pytestmark = pytest.mark.usefixtures("one_thread")
# Without shrinking: every example traces a network, which would take minutes.
few = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MOST_VOXELS = 32**3
TRACED_ON = (36, 36, 36)


@few
@given(network=random_networks(), seed=st.integers(0, 1000), data=st.data())
def test_random_networks_give_the_same_block_by_block(network, seed, data):
    generator = torch.Generator().manual_seed(seed)
    for graph in both_graphs(network, 1, TRACED_ON):
        trimming = Trimming(graph)
        for halo in some_halos(trimming):
            size = data.draw(sizes(trimming.step))
            shape = full_shape(trimming, size, halo)
            if torch.Size(shape).numel() > MOST_VOXELS:
                continue
            block = torch.randn(1, 1, *shape, generator=generator)
            wanted = expected(network, block, size, halo, trimming.margin)
            assert_close(blockwise(graph, trimming, block, size, halo), wanted)


@few
@given(network=random_networks(deepest=1), seed=st.integers(0, 1000), data=st.data())
def test_voxels_beyond_the_exact_halo_have_no_influence(network, seed, data):
    """The output stays the same with more voxels around the block, and with NaN there."""
    plain, simple = both_graphs(network, 1, TRACED_ON)
    trimming = Trimming(simple)
    assert trimming.exact_halo == Trimming(plain).exact_halo
    step, exact = trimming.step, some_halos(trimming)[2]
    size, more = data.draw(sizes(step)), tuple(own + far for own, far in zip(exact, step, strict=True))
    block = torch.randn(1, 1, *full_shape(trimming, size, more), generator=torch.Generator().manual_seed(seed))
    inner = part(block, step, full_shape(trimming, size, exact))
    assert_close(
        blockwise(simple, trimming, inner.contiguous(), size, exact),
        expected(network, block, size, more, trimming.margin),
    )
    spoilt = torch.full_like(block, torch.nan)
    part(spoilt, step, inner.shape[2:]).copy_(inner)
    assert not expected(network, spoilt, size, more, trimming.margin).isnan().any()
