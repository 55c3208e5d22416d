"""The process that reads a node's probes while its ranks work:
`python -m rigdyno.runner.sampler <cell folder> <process id of the parent> <participant> [<another cell's folder> ...]`.

It is separate from the ranks, so that reading never lengthens a step, and writes telemetry until it gets SIGTERM. Ranks
of the other cells, which run at the same time, are included.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from rigdyno.base.clock import Clock, SystemClock, process_cpu_ns
from rigdyno.base.files import read_json
from rigdyno.base.processes import die_with_parent, write_pid
from rigdyno.base.units import NS_PER_S, seconds_of_ns
from rigdyno.probes.common.probe_set import ProbeSet, load_probes
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.samples import SAMPLER_SECONDS, RowFile, telemetry_header
from rigdyno.schema.spec import Cell, Participant, on_node, ranks_among

# One reading takes 0.3 to 0.8 ms of an idle core, and disturbs the machine that is measured; ten readings are enough to
# judge five seconds. With many probes a reading takes longer: then the interval grows, up to one second.
INTERVAL_NS = int(SAMPLER_SECONDS * NS_PER_S)

MOST_RARELY_NS = 2 * INTERVAL_NS

MOST_SHARE = 0.0015  # of a core's time

_WEIGHT = 0.2  # of the newest reading in the moving average of the cost


class Sampler:
    def __init__(
        self,
        path: Path,
        own: Participant,
        clock: Clock,
        meters: ProbeSet,
        cpu_ns: Callable[[], int] = process_cpu_ns,
        most_rarely_ns: int = MOST_RARELY_NS,
    ) -> None:
        self._clock, self._meters = clock, meters
        self._cpu_ns, self._most_rarely_ns = cpu_ns, most_rarely_ns
        self._spent_ns, self._cost_ns = cpu_ns(), 0.0
        self._row = struct.Struct(f"<q{len(meters.channels)}d")
        self._file = RowFile(path, telemetry_header(meters.channels, own, meters.absent))

    def run(self, stopped: Callable[[], bool]) -> None:
        """Read until stopped, at fixed times, not after fixed pauses: a slow reading doesn't shift the next ones."""
        due_ns = self._clock.now_ns()
        while not stopped():
            self.read()
            due_ns = max(due_ns + self._pause_ns(), self._clock.now_ns())
            self._clock.sleep(max(0.0, seconds_of_ns(due_ns - self._clock.now_ns())))  # it may be due by now

    def _pause_ns(self) -> int:
        """Return the pause until the next reading, in proportion to the CPU time of a reading."""
        spent_ns = self._cpu_ns()
        newest_ns, self._spent_ns = spent_ns - self._spent_ns, spent_ns
        self._cost_ns += (_WEIGHT if self._cost_ns else 1.0) * (newest_ns - self._cost_ns)
        return min(max(INTERVAL_NS, round(self._cost_ns / MOST_SHARE)), self._most_rarely_ns)

    def read(self) -> list[float]:
        at_ns = self._clock.now_ns()
        values = self._meters.read()
        self._file.append(self._row.pack(at_ns, *values))
        return values

    def close(self) -> None:
        self._meters.close()
        self._file.close()


def pid_files(folder: Path, node: int) -> list[Path]:
    """Return the files to which the ranks of this node write their process ids."""
    cell = CellFolder(folder)
    participants = read_json(cell.spec, Cell).participants
    return [cell.participant(rank.id).pid for rank in ranks_among(on_node(participants, node))]


def worker_pids(files: Sequence[Path]) -> list[int]:
    """Return the process ids of the ranks that have started; ranks may start after the sampler."""
    texts = (path.read_text() for path in files if path.exists())
    return [int(text) for text in texts if text.isdigit()]


def _warn(words: str) -> None:
    print(words, file=sys.stderr)  # noqa: T201


def main(arguments: Sequence[str]) -> int:
    folder, parent_pid, name, *other_folders = Path(arguments[0]), int(arguments[1]), *arguments[2:]
    die_with_parent(parent_pid)
    signals: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    signal.signal(signal.SIGTERM, stop)
    own = next(each for each in read_json(CellFolder(folder).spec, Cell).participants if each.id == name)
    home = CellFolder(folder).participant(own.id)
    write_pid(home.pid)
    watched = [path for each in (folder, *map(Path, other_folders)) for path in pid_files(each, own.node)]
    clock = SystemClock()
    meters = ProbeSet(load_probes(_warn), lambda: worker_pids(watched), clock)
    # In a duel by joules, the turns of the arms are planned for a certain number of readings.
    most_rarely_ns = INTERVAL_NS if other_folders else MOST_RARELY_NS
    sampler = Sampler(home.rows("telemetry"), own, clock, meters, most_rarely_ns=most_rarely_ns)
    try:
        sampler.run(lambda: bool(signals) or os.getppid() != parent_pid)
    finally:
        sampler.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
