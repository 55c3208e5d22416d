"""Who took part in a cell: a rank that steps, a node's sampler, later a server or a party."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

RANK, SAMPLER = "rank", "sampler"  # roles; only ranks step

FolderName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """One process that leaves files behind. Times of two participants can be held against each other only if both are
    by the same clock."""

    id: FolderName  # names its folder in the cell's
    role: str = RANK
    rank: Count | None = None  # None: it doesn't step
    node: Count = 0
    device: str | None = None
    clock: str = "node0"


class ClockPair(msgspec.Struct, frozen=True, kw_only=True):
    """How far another node's clock was ahead of the one of whoever led the run."""

    clock: str
    when: Literal["start", "end"]  # of the cell
    at_ns: int  # by the leader's clock
    offset_ns: int
    uncertainty_ns: int  # the true offset is at most so far away: half of the round trip


def laid_out(ranks: int, nodes: int, device: str, *, sampled: bool = True) -> tuple[Participant, ...]:
    """Ranks in blocks, one block a node, and the sampler of each node."""
    each = max(1, ranks // max(1, nodes))
    numbered = device != "cpu" and ":" not in device and ranks > 1
    stepping = [
        Participant(
            id=f"rank{rank}",
            rank=rank,
            node=rank // each,
            device=f"{device}:{rank % each}" if numbered else device,
            clock=clock_of(rank // each),
        )
        for rank in range(ranks)
    ]
    return (*stepping, *(sampler_of(node) for node in range(nodes) if sampled))


def sampler_of(node: int) -> Participant:
    return Participant(id=f"node{node}", role=SAMPLER, node=node, clock=clock_of(node))


def clock_of(node: int) -> str:
    """All processes of a node share its monotonic clock."""
    return f"node{node}"


def on_node(participants: Iterable[Participant], node: int) -> list[Participant]:
    return [each for each in participants if each.node == node]


def ranks_among(participants: Iterable[Participant]) -> list[Participant]:
    """In the order of their ranks."""
    stepping = [(each.rank, each) for each in participants if each.rank is not None]
    return [each for _, each in sorted(stepping, key=lambda pair: pair[0])]


def sampler_among(participants: Iterable[Participant]) -> Participant | None:
    return next((each for each in participants if each.role == SAMPLER), None)
