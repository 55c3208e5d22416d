"""A loader of batches of one size, with each sample once per epoch, for training that can't use varying batch sizes.

Sampling doesn't reduce the cost then. Within an epoch a sample is in one batch only, and everything later is computed
from what that batch released. So an epoch costs as much as one step on all samples, however many batches it has. The
order doesn't matter for that, and may be known. Neighbouring datasets differ by one sample that is left empty: adding a
sample would move others to other batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from rigdyno.engines.dp.batches.pending import AHEAD, PendingBatch, PendingBatches
from rigdyno.engines.dp.batches.sampling import (
    CountingCollate,
    check_dataset,
    check_sampler,
    copy_loader_options,
    tensors_in,
)
from rigdyno.engines.dp.errors import BadSetting

ADJACENCY = "leave one sample's place empty"


class ShuffledLoader(DataLoader[Any]):
    """A loader of shuffled batches. The first batch of an epoch pays for the whole epoch."""

    def __init__(self, loader: DataLoader[Any], generator: torch.Generator | None, ahead: int = AHEAD) -> None:
        collate = CountingCollate(loader.dataset, loader.collate_fn)
        order = RandomSampler(loader.dataset, generator=generator or loader.generator)  # type: ignore[arg-type]
        batches = {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": order}
        super().__init__(loader.dataset, collate_fn=collate, **batches, **copy_loader_options(loader))  # type: ignore[arg-type]
        self.drawn, self.pending = 0, PendingBatches(ahead)

    @property
    def sample_rate(self) -> float:
        return 1.0

    @property
    def expected_batch(self) -> float:
        assert self.batch_size is not None
        return float(self.batch_size)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for number, (drawn, batch) in enumerate(super().__iter__()):
            self.drawn = drawn
            tensors = tensors_in(batch)
            self.pending.add(PendingBatch(drawn, self.sample_rate, self.expected_batch, tensors, counts=number == 0))
            yield batch


def shuffled_loader(
    loader: DataLoader[Any], generator: torch.Generator | None, ranks: int = 1, ahead: int = AHEAD
) -> ShuffledLoader:
    if ranks > 1:
        raise BadSetting("several ranks need Poisson sampling: leave out poisson_sampling=False")
    samples = check_dataset(loader)
    check_sampler(loader.sampler, 0, 1)
    if loader.drop_last and (loader.batch_size or 1) > samples:
        raise BadSetting(
            f"batches of {loader.batch_size} from {samples} samples: no batch is full, so drop_last drops all"
        )
    return ShuffledLoader(loader, generator, ahead)
