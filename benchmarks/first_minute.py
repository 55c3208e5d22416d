"""Measure how long a new user waits for `rigdyno list` (at most 0.3 s) and bare `rigdyno` (at most 60 s).

`rigdyno list` takes turns with a Python that does nothing, so that a slow moment of the machine shows in both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from _bars import Bar, finish, median_bar

from rigdyno.base.clock import SystemClock
from rigdyno.base.units import seconds_of_ns


def seconds_of(command: list[str], folder: str) -> float:
    clock = SystemClock()
    began_ns = clock.now_ns()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return seconds_of_ns(clock.now_ns() - began_ns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the listing only, fewer times")
    quick = parser.parse_args().quick
    rigdyno = str(Path(sys.executable).parent / "rigdyno")
    with tempfile.TemporaryDirectory() as folder:
        listing, nothing = [], []
        for _ in range(11 if quick else 31):
            listing.append(seconds_of([rigdyno, "list"], folder))
            nothing.append(seconds_of([sys.executable, "-c", "pass"], folder))
        print(f"a Python that does nothing: {sorted(nothing)[len(nothing) // 2]:.3f} s (median)")
        bars = [median_bar("rigdyno list", listing, "s", 0.3)]
        if not quick:
            whole = [seconds_of([rigdyno], folder) for _ in range(3)]
            bars.append(Bar("bare rigdyno", sorted(whole)[1], min(whole), max(whole), "s", 60.0))
    finish(bars)


if __name__ == "__main__":
    main()
