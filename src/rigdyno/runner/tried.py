"""A workload as a search tries it: with batches as large as they become, and nothing but the steps."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from rigdyno.contracts import Place, Samples, Steps, Training, Workload

RARE = 1e-4  # with this probability a batch that is drawn at random is larger than those of a try


class CrowdedWorkload:
    """The workload itself, but for what it builds. An update that draws its batches is given so few samples that each
    is in every batch: as many as a batch has with all but a small probability."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.epoch_items: int | None = None  # of the data set as it is
        self.drawn: int | None = None  # samples of a batch; None: the update draws none

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def build(self, place: Place) -> Steps | Training:
        built = self._workload.build(place)
        if not isinstance(built, Training):
            return built
        self.epoch_items = None if built.samples is None else built.samples.count * place.world_size
        samples = None if built.samples is None else self._crowded(built.samples)
        return replace(built, samples=samples, accuracy=None)  # evaluating takes time, and memory of its own

    def _crowded(self, samples: Samples) -> Samples:
        most = rarely_exceeded(samples.count, samples.batch_size)

        def pick(chosen: Any) -> tuple[Any, Any]:
            self.drawn = most
            return samples.pick(chosen)

        return Samples(most, most, pick)


def rarely_exceeded(count: int, batch_size: int, rare: float = RARE) -> int:
    """The batch size that Poisson sampling exceeds with this probability: a quantile of the binomial distribution, by
    Cornish and Fisher's expansion."""
    rate = min(1.0, batch_size / count)
    deviation = math.sqrt(count * rate * (1 - rate))
    z = NormalDist().inv_cdf(1 - rare)
    skewed = (z * z - 1) * (1 - 2 * rate) / 6
    return min(count, max(batch_size, math.ceil(count * rate + z * deviation + skewed)))
