"""Why several ranks do less than so many times the work of one: where the time of a step went.

Every rank does as much in a step as one alone would. What its step takes longer is lost, and each second of that loss
was spent computing, waiting for a slower rank, or waiting for the link. Clocks of different nodes are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from rigdyno.schema.measured import Phases

COMPUTING = ("data", "forward", "backward", "optimizer")
TALKING = ("broadcast", "communication")


class Shortfall(NamedTuple):
    """Seconds of a step, as means over the ranks."""

    ideal: float  # what one rank alone takes
    computing: float  # what computing takes longer than that: cores share caches, memory and power
    waiting: float  # for the slowest rank to have computed
    communication: float  # that no computing hides
    slowest_rank: int
    slowest_ratio: float  # how long that rank computes, beside the median of the others

    @property
    def lost(self) -> float:
        return self.computing + self.waiting + self.communication

    @property
    def efficiency(self) -> float:
        return self.ideal / (self.ideal + self.lost)

    @property
    def cause(self) -> str:
        """The largest part of the loss."""
        parts = {"computing": self.computing, "waiting": self.waiting, "communication": self.communication}
        return max(parts, key=lambda name: parts[name])

    def share(self, part: float) -> float:
        return max(0.0, part) / self.lost if self.lost > 0 else 0.0


def shortfall(alone: Phases, together: Phases) -> Shortfall:
    computed = [_seconds(rank, COMPUTING) for rank in together.by_rank]
    talked = [_seconds(rank, TALKING) for rank in together.by_rank]
    slowest = max(range(len(computed)), key=lambda rank: computed[rank])
    # A rank that has computed early waits for the slowest first: only what is left of its waiting is the link's.
    waited = [min(computed[slowest] - own, spent) for own, spent in zip(computed, talked, strict=True)]
    ideal = sum(alone.by_rank[0].values())
    return Shortfall(
        ideal=ideal,
        computing=fmean(computed) - _seconds(alone.by_rank[0], COMPUTING),
        waiting=fmean(waited),
        communication=fmean(talked) - fmean(waited),
        slowest_rank=slowest,
        slowest_ratio=computed[slowest] / _median_of_others(computed, slowest),
    )


def _seconds(rank: Mapping[str, float], phases: Sequence[str]) -> float:
    return sum(rank.get(phase, 0.0) for phase in phases)


def _median_of_others(computed: Sequence[float], one: int) -> float:
    return median([seconds for rank, seconds in enumerate(computed) if rank != one] or [computed[one]])
