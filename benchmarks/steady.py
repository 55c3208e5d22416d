"""Check that the warm-up is cut where it ends, on streams with a known warm-up.

Real steps of this machine are recorded in fresh processes: in cache, plain Python, hashing, memory-bound, training. The
noise are steady pieces, in their own order, of those that other tenants didn't spoil; warm-ups of many shapes and sizes
are put on it, and levels that never settle. As the warm-up is known, so is the bias that it leaves in the throughput
after a cut. The rule is compared with dropping the first tenth, and with dropping nothing.

The bars, and why:
- bias left at most 1 % in 95 % of the streams that settle: processes of the same code differ by as much, so that less
  can't be seen; 90 % within each shape, so that none is sacrificed for the others.
- at most a tenth of the good steps cut away in 95 %: that widens an interval by 5 % at most.
- streams that never settle are found in 95 %, and at most 5 % of those that do are called so: the usual error rate.
Intervals are Clopper and Pearson's over streams. Streams share recordings: they hold for this machine's noise of now.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from _bars import Bar, finish, share_bar
from _noise import Recording, recorded
from _warm_ups import NEVER_SETTLING, SETTLING, Shape, Stream

from rigdyno.analyse.steady import Steady, steady_window

LENGTHS = (20, 40, 100, 300, 1000, 3000)
MOST_BIAS = 0.01
MOST_GOOD_CUT = 0.10


class Judged(NamedTuple):
    stream: Stream
    found: Steady

    @property
    def unbiased(self) -> bool:
        return abs(self.stream.bias_left(self.found.start)) <= MOST_BIAS

    @property
    def thrifty(self) -> bool:
        return self.stream.good_share_cut(self.found.start) <= MOST_GOOD_CUT


def made(recordings: Sequence[Recording], each: int, draw: np.random.Generator) -> list[Stream]:
    """Make `each` streams of every shape, from every recording, at every length of which it has a steady piece."""
    return [
        Stream(shape.__name__, shape in SETTLING, piece, shape(length, draw))
        for recording in recordings
        for length in LENGTHS
        for shape in (*SETTLING, *NEVER_SETTLING)
        for _ in range(each)
        if (piece := recording.steady_piece(length, draw)) is not None
    ]


def naive_share(streams: Sequence[Stream], start: Callable[[int], int]) -> float:
    return float(np.mean([abs(stream.bias_left(start(len(stream.factor)))) <= MOST_BIAS for stream in streams]))


def print_recordings(recordings: Sequence[Recording]) -> None:
    print("recorded        step    rows   5 % at  95 % at   steady")
    for recording in recordings:
        print(recording.line())


def print_shapes(judged: Sequence[Judged]) -> None:
    print(f"\n{'':<18}{'':>8} {'bias left at most 1 %':^29} {'a tenth cut':>12} {'never':>8}")
    print(f"{'shape':<18}{'streams':>8} {'rule':>9} {'drop 10 %':>9} {'drop none':>9} {'at most':>12} {'settled':>8}")
    for shape in (*SETTLING, *NEVER_SETTLING):
        print(shape_line(shape, [each for each in judged if each.stream.shape == shape.__name__]))


def shape_line(shape: Shape, judged: Sequence[Judged]) -> str:
    line = f"{shape.__name__:<18}{len(judged):>8}"
    if not judged:
        return line
    unsettled = np.mean([not each.found.settled for each in judged])
    if shape in NEVER_SETTLING:
        return f"{line} {'':>29} {'':>12} {unsettled:>8.1%}"
    streams = [each.stream for each in judged]
    rule, thrifty = (np.mean([getattr(each, name) for each in judged]) for name in ("unbiased", "thrifty"))
    tenth, nothing = naive_share(streams, lambda count: count // 10), naive_share(streams, lambda _count: 0)
    return f"{line} {rule:>9.1%} {tenth:>9.1%} {nothing:>9.1%} {thrifty:>12.1%} {unsettled:>8.1%}"


def bars(judged: Sequence[Judged], at_least: int) -> list[Bar]:
    settling = [each for each in judged if each.stream.settles]
    never = [each for each in judged if not each.stream.settles]
    unbiased = [each.unbiased for each in settling]
    by_shape = [[each.unbiased for each in settling if each.stream.shape == shape.__name__] for shape in SETTLING]
    worst = min(by_shape, key=lambda shape: sum(shape) / max(1, len(shape)))
    return [
        Bar("streams made", len(judged), len(judged), len(judged), "streams", at_least, "least"),
        share_bar("bias left at most 1 %", unbiased, 0.95, "least"),
        share_bar("the same, worst shape", worst, 0.90, "least"),
        share_bar("at most a tenth of the good steps cut", [each.thrifty for each in settling], 0.95, "least"),
        share_bar("never settled, rightly said", [not each.found.settled for each in never], 0.95, "least"),
        share_bar("never settled, wrongly said", [not each.found.settled for each in settling], 0.05, "most"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter recordings, one process a kind")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        recordings = recorded(folder, seconds=3.0 if quick else 6.0, repeat=1 if quick else 2)
    streams = made(recordings, 16, np.random.default_rng(3))
    judged = [Judged(stream, steady_window(stream.durations)) for stream in streams]
    print_recordings(recordings)
    print_shapes(judged)
    print()
    finish(bars(judged, at_least=1000))


if __name__ == "__main__":
    main()
