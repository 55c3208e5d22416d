"""Batches of one size, each sample once an epoch: for whoever can't have batches that vary.

Nothing is gained by sampling then. Within an epoch a sample is in one batch only, and all that comes later is computed
from what that batch released: so an epoch costs what one step on all samples would cost, however many batches it has.
The order plays no part in that, and may be known. Neighbours differ by one sample whose place stays empty: adding one
would move the others to other batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from rigdyno.engines.dp.errors import BadSetting
from rigdyno.engines.dp.sampling import CountingCollate, carried_over, refuse_sampler, samples_behind, tensors_in
from rigdyno.engines.dp.tray import AHEAD, Slot, Tray

ADJACENCY = "leave one sample's place empty"


class ShuffledLoader(DataLoader[Any]):
    """The first batch of every epoch pays for all of them."""

    def __init__(self, loader: DataLoader[Any], generator: torch.Generator | None, ahead: int = AHEAD) -> None:
        collate = CountingCollate(loader.dataset, loader.collate_fn)
        order = RandomSampler(loader.dataset, generator=generator or loader.generator)  # type: ignore[arg-type]
        batches = {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": order}
        super().__init__(loader.dataset, collate_fn=collate, **batches, **carried_over(loader))  # type: ignore[arg-type]
        self.drawn, self.tray = 0, Tray(ahead)

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
            self.tray.put(Slot(drawn, self.sample_rate, self.expected_batch, tensors, counts=number == 0))
            yield batch


def shuffled_loader(
    loader: DataLoader[Any], generator: torch.Generator | None, ranks: int = 1, ahead: int = AHEAD
) -> ShuffledLoader:
    if ranks > 1:
        raise BadSetting("several ranks draw by Poisson: leave poisson_sampling as it is")
    samples = samples_behind(loader)
    refuse_sampler(loader.sampler, 0, 1)
    if loader.drop_last and (loader.batch_size or 1) > samples:
        raise BadSetting(f"batches of {loader.batch_size} from {samples} samples: none is full, and drop_last drops it")
    return ShuffledLoader(loader, generator, ahead)
