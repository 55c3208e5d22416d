"""The workload of a search attempt: it has batches of the largest size that occurs, and runs only steps."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from rigdyno.contracts import Samples, Steps, Training, WorkerPlace, Workload

RARE = 1e-4  # probability that a randomly drawn batch is larger than those of an attempt


class FixedBatchWorkload:
    """Behaves like the workload, except for what it builds.

    An update that draws random batches gets a data set so small that every sample is in every batch. Its size is one
    that a batch of the whole data set rarely exceeds."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.epoch_items: int | None = None  # size of the original data set
        self.drawn: int | None = None  # samples per batch; None if the update draws no batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def build(self, place: WorkerPlace) -> Steps | Training:
        built = self._workload.build(place)
        if not isinstance(built, Training):
            return built
        self.epoch_items = None if built.samples is None else built.samples.count * place.world_size
        samples = None if built.samples is None else self._shrink_samples(built.samples)
        return replace(built, samples=samples, accuracy=None)  # evaluation takes time and memory

    def _shrink_samples(self, samples: Samples) -> Samples:
        most = rarely_exceeded(samples.count, samples.batch_size)

        def pick(chosen: Any) -> tuple[Any, Any]:
            self.drawn = most
            return samples.pick(chosen)

        return Samples(most, most, pick)


def rarely_exceeded(count: int, batch_size: int, rare: float = RARE) -> int:
    """Return the batch size that Poisson sampling exceeds with probability `rare`.

    It is a quantile of the binomial distribution, computed with the Cornish-Fisher expansion."""
    rate = min(1.0, batch_size / count)
    deviation = math.sqrt(count * rate * (1 - rate))
    z = NormalDist().inv_cdf(1 - rare)
    skewed = (z * z - 1) * (1 - 2 * rate) / 6
    return min(count, max(batch_size, math.ceil(count * rate + z * deviation + skewed)))
