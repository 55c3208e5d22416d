"""Compare Poisson sampling with the binomial distribution, and test its loaders, including empty batches."""

import os
from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from rigdyno.engines.dp.batches import sampling
from rigdyno.engines.dp.batches.sampling import (
    PoissonLoader,
    PoissonSampler,
    count_samples,
    micro_batches,
    private_loader,
)
from rigdyno.engines.dp.errors import BadSetting

SAMPLES, RATE, STEPS = 60, 0.1, 8_000
Pair = namedtuple("Pair", ["image", "label"])


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def inclusions(sampler):
    """Return a table of inclusions: one row per step, one column per sample."""
    table = np.zeros((len(sampler), sampler.samples))
    for row, chosen in zip(table, sampler, strict=True):
        row[chosen] = 1
    return table


def standardised(table):
    return (table - RATE) / np.sqrt(RATE * (1 - RATE))


@pytest.fixture(scope="module", params=["seeded", "secure"])
def drawn(request):
    generator = seeded(3) if request.param == "seeded" else None
    return inclusions(PoissonSampler(SAMPLES, RATE, STEPS, generator, secure=generator is None))


# The sampler. Limits are at six standard deviations or more, so that unseeded samplers stay below them too.


def test_every_sample_is_drawn_at_the_rate(drawn):
    off = standardised(drawn).sum(axis=0) / np.sqrt(STEPS)
    assert np.abs(off).max() < 6
    assert stats.chi2.sf(np.sum(off**2), SAMPLES) > 1e-8


@pytest.mark.parametrize("generator", [seeded(3), None])
def test_the_rate_is_exact_to_a_hundredth_over_many_samples(generator):
    sizes = [len(chosen) for chosen in PoissonSampler(500_000, RATE, 10, generator, secure=generator is None)]
    off = (sum(sizes) - 5_000_000 * RATE) / np.sqrt(5_000_000 * RATE * (1 - RATE))
    assert abs(off) < 6


def test_pairs_of_samples_are_independent(drawn):
    off = standardised(drawn).T @ standardised(drawn) / np.sqrt(STEPS)
    pairs = off[np.triu_indices(SAMPLES, k=1)]
    assert np.abs(pairs).max() < 6.5
    assert np.mean(pairs**2) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("lag", [1, 2, 7])
def test_steps_are_independent(drawn, lag):
    table = standardised(drawn)
    off = table[lag:].T @ table[:-lag] / np.sqrt(STEPS - lag)
    assert np.abs(off).max() < 6.5


def test_batch_sizes_are_binomial(drawn):
    assert_binomial(drawn.sum(axis=1), SAMPLES, RATE)


def assert_binomial(sizes, samples, rate):
    expected = len(sizes) * stats.binom.pmf(np.arange(samples + 1), samples, rate)
    observed = np.bincount(sizes.astype(int), minlength=samples + 1)
    common = expected >= 10
    rare = [observed[~common].sum(), expected[~common].sum()]
    statistic = np.sum((observed - expected)[common] ** 2 / expected[common]) + (rare[0] - rare[1]) ** 2 / rare[1]
    assert stats.chi2.sf(statistic, common.sum()) > 1e-8


def test_empty_batches_are_yielded():
    sizes = [len(chosen) for chosen in PoissonSampler(5, 0.1, 2000, seeded(1))]
    assert len(sizes) == 2000
    assert_binomial(np.array(sizes), 5, 0.1)
    assert sizes.count(0) > 1000


def test_a_rate_of_one_draws_every_sample():
    assert list(PoissonSampler(4, 1.0, 2)) == [[0, 1, 2, 3]] * 2
    assert list(PoissonSampler(4, 1, 2, secure=True)) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("uniform", [sampling._make_seeded_uniform(seeded(0)), sampling._draw_secure_uniform])
def test_the_coins_have_more_than_24_bits(uniform):
    values = uniform(100_000).numpy()
    assert values.dtype == np.float64
    assert 0 <= values.min() <= values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-8
    assert np.mean(values * 2**24 % 1 == 0) < 0.01
    assert np.all(values * 2**53 % 1 == 0)


def test_secure_coins_come_from_the_operating_system(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: b"\xff" * (count - 8) + b"\0" * 8)
    assert list(PoissonSampler(4, 0.5, 1, secure=True)) == [[3]]


def test_a_seed_repeats_and_epochs_differ():
    one, two = (PoissonSampler(50, 0.2, 4, seeded(7)) for _ in range(2))
    first, second = list(one), list(one)
    assert [list(two), list(two)] == [first, second]
    assert first != second
    assert list(PoissonSampler(50, 0.2, 4, seeded(8))) != first


def test_without_a_generator_torch_s_own_seed_repeats():
    torch.manual_seed(4)
    first = list(PoissonSampler(50, 0.2, 4))
    torch.manual_seed(4)
    assert list(PoissonSampler(50, 0.2, 4)) == first


def test_secure_batches_ignore_the_seed():
    torch.manual_seed(4)
    first = list(PoissonSampler(500, 0.5, 1, secure=True))
    torch.manual_seed(4)
    assert list(PoissonSampler(500, 0.5, 1, secure=True)) != first


def test_other_draws_from_the_generator_don_t_shift_the_batches():
    noisy, quiet = seeded(7), seeded(7)
    batches = []
    for chosen in PoissonSampler(50, 0.2, 4, noisy):
        torch.randn(100, generator=noisy)
        batches.append(chosen)
    assert batches == list(PoissonSampler(50, 0.2, 4, quiet))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_equal_seeds_give_ranks_shares_of_one_batch(ranks):
    alone = list(PoissonSampler(20, 0.4, 30, seeded(5)))
    shares = [list(PoissonSampler(20, 0.4, 30, seeded(5), rank=rank, ranks=ranks)) for rank in range(ranks)]
    for step, batch in enumerate(alone):
        assert sorted(index for share in shares for index in share[step]) == batch
    for rank, share in enumerate(shares):
        assert all(index % ranks == rank for chosen in share for index in chosen)


@pytest.mark.parametrize("seeds", [(5, 5), (5, 6)])
def test_samples_of_different_ranks_are_independent(seeds):
    table = sum(inclusions(PoissonSampler(20, RATE, 3000, seeded(seeds[rank]), rank=rank, ranks=2)) for rank in (0, 1))
    off = standardised(table).T @ standardised(table) / np.sqrt(3000)
    assert np.abs(off[np.triu_indices(20, k=1)]).max() < 5
    assert_binomial(table.sum(axis=1), 20, RATE)


def test_a_rank_without_samples_yields_empty_batches():
    assert list(PoissonSampler(2, 1.0, 3, rank=4, ranks=5)) == [[], [], []]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples must be a positive whole number: 0"),
        ({"steps": 0}, "steps must be"),
        ({"sample_rate": 0.0}, "sample rate must be"),
        ({"sample_rate": 1.5}, "sample rate must be"),
        ({"ranks": 0}, "ranks must be"),
        ({"rank": 2, "ranks": 2}, "rank must be one of 0 to 1: 2"),
        ({"rank": -1}, "rank must be one of 0 to 0: -1"),
        ({"secure": True, "generator": seeded(0)}, "takes no generator"),
    ],
)
def test_invalid_settings_of_a_sampler_are_refused(settings, message):
    with pytest.raises(BadSetting, match=message):
        PoissonSampler(**{"samples": 10, "sample_rate": 0.1, "steps": 3, **settings})


# The loader.


class Named(Dataset):
    """A dataset with samples of every kind that default_collate supports."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {
            "image": torch.full((3, 2), float(index)),
            "label": index,
            "name": f"sample {index}",
            "pair": (1.5, "x"),
        }


class Fetched(Named):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def numbers(samples):
    return TensorDataset(
        torch.arange(samples), torch.arange(samples, dtype=torch.float32).reshape(-1, 1) * torch.ones(5)
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_match_the_sampler_and_are_counted_when_handed_out(workers):
    plain = DataLoader(numbers(40), batch_size=4, num_workers=workers)
    loader = private_loader(plain, generator=seeded(2))
    expected = list(PoissonSampler(40, 0.1, 10, seeded(2)))
    assert isinstance(loader, PoissonLoader)
    assert (len(loader), loader.sample_rate, loader.expected_batch, loader.drawn) == (10, 0.1, 4.0, 0)
    for (indices, rows), chosen in zip(loader, expected, strict=True):
        assert indices.tolist() == rows[:, 0].tolist() == chosen
        assert loader.drawn == len(chosen)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Named, Fetched, lambda: Subset(Named(), range(2, 12))])
def test_empty_batches_have_the_structure_of_the_others(workers, kind):
    loader = private_loader(
        DataLoader(kind(), batch_size=2, num_workers=workers), sample_rate=0.02, generator=seeded(3)
    )
    batches = [(loader.drawn, batch) for batch in loader]
    sizes = [drawn for drawn, _ in batches]
    assert min(sizes) == 0 < max(sizes)
    for drawn, batch in batches:
        assert batch["image"].shape == (drawn, 3, 2)
        assert batch["label"].shape == (drawn,)
        assert (batch["image"].dtype, batch["label"].dtype) == (torch.float32, torch.int64)
        assert len(batch["name"]) == len(batch["pair"][1]) == drawn
        assert batch["pair"][0].shape == (drawn,)
        assert batch["pair"][0].dtype == torch.float64


def test_batches_out_of_order_keep_their_counts():
    plain = DataLoader(numbers(40), batch_size=4, num_workers=2, in_order=False)
    loader = private_loader(plain, generator=seeded(2))
    for indices, _ in loader:
        assert loader.drawn == len(indices)


def test_persistent_workers_draw_new_batches_in_every_epoch():
    plain = DataLoader(numbers(40), batch_size=8, num_workers=1, persistent_workers=True, prefetch_factor=3)
    loader = private_loader(plain, generator=seeded(2))
    epochs = [[indices.tolist() for indices, _ in loader] for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    assert [len(epoch) for epoch in epochs] == [5, 5, 5]


def test_a_new_epoch_can_begin_after_one_left_early():
    loader = private_loader(DataLoader(numbers(40), batch_size=4), generator=seeded(2))
    next(iter(loader))
    assert len(list(loader)) == 10


def doubled(samples):
    return torch.stack([2 * row for _, row in samples])


def does_nothing(worker):
    pass


def test_other_options_of_the_loader_are_kept():
    data, generator = numbers(40), seeded(9)
    plain = DataLoader(
        data,
        batch_size=4,
        shuffle=True,
        num_workers=2,
        collate_fn=doubled,
        timeout=60,
        worker_init_fn=does_nothing,
        multiprocessing_context="fork",
        generator=generator,
        prefetch_factor=5,
        persistent_workers=True,
        in_order=False,
    )
    loader = private_loader(plain)
    assert loader.dataset is data
    assert (loader.num_workers, loader.timeout, loader.prefetch_factor) == (2, 60, 5)
    assert (loader.persistent_workers, loader.in_order, loader.pin_memory) == (True, False, False)
    assert loader.worker_init_fn is does_nothing
    assert loader.multiprocessing_context is plain.multiprocessing_context
    assert loader.batch_sampler.generator is loader.generator is generator


def test_the_loader_s_own_collate_is_used():
    loader = private_loader(DataLoader(numbers(40), batch_size=4, collate_fn=doubled), generator=seeded(1))
    chosen = list(PoissonSampler(40, 0.1, 10, seeded(1)))
    assert [batch[:, 0].tolist() for batch in loader] == [[2.0 * index for index in indices] for indices in chosen]


def test_the_sample_rate_can_be_given():
    loader = private_loader(DataLoader(numbers(40), batch_size=4), sample_rate=0.3)
    assert (len(loader), loader.expected_batch) == (3, 12.0)


def test_a_batch_can_contain_every_sample():
    loader = private_loader(DataLoader(numbers(4), batch_size=4))
    assert [loader.drawn for _ in loader] == [4]


def test_the_expected_batch_is_that_of_all_ranks():
    loaders = [private_loader(DataLoader(numbers(40), batch_size=8), None, seeded(1), rank=r, ranks=2) for r in (0, 1)]
    assert [loader.expected_batch for loader in loaders] == [8.0, 8.0]
    drawn = [torch.cat([indices for indices, _ in loader]) for loader in loaders]
    assert [set((indices % 2).tolist()) for indices in drawn] == [{0}, {1}]


def test_a_distributed_sampler_must_fit_the_ranks():
    data = numbers(40)
    plain = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=2, rank=1))
    assert private_loader(plain, rank=1, ranks=2).batch_sampler.ranks == 2
    with pytest.raises(
        BadSetting, match="the loader is for rank 1 of 2, but this is 0 of 1: pass the same rank= and ranks="
    ):
        private_loader(plain)


def test_secure_loaders_don_t_use_the_loader_s_generator():
    loader = private_loader(DataLoader(numbers(40), batch_size=4, generator=seeded(1)), secure=True)
    assert loader.batch_sampler.generator is None
    assert sum(1 for _ in loader) == 10


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class WithoutLength(Dataset):
    def __getitem__(self, index):
        return index


def batches_of_its_own():
    return BatchSampler(SequentialSampler(range(40)), 4, False)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda: DataLoader(Stream(), batch_size=2), "give a dataset with __getitem__ and __len__"),
        (
            lambda: DataLoader(WithoutLength(), batch_size=2, sampler=[0, 1]),
            "give a dataset with __getitem__ and __len__",
        ),
        (lambda: DataLoader(numbers(40), batch_size=None), "no batch size: make it with batch_size="),
        (lambda: DataLoader(numbers(40), batch_sampler=batches_of_its_own()), "not with a batch_sampler"),
        (lambda: private_loader(DataLoader(numbers(40), batch_size=2)), "pass the ordinary loader"),
        (lambda: DataLoader(numbers(0), batch_size=2), "the dataset is empty"),
        (lambda: DataLoader(numbers(5), batch_size=6), "batches of 6 from 5 samples: take a batch size of at most 5"),
        (
            lambda: DataLoader(numbers(9), batch_size=3, sampler=SubsetRandomSampler([1, 2])),
            "SubsetRandomSampler would be lost: select samples by torch.utils.data.Subset",
        ),
    ],
)
def test_unsuitable_loaders_are_refused(loader, message):
    with pytest.raises(BadSetting, match=message):
        private_loader(loader())


def test_an_invalid_sample_rate_is_refused():
    with pytest.raises(BadSetting, match="sample rate"):
        private_loader(DataLoader(numbers(40), batch_size=4), sample_rate=1.2)


def side_by_side(samples):
    return torch.stack([row for _, row in samples], dim=1)


def test_a_collate_without_samples_along_the_first_dimension_is_refused():
    plain = DataLoader(numbers(4), batch_size=1, collate_fn=side_by_side)
    with pytest.raises(BadSetting, match="collate_fn must put samples along the first dimension"):
        list(private_loader(plain, sample_rate=0.01, generator=seeded(0)))


# Pieces.


def test_pieces_are_views_of_the_whole():
    images, labels = torch.arange(14.0).reshape(7, 2), torch.arange(7)
    pieces = micro_batches((images, labels), 3)
    assert [len(piece[0]) for piece in pieces] == [3, 3, 1]
    assert torch.equal(torch.cat([piece[0] for piece in pieces]), images)
    assert torch.equal(torch.cat([piece[1] for piece in pieces]), labels)
    assert all(piece[0].untyped_storage().data_ptr() == images.untyped_storage().data_ptr() for piece in pieces)


def test_pieces_keep_every_kind_of_structure():
    batch = {
        "pair": Pair(torch.arange(5), [torch.ones(5, 2), np.arange(5)]),
        "names": list("abcde"),
        "more": UserDict(x=torch.zeros(5)),
        "scale": torch.tensor(2.0),
        "task": "sort",
        "nothing": None,
    }
    first, second = micro_batches(batch, 4)
    assert isinstance(first["pair"], Pair)
    assert first["pair"].label[1].tolist() == [0, 1, 2, 3]
    assert (second["names"], second["task"], second["nothing"], second["scale"].item()) == (["e"], "sort", None, 2.0)
    assert isinstance(second["more"], UserDict)
    assert [len(piece["more"]["x"]) for piece in (first, second)] == [4, 1]
    assert batch["names"] == list("abcde")


def test_a_single_tensor_can_be_split():
    assert [len(piece) for piece in micro_batches(torch.zeros(4, 3), 2)] == [2, 2]


def test_an_empty_batch_gives_one_empty_piece():
    [piece] = micro_batches([torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), []], 8)
    assert (piece[0].shape, piece[1].dtype, piece[2]) == ((0, 3), torch.int64, [])


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_an_invalid_size_is_refused(size):
    with pytest.raises(BadSetting, match="size must be a positive whole number"):
        micro_batches(torch.zeros(3), size)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(3), torch.zeros(4)), "same number of samples along the first dimension: 3 and 4"),
        ((torch.zeros(3), ["a"]), "same number of samples along the first dimension: 1 and 3"),
        ([], "same number of samples along the first dimension: none"),
        ((torch.zeros(3), object()), "can't find the samples of a object"),
    ],
)
def test_unsplittable_batches_are_refused(batch, message):
    with pytest.raises(BadSetting, match=message):
        micro_batches(batch, 2)
    with pytest.raises(BadSetting, match=message):
        count_samples(batch)
