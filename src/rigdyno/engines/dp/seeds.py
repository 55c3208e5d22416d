"""From a seed to streams of random numbers that nobody has had before.

A seed repeats a run from its beginning. A run that goes on, on a ledger that has counted anything, must repeat nothing:
the difference of two steps with the same noise has none. So each turn of training has a name, and what is drawn comes
from the seed and the name together.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rigdyno.engines.dp.ranks import Ranks

if TYPE_CHECKING:
    from rigdyno.engines.dp.ledger import Ledger

Key = NDArray[np.uint32]

FIRST = "first"
# Of torch's generator for CPUs: where its 624 words lie, each in eight bytes, and how long the whole is.
STATE_BYTES, WORDS_AT, WORDS = 5056, 24, 624


class Turn:
    """From one make_private to its end. Only the first on a ledger has a name that repeats."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._restarts = ledger, ledger.restarts
        self._name = Ranks.here().agreed(_random_name() if ledger.used else FIRST)

    def name(self) -> str:
        if self._restarts != self._ledger.restarts:
            self._restarts, self._name = self._ledger.restarts, _random_name()
        return self._name


def _random_name() -> str:
    return uuid.uuid4().hex


def derived(key: Key, *names: str) -> Key:
    """A key of its own for each list of names; neither leads back to the key it came from."""
    digest = hashlib.sha256("\n".join((key.tobytes().hex(), *names)).encode()).digest()
    return np.array(np.frombuffer(digest, np.uint32))


def seeded_generator(key: Key, device: torch.device | str = "cpu") -> torch.Generator:
    """With all of the key: torch's own seed has 32 bits on a CPU, of which a hundred thousand are seldom all
    different."""
    generator = torch.Generator(device)
    generator.manual_seed(int(key[0]) | int(key[1] >> 1) << 32)
    state = generator.get_state()
    if generator.device.type == "cpu" and len(state) == STATE_BYTES:
        words = np.frombuffer(hashlib.shake_256(key.tobytes()).digest(4 * WORDS), np.uint32)
        state[WORDS_AT : WORDS_AT + 8 * WORDS].view(torch.int64).copy_(torch.from_numpy(words.astype(np.int64)))
        generator.set_state(state)
    return generator
