"""Derive streams of random numbers from a seed, and describe the ranks that train one network together.

A seed repeats a run from its beginning. A run that continues from a ledger with any count must repeat nothing: the
difference of two steps with the same noise contains no noise. So each make_private has a scope with a name, and random
numbers are derived from the seed and that name together.

With several ranks, each clips its own samples, the first one adds the noise, and then the sums of all ranks are added.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from rigdyno.engines.dp.ledger import Ledger

Key = NDArray[np.uint32]

FIRST_SCOPE = "first"

# Layout of the state of torch's CPU generator (mt19937): its length, where its 624 words begin, and how many there are.
# Each word takes eight bytes.
STATE_BYTES, WORDS_AT, WORDS = 5056, 24, 624


@dataclass(frozen=True)
class RankGroup:
    """This process's rank, and the number of ranks, as in torch.distributed."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> RankGroup:
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_(self, values: Tensor) -> None:
        if self.count > 1:
            dist.all_reduce(values)

    def broadcast_name(self, name: str) -> str:
        """Return the first rank's name on every rank."""
        names = [name]
        if self.count > 1:
            dist.broadcast_object_list(names, src=0)
        return names[0]

    def broadcast_parameters(self, network: nn.Module) -> None:
        """Copy the first rank's parameters and buffers to all ranks."""
        if self.count > 1:
            for value in network.state_dict().values():
                dist.broadcast(value, src=0)


class SeedScope:
    """The random numbers from one make_private to its end. Only the first scope of a ledger has a name that repeats."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._restarts = ledger, ledger.restarts
        self._name = RankGroup.current().broadcast_name(_make_name() if ledger.used else FIRST_SCOPE)

    def current_name(self) -> str:
        """Return the name of this scope; it changes if the ledger was forked or has loaded another history."""
        if self._restarts != self._ledger.restarts:
            self._restarts, self._name = self._ledger.restarts, _make_name()
        return self._name


def _make_name() -> str:
    return uuid.uuid4().hex


def derive_key(key: Key, *names: str) -> Key:
    """Derive a separate key for each list of names. The original key can't be recovered from a derived one."""
    digest = hashlib.sha256("\n".join((key.tobytes().hex(), *names)).encode()).digest()
    return np.array(np.frombuffer(digest, np.uint32))


def seeded_generator(key: Key, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator that is seeded with all bits of the key.

    On a CPU, torch's own seed has 32 bits: among a hundred thousand such seeds, two are likely to be equal.
    """
    generator = torch.Generator(device)
    generator.manual_seed(int(key[0]) | int(key[1] >> 1) << 32)
    state = generator.get_state()
    if generator.device.type == "cpu" and len(state) == STATE_BYTES:
        words = np.frombuffer(hashlib.shake_256(key.tobytes()).digest(4 * WORDS), np.uint32)
        state[WORDS_AT : WORDS_AT + 8 * WORDS].view(torch.int64).copy_(torch.from_numpy(words.astype(np.int64)))
        generator.set_state(state)
    return generator
