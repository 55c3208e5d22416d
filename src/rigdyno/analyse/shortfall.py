"""Why several ranks do less than so many times the work of one: where the time of a step went.

Every rank does as much in a step as one alone would, so whatever its step takes longer is lost. All wait for the rank
that computes longest: up to there a second is lost to computing, behind that to the link. Clocks of different nodes are
never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median_low
from typing import NamedTuple

from rigdyno.schema.measured import Phases
from rigdyno.schema.samples import COMPUTING


class Shortfall(NamedTuple):
    """Seconds of a step."""

    ideal: float  # what one rank alone takes
    computing: float  # what a typical rank computes longer than that: cores share caches, memory and power
    waiting: float  # for whichever rank computes longest, beyond what is typical
    communication: float  # that no computing hides
    slowest_rank: int
    slowest_ratio: float  # how long that rank computes, beside what is typical

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
    (one,) = alone.by_rank.values()
    computed = {rank: _computing(phases) for rank, phases in together.by_rank.items()}
    typical = median_low(computed.values())  # of two, the quicker one: the other is the one that is waited for
    slowest = max(computed, key=lambda rank: computed[rank])
    return Shortfall(
        ideal=sum(one.values()),
        computing=typical - _computing(one),
        waiting=together.longest_computing - typical,
        communication=fmean(sum(phases.values()) for phases in together.by_rank.values()) - together.longest_computing,
        slowest_rank=slowest,
        slowest_ratio=computed[slowest] / typical,
    )


def _computing(rank: Mapping[str, float]) -> float:
    return sum(rank.get(phase, 0.0) for phase in COMPUTING)
