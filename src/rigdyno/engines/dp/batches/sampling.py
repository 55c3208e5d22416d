"""Loaders of Poisson batches: each sample joins each batch independently, as the accountants assume.

So batches vary in size, and some are empty. Shuffled batches of one size would cost more privacy than is counted.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from rigdyno.engines.dp.accounting import check_count, check_sample_rate
from rigdyno.engines.dp.batches.pending import AHEAD, PendingBatch, PendingBatches, note_pieces
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.seeds import FIRST_SCOPE, SeedScope, derive_key, seeded_generator

# Options of a DataLoader other than its batches; older versions of torch lack the last.
LOADER_OPTIONS = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)

PLAIN_SAMPLERS = (SequentialSampler, RandomSampler, DistributedSampler)  # they select all samples, so can be replaced

SINGLE_VALUES = (str, bytes, int, float, complex, type(None))


class PoissonSampler(Sampler[list[int]]):
    """Yields `steps` lists of indices; every index is in every list with the given probability, independently.

    A rank yields its share, index % ranks == rank, but draws for all samples. So equal seeds give the shares of one
    batch, and different seeds give independent shares. If a rank drew for its share alone, equal seeds would make
    samples of different ranks dependent. Anyone who knows the seed knows the batches: `secure` draws from the operating
    system instead.
    """

    def __init__(
        self,
        samples: int,
        sample_rate: float,
        steps: int,
        generator: torch.Generator | None = None,
        secure: bool = False,
        rank: int = 0,
        ranks: int = 1,
        scope: SeedScope | None = None,
    ) -> None:
        for name, count in (("samples", samples), ("steps", steps), ("ranks", ranks)):
            check_count(name, count)
        check_sample_rate(sample_rate)
        if rank not in range(ranks):
            raise BadSetting(f"rank must be one of 0 to {ranks - 1}: {rank!r}")
        if secure and generator is not None:
            raise BadSetting("secure sampling takes no generator: leave one of them out")
        self._samples, self._sample_rate, self.steps = samples, sample_rate, steps
        self.generator, self.secure = generator, secure
        self.rank, self.ranks = rank, ranks
        self._scope = scope

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def sample_rate(self) -> float:
        """The probability of each sample. It is read-only, so that the count matches the sampling."""
        return self._sample_rate

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        uniform = _draw_secure_uniform if self.secure else _make_seeded_uniform(self.generator, self._scope)
        for _ in range(self.steps):
            chosen = torch.nonzero(uniform(self.samples) < self.sample_rate).flatten()
            yield chosen[chosen % self.ranks == self.rank].tolist()


def _make_seeded_uniform(generator: torch.Generator | None, scope: SeedScope | None = None) -> Callable[[int], Tensor]:
    """Return a source of uniform numbers with its own stream.

    Other draws from the generator in between, such as noise, must neither shift the batches nor use the same bits.
    """
    device = "cpu" if generator is None else generator.device
    seed = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
    names = ["batches", FIRST_SCOPE if scope is None else scope.current_name()]
    own = seeded_generator(derive_key(np.frombuffer(int(seed).to_bytes(8, "little"), np.uint32), *names))
    # float64, because float32 has 24 bits: a rate of 1e-7 would become 1.2e-7.
    return lambda count: torch.rand(count, dtype=torch.float64, generator=own)


def _draw_secure_uniform(count: int) -> Tensor:
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53)


class PoissonLoader(DataLoader[Any]):
    """A loader of Poisson batches.

    `expected_batch` is the mean batch size of all ranks together, `drawn` the number of samples in the newest batch of
    this rank. `pending` holds the batches that no step has used yet.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: PoissonSampler,
        collate: Callable[[list[Any]], Any],
        ahead: int = AHEAD,
        **options: Any,
    ) -> None:
        super().__init__(dataset, batch_sampler=sampler, collate_fn=CountingCollate(dataset, collate), **options)
        self._poisson = sampler
        self.drawn, self.pending = 0, PendingBatches(ahead)

    @property
    def sample_rate(self) -> float:
        return self._poisson.sample_rate

    @property
    def expected_batch(self) -> float:
        return self._poisson.sample_rate * self._poisson.samples

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for drawn, batch in super().__iter__():
            self.drawn = drawn
            self.pending.add(PendingBatch(drawn, self.sample_rate, self.expected_batch, tensors_in(batch)))
            yield batch


class GivenBatches:
    """Batches that were drawn elsewhere, in an unknown way.

    Each counts as if every sample were in it. This bounds its cost as long as no sample is in a batch twice.
    `expected_batch` is the mean batch size of all ranks together.
    """

    def __init__(self, batches: Iterable[Any], expected_batch: float, ahead: int = AHEAD) -> None:
        self._batches, self._expected_batch = batches, expected_batch
        self.drawn, self.pending = 0, PendingBatches(ahead)

    @property
    def sample_rate(self) -> float:
        return 1.0

    @property
    def expected_batch(self) -> float:
        return self._expected_batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.drawn = count_samples(batch)
            self.pending.add(PendingBatch(self.drawn, self.sample_rate, self.expected_batch, tensors_in(batch)))
            yield batch


class CountingCollate:
    """Collates samples and returns their number with the batch: workers draw ahead, and may return out of order."""

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __call__(self, samples: list[Any]) -> tuple[int, Any]:
        if len(samples) == 0:
            return 0, self._make_empty_batch()
        return len(samples), self._collate(samples)

    def _make_empty_batch(self) -> Any:
        """Collate one sample and remove it again.

        This happens only when it is needed, and in the worker: many datasets open their files at the first access.
        """
        one = self._collate([self._dataset[0]])
        if count_samples(one) != 1:
            raise BadSetting("an empty batch can't be made: collate_fn must put samples along the first dimension")
        return _slice_batch(one, slice(0, 0))


def private_loader(
    loader: DataLoader[Any],
    sample_rate: float | None = None,
    generator: torch.Generator | None = None,
    secure: bool = False,
    rank: int = 0,
    ranks: int = 1,
    ahead: int = AHEAD,
    turn: SeedScope | None = None,
) -> PoissonLoader:
    """Return the same loader with Poisson batches.

    Unless a rate is given, the loader's batch size is the mean batch size of all ranks together. An epoch visits every
    sample once on average.
    """
    samples = check_dataset(loader)
    check_sampler(loader.sampler, rank, ranks)
    rate = _find_rate(loader, samples) if sample_rate is None else sample_rate
    check_sample_rate(rate)
    source = generator if secure or generator is not None else loader.generator
    sampler = PoissonSampler(samples, rate, max(1, round(1 / rate)), source, secure, rank, ranks, turn)
    return PoissonLoader(loader.dataset, sampler, loader.collate_fn, ahead, **copy_loader_options(loader))


def copy_loader_options(loader: DataLoader[Any]) -> dict[str, Any]:
    return {name: getattr(loader, name) for name in LOADER_OPTIONS if hasattr(loader, name)}


def check_dataset(loader: DataLoader[Any]) -> int:
    """Return the number of samples of a loader; raise BadSetting if it can't be sampled by index."""
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise BadSetting("Poisson sampling draws by index: give a dataset with __getitem__ and __len__, not a stream")
    if isinstance(loader, PoissonLoader):
        raise BadSetting("this loader is already private: pass the ordinary loader that it was made from")
    if loader.batch_size is None:
        raise BadSetting("this loader has no batch size: make it with batch_size=..., not with a batch_sampler or None")
    samples = len(loader.dataset)
    if samples == 0:
        raise BadSetting("the dataset is empty: there is nothing to sample")
    return samples


def check_sampler(sampler: object, rank: int, ranks: int) -> None:
    """Raise BadSetting if the sampler selects samples, or is for another rank."""
    if not isinstance(sampler, PLAIN_SAMPLERS):
        raise BadSetting(
            f"the loader's {type(sampler).__name__} would be lost: select samples by torch.utils.data.Subset instead"
        )
    if isinstance(sampler, DistributedSampler) and (sampler.rank, sampler.num_replicas) != (rank, ranks):
        raise BadSetting(
            f"the loader is for rank {sampler.rank} of {sampler.num_replicas}, but this is {rank} of {ranks}: "
            "pass the same rank= and ranks="
        )


def _find_rate(loader: DataLoader[Any], samples: int) -> float:
    batch_size = loader.batch_size or 1
    if batch_size > samples:
        raise BadSetting(f"batches of {batch_size} from {samples} samples: take a batch size of at most {samples}")
    return batch_size / samples


def micro_batches(batch: Any, size: int) -> list[Any]:
    """Split a batch into pieces of at most `size` samples, as views. An empty batch gives one empty piece.

    The batch's loader notes the pieces, so they may be copied to a device or changed before they go through the
    network.
    """
    check_count("size", size)
    samples = count_samples(batch)
    rows = [range(start, min(start + size, samples)) for start in range(0, max(1, samples), size)]
    note_pieces(list(tensors_in(batch)), samples, rows)
    return [_slice_batch(batch, slice(piece.start, piece.stop)) for piece in rows]


def count_samples(batch: Any) -> int:
    """Return the number of samples of a batch, which must be the same in all its parts."""
    lengths = set(_part_lengths(batch))
    if len(lengths) != 1:
        found = " and ".join(map(str, sorted(lengths))) or "none"
        raise BadSetting(
            f"all parts of a batch must have the same number of samples along the first dimension: {found}"
        )
    return lengths.pop()


def _part_lengths(batch: Any) -> Iterator[int]:
    if isinstance(batch, Tensor | np.ndarray):
        yield from batch.shape[:1]
    elif _is_column(batch):
        yield len(batch)
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _part_lengths(part)
    elif not isinstance(batch, SINGLE_VALUES):
        raise BadSetting(f"can't find the samples of a {type(batch).__name__}: use tensors in tuples, lists and dicts")


def tensors_in(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part)


def _slice_batch(batch: Any, rows: slice) -> Any:
    if isinstance(batch, Tensor | np.ndarray):
        return batch[rows] if batch.ndim else batch
    if _is_column(batch):
        return batch[rows]
    if isinstance(batch, MutableMapping):
        clone = copy.copy(batch)  # keeps the extra attributes of a library's own kind of dict
        clone.update({key: _slice_batch(part, rows) for key, part in batch.items()})
        return clone
    if isinstance(batch, Mapping):
        return {key: _slice_batch(part, rows) for key, part in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [_slice_batch(part, rows) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _is_column(batch: Any) -> bool:
    """Return True for a list with one value for each sample that isn't a tensor, such as names."""
    return isinstance(batch, list | tuple) and len(batch) > 0 and all(isinstance(part, SINGLE_VALUES) for part in batch)
