"""An arm of a duel without a framework: starts in milliseconds, so that hundreds of duels end in minutes.

`python -S -E _light_arm.py <socket's descriptor> <bytes to digest in a step>`: no site packages to look through.
"""

from __future__ import annotations

import socket
import struct
import sys
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from rigdyno.base.clock import SystemClock
from rigdyno.runner.pairs.turns import TurnMeter


class NoFile:
    """The benchmark looks at what the referee hears; nothing is kept."""

    def append(self, rows: bytes) -> None: ...

    def close(self) -> None: ...


def main(descriptor: str, size: str) -> None:
    block = bytes(int(size))
    meter = TurnMeter(NoFile(), struct.Struct("<qqdIHH"), SystemClock(), socket.socket(fileno=int(descriptor)))
    while meter.more():
        sha256(block)
        meter.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
