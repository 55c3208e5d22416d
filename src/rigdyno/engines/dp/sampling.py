"""Poisson sampling, really done: the accountants take it that each sample joins each batch by a coin of its own.

Batches vary in size, then, and some are empty. Shuffled batches of one size cost more privacy than would be counted.
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
from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.seeds import FIRST, Turn, derived, seeded_generator
from rigdyno.engines.dp.tray import AHEAD, Slot, Tray, note_pieces

# What a loader has besides its batches; older torch lacks the last.
CARRIED_OVER = (
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
PLAIN_SAMPLERS = (SequentialSampler, RandomSampler, DistributedSampler)  # they mean every sample: nothing is lost
SINGLE_VALUES = (str, bytes, int, float, complex, type(None))


class PoissonSampler(Sampler[list[int]]):
    """Lists of indices, `steps` of them; every index is in every list with the given probability, independently.

    A rank yields its share, index % ranks == rank, but draws for all samples: equal seeds then give shares of one
    batch, and different ones independent shares. Drawn for the share alone, equal seeds would tie samples together.
    Whoever knows the seed knows the batches: `secure` takes its randomness from the operating system instead.
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
        turn: Turn | None = None,
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
        self._turn = turn

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def sample_rate(self) -> float:
        """Fixed from the start: what is counted is what was drawn by."""
        return self._sample_rate

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        uniform = _secure_uniform if self.secure else _seeded_uniform(self.generator, self._turn)
        for _ in range(self.steps):
            chosen = torch.nonzero(uniform(self.samples) < self.sample_rate).flatten()
            yield chosen[chosen % self.ranks == self.rank].tolist()


def _seeded_uniform(generator: torch.Generator | None, turn: Turn | None = None) -> Callable[[int], Tensor]:
    """From a stream of its own: what else is drawn from the generator meanwhile, noise above all, must neither shift
    the batches nor be made of the same bits."""
    device = "cpu" if generator is None else generator.device
    seed = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
    names = ["batches", FIRST if turn is None else turn.name()]
    own = seeded_generator(derived(np.frombuffer(int(seed).to_bytes(8, "little"), np.uint32), *names))
    # The default type has 24 bits: a rate of 1e-7 would become 1.2e-7.
    return lambda count: torch.rand(count, dtype=torch.float64, generator=own)


def _secure_uniform(count: int) -> Tensor:
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53)


class PoissonLoader(DataLoader[Any]):
    """A loader of Poisson batches. `expected_batch` is the mean over all ranks together, `drawn` the number of samples
    in the newest batch that was handed out here. `tray` holds the batches that no step has used yet."""

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
        self.drawn, self.tray = 0, Tray(ahead)

    @property
    def sample_rate(self) -> float:
        return self._poisson.sample_rate

    @property
    def expected_batch(self) -> float:
        return self._poisson.sample_rate * self._poisson.samples

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for drawn, batch in super().__iter__():
            self.drawn = drawn
            self.tray.put(Slot(drawn, self.sample_rate, self.expected_batch, tensors_in(batch)))
            yield batch


class GivenBatches:
    """Batches that were drawn elsewhere, nobody knows how. Each counts as if every sample were in it, which bounds what
    it costs as long as no sample is in a batch twice. `expected_batch` is the mean over all ranks together."""

    def __init__(self, batches: Iterable[Any], expected_batch: float, ahead: int = AHEAD) -> None:
        self._batches, self._expected_batch = batches, expected_batch
        self.drawn, self.tray = 0, Tray(ahead)

    @property
    def sample_rate(self) -> float:
        return 1.0

    @property
    def expected_batch(self) -> float:
        return self._expected_batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.drawn = samples_in(batch)
            self.tray.put(Slot(self.drawn, self.sample_rate, self.expected_batch, tensors_in(batch)))
            yield batch


class CountingCollate:
    """The count travels with its batch: workers draw ahead, and needn't answer in order."""

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __call__(self, samples: list[Any]) -> tuple[int, Any]:
        if len(samples) == 0:
            return 0, self._empty()
        return len(samples), self._collate(samples)

    def _empty(self) -> Any:
        """What one sample becomes, without that sample. Only when it is needed, and here: many datasets open their
        files at the first access, which has to happen inside the worker."""
        one = self._collate([self._dataset[0]])
        if samples_in(one) != 1:
            raise BadSetting("an empty batch can't be made: collate_fn must put samples along the first dimension")
        return _part(one, slice(0, 0))


def private_loader(
    loader: DataLoader[Any],
    sample_rate: float | None = None,
    generator: torch.Generator | None = None,
    secure: bool = False,
    rank: int = 0,
    ranks: int = 1,
    ahead: int = AHEAD,
    turn: Turn | None = None,
) -> PoissonLoader:
    """The same loader with Poisson batches. Its batch size is the mean of all ranks' batches together, unless a rate is
    given; an epoch has as many steps as visit every sample once, on average."""
    samples = samples_behind(loader)
    refuse_sampler(loader.sampler, rank, ranks)
    rate = _rate(loader, samples) if sample_rate is None else sample_rate
    check_sample_rate(rate)
    source = generator if secure or generator is not None else loader.generator
    sampler = PoissonSampler(samples, rate, max(1, round(1 / rate)), source, secure, rank, ranks, turn)
    return PoissonLoader(loader.dataset, sampler, loader.collate_fn, ahead, **carried_over(loader))


def carried_over(loader: DataLoader[Any]) -> dict[str, Any]:
    return {name: getattr(loader, name) for name in CARRIED_OVER if hasattr(loader, name)}


def samples_behind(loader: DataLoader[Any]) -> int:
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise BadSetting("Poisson sampling draws by index: give a dataset with __getitem__ and __len__, not a stream")
    if isinstance(loader, PoissonLoader):
        raise BadSetting("this loader is a private one already: give the ordinary loader that it was made from")
    if loader.batch_size is None:
        raise BadSetting("this loader has no batch size: make it with batch_size=..., not with a batch_sampler or None")
    samples = len(loader.dataset)
    if samples == 0:
        raise BadSetting("the dataset is empty: there is nobody to sample")
    return samples


def refuse_sampler(sampler: object, rank: int, ranks: int) -> None:
    if not isinstance(sampler, PLAIN_SAMPLERS):
        raise BadSetting(
            f"the loader's {type(sampler).__name__} would get lost: choose samples by torch.utils.data.Subset instead"
        )
    if isinstance(sampler, DistributedSampler) and (sampler.rank, sampler.num_replicas) != (rank, ranks):
        raise BadSetting(
            f"the loader is for rank {sampler.rank} of {sampler.num_replicas}, and this is {rank} of {ranks}: "
            "give rank= and ranks= to fit"
        )


def _rate(loader: DataLoader[Any], samples: int) -> float:
    batch_size = loader.batch_size or 1
    if batch_size > samples:
        raise BadSetting(f"batches of {batch_size} from {samples} samples: take a batch size of at most {samples}")
    return batch_size / samples


def micro_batches(batch: Any, size: int) -> list[Any]:
    """Pieces of at most so many samples, as views; an empty batch is one empty piece. The batch's loader is told, so
    that the pieces may be copied to a device or changed before they go through the network."""
    check_count("size", size)
    samples = samples_in(batch)
    rows = [range(start, min(start + size, samples)) for start in range(0, max(1, samples), size)]
    note_pieces(list(tensors_in(batch)), samples, rows)
    return [_part(batch, slice(piece.start, piece.stop)) for piece in rows]


def samples_in(batch: Any) -> int:
    lengths = set(_lengths(batch))
    if len(lengths) != 1:
        found = " and ".join(map(str, sorted(lengths))) or "none"
        raise BadSetting(
            f"all parts of a batch must have the same number of samples along the first dimension: {found}"
        )
    return lengths.pop()


def _lengths(batch: Any) -> Iterator[int]:
    if isinstance(batch, Tensor | np.ndarray):
        yield from batch.shape[:1]
    elif _is_column(batch):
        yield len(batch)
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _lengths(part)
    elif not isinstance(batch, SINGLE_VALUES):
        raise BadSetting(f"can't tell the samples of a {type(batch).__name__}: use tensors in tuples, lists and dicts")


def tensors_in(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part)


def _part(batch: Any, rows: slice) -> Any:
    if isinstance(batch, Tensor | np.ndarray):
        return batch[rows] if batch.ndim else batch
    if _is_column(batch):
        return batch[rows]
    if isinstance(batch, MutableMapping):
        clone = copy.copy(batch)  # keeps what a library's own kind of dict carries besides
        clone.update({key: _part(part, rows) for key, part in batch.items()})
        return clone
    if isinstance(batch, Mapping):
        return {key: _part(part, rows) for key, part in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [_part(part, rows) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _is_column(batch: Any) -> bool:
    """A value for each sample, that no tensor can hold: names, say."""
    return isinstance(batch, list | tuple) and len(batch) > 0 and all(isinstance(part, SINGLE_VALUES) for part in batch)
