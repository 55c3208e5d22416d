"""Measure the time (at most 30 s), the memory (1 GB) and the size (3 MB) of the page of a very long run.

The run has 10,000 cells of a hundred steps each, and a million readings of telemetry with eight channels.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from _bars import Bar, finish

from rigdyno import __version__
from rigdyno.base.clock import SystemClock, utc_now
from rigdyno.base.units import seconds_of_ns
from rigdyno.rig.system import describe_system
from rigdyno.schema.channel import Channel
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import Completed, Facts, RunHead, RunRecord
from rigdyno.schema.samples import STEP_FIELDS, STEP_STRUCT, Header, RowFile, telemetry_header
from rigdyno.schema.spec import Cell, Participant, RunPlan, RunSpec, assign_participants, sampler_of
from rigdyno.schema.system import Environment
from rigdyno.store.folder import RunFolder

STEPS = 100
CHANNELS = ("cpu0", "cpu1", "worker_cpu_share", "run_queue_wait_share", "steal_share", "frequency_mhz", "a", "b")
# The child prints its own peak: the one that its parent sees may be the parent's.
CHILD = """
import sys
from rigdyno.cli import main
code = main(["report", sys.argv[1], "--html", sys.argv[2]])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) * 1024)
sys.exit(code)
"""


def long_run(root: Path, cells: int, readings: int) -> Path:
    plan = [
        Cell(
            name=f"{number:05d}-cell",
            spec=RunSpec(workload="tensor_add", options={"size": number}),
            participants=assign_participants(1, 1, "cpu"),
        )
        for number in range(1, cells + 1)
    ]
    system, environment = describe_system(()), Environment(python=sys.version.split()[0])
    folder = RunFolder.create(root, "long", utc_now())
    folder.write_head(RunHead.of(RunPlan(name="long", cells=tuple(plan)), system, environment))
    for number, cell in enumerate(plan):
        inside = CellFolder(folder.fresh_cell_folder(cell))
        _write_steps(inside, cell.participants[0], 10_000_000 + number % 7 * 1_000_000)
        _write_telemetry(inside, readings // cells)
        record = RunRecord(
            rigdyno_version=__version__, run=folder.name, cell=cell.name, started_at="", spec=cell.spec, system=system,
            environment=environment, facts=Facts(unit="iteration"), outcome=Completed(), participants=cell.participants,
        )  # fmt: skip
        folder.write_record(record, cell)
    return folder.path


def _write_steps(cell: CellFolder, who: Participant, step_ns: int) -> None:
    place = cell.participant(who.id)
    place.path.mkdir()
    file = RowFile(place.rows("steps"), Header(fields=STEP_FIELDS, kinds=("step",), participant=who))
    ends = [1_000_000_000 + number * step_ns + number * 7919 % 10_000 for number in range(STEPS + 1)]
    rows = [struct.pack(STEP_STRUCT, *pair, 1.0, 1, 0, 0) for pair in pairwise(ends)]
    file.append(b"".join(rows))
    file.close()


def _write_telemetry(cell: CellFolder, count: int) -> None:
    place = cell.participant(sampler_of(0).id)
    place.path.mkdir()
    header = telemetry_header([Channel(name, "", sensor="host") for name in CHANNELS], sampler_of(0))
    file = RowFile(place.rows("telemetry"), header)
    rows = np.zeros(count, dtype=np.dtype(list(header.fields)))
    rows["at_ns"] = 1_000_000_000 + np.arange(count) * 10_000_000
    file.append(rows.tobytes())
    file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of it, with the same bars")
    cells, readings = (1_000, 100_000) if parser.parse_args().quick else (10_000, 1_000_000)
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as root:
        run, page = long_run(Path(root), cells, readings), Path(root) / "page.html"
        began_ns = clock.now_ns()
        command = [sys.executable, "-c", CHILD, str(run), str(page)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds = seconds_of_ns(clock.now_ns() - began_ns)
        memory_bytes, size_bytes = int(said.split()[-1]), page.stat().st_size
    found = [
        ("page of a long run", seconds, "s", 30.0),
        ("its memory", memory_bytes / 1e9, "GB", 1.0),
        ("its size", size_bytes / 1e6, "MB", 3.0),
    ]
    finish([Bar(name, value, value, value, unit, bar) for name, value, unit, bar in found])


if __name__ == "__main__":
    main()
