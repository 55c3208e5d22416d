"""A seed repeats a run from its beginning; a run that continues from a ledger repeats neither noise nor batches."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest
import torch
from dp_guarded import Guarded, network, weights
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import BadSetting, PrivacyEngine
from rigdyno.engines.dp.seeds import derive_key, seeded_generator


def noise_of(engine: PrivacyEngine, steps: int = 3) -> list[torch.Tensor]:
    """Return the changes of the weights by steps without a backward pass, which are noise alone."""
    guarded = Guarded([], engine=engine, sigma=1.0)
    moves = []
    for _ in range(steps):
        start = weights(guarded.net)
        guarded.optimizer.step()
        moves.append(start - weights(guarded.net))
    return moves


def seeded_engine(kernels: bool | None = False, **options) -> PrivacyEngine:
    return PrivacyEngine(generator=torch.Generator().manual_seed(7), kernels=kernels, **options)


def all_differ(moves: list[torch.Tensor]) -> bool:
    return len({tuple(move.tolist()) for move in moves}) == len(moves)


def first_batches(engine: PrivacyEngine) -> list[list[int]]:
    net = network()
    _, _, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(torch.arange(100)), batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return list(loader.batch_sampler)


@pytest.mark.parametrize("kernels", [False, None])
def test_the_same_seed_repeats_a_run_from_the_beginning(kernels):
    for one, other in zip(noise_of(seeded_engine(kernels)), noise_of(seeded_engine(kernels)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kernels", [False, None])
def test_the_same_seed_on_the_same_file_repeats_no_noise(tmp_path, kernels):
    found = []
    for _ in range(3):
        engine = seeded_engine(kernels, ledger=tmp_path / "ledger")
        found += noise_of(engine)
        engine.release()
    assert all_differ(found)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_same_seed_on_a_checkpoint_repeats_no_noise(when):
    """The ledger's state is loaded before or after make_private, and also twice from one checkpoint."""
    first = seeded_engine()
    found = noise_of(first)
    for _ in range(2):
        engine = seeded_engine()
        if when == "before":
            engine.ledger.load_state_dict(first.ledger.state_dict())
            found += noise_of(engine)
        else:
            guarded = Guarded([], engine=engine, sigma=1.0)
            engine.ledger.load_state_dict(first.ledger.state_dict())
            guarded.optimizer.step()
            found.append(guarded.released())
    assert all_differ(found)


def test_the_same_seed_on_a_checkpoint_repeats_no_batches():
    first = seeded_engine()
    found = [first_batches(first), first_batches(seeded_engine())]
    assert found[0] == found[1]
    first.ledger.spend(1.0, 0.1)
    for _ in range(2):
        engine = seeded_engine()
        engine.ledger.load_state_dict(first.ledger.state_dict())
        found.append(first_batches(engine))
    assert found[2] != found[0]
    assert found[2] != found[3]


def test_an_engine_used_again_repeats_no_noise():
    engine = seeded_engine()
    engine_noise = noise_of(engine)
    engine.release()
    engine._generator = torch.Generator().manual_seed(7)
    assert all_differ(engine_noise + noise_of(engine))


def test_a_released_engine_continues_with_its_file(tmp_path):
    engine = seeded_engine(ledger=tmp_path / "ledger")
    noise_of(engine, 3)
    engine.release()
    with PrivacyEngine(ledger=tmp_path / "ledger").ledger as other:
        other.spend(1.0, 1.0)
    noise_of(engine, 2)
    assert sum(run.steps for run in engine.ledger.spent) == 6
    engine.release()
    assert sum(run.steps for run in PrivacyEngine(ledger=tmp_path / "ledger").ledger.spent) == 6


def test_a_released_engine_can_t_use_a_file_that_is_in_use(tmp_path):
    engine = seeded_engine(ledger=tmp_path / "ledger")
    engine.release()
    other = PrivacyEngine(ledger=tmp_path / "ledger")
    with pytest.raises(BadSetting, match="in use"):
        noise_of(engine)
    other.release()


def test_a_forked_child_has_different_noise():
    guarded = Guarded([], engine=seeded_engine(), sigma=1.0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        guarded.optimizer.step()
        os.write(writing, pickle.dumps(guarded.released().tolist()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        theirs = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    guarded.optimizer.step()
    assert guarded.released().tolist() != theirs


def test_a_forked_child_can_t_release_from_its_parent_s_file(tmp_path):
    guarded = Guarded([], engine=seeded_engine(ledger=tmp_path / "ledger"), sigma=1.0)
    child = os.fork()
    if child == 0:
        try:
            guarded.optimizer.step()
        except BadSetting:
            os._exit(0 if float(guarded.released().norm()) == 0 else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_engine_can_t_be_copied(copied):
    engine = Guarded().engine
    with pytest.raises(BadSetting, match=r"ledger\.state_dict"):
        copied(engine)


def test_a_generator_uses_all_of_its_key():
    """The keys agree in the bits that torch's own seed has."""
    one, other = np.arange(8, dtype=np.uint32), np.arange(8, dtype=np.uint32)
    other[7] += 1
    first, second = (torch.rand(1000, generator=seeded_generator(key)) for key in (one, other))
    assert not torch.equal(first, second)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.15
    assert torch.equal(first, torch.rand(1000, generator=seeded_generator(one)))


def test_a_generator_is_uniform_and_normal():
    """A state that the generator misinterprets would be detected; a correct one fails once in 10,000 times."""
    scipy_stats = pytest.importorskip("scipy.stats")
    generator = seeded_generator(derive_key(np.zeros(8, np.uint32), "test"))
    assert scipy_stats.kstest(torch.rand(20_000, generator=generator, dtype=torch.float64), "uniform").pvalue > 1e-4
    assert scipy_stats.kstest(torch.empty(20_000).normal_(generator=generator).numpy(), "norm").pvalue > 1e-4
