"""Whether Horovod is here: two ranks that really sum a number, in child processes, within a bounded time.

What `horovodrun --check-build` says is what was asked for when it was built. Each of the two ranks is
`python -m rigdyno.launchers._horovodrun_presence rank <framework> <transport>`.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rigdyno.launchers import _horovodrun_gloo as gloo
from rigdyno.launchers import _horovodrun_mpi as mpi
from rigdyno.launchers._address import LOOPBACK
from rigdyno.launchers._children import Child
from rigdyno.launchers._ranks import stop
from rigdyno.launchers.torchrun import listening_at, meeting_at
from rigdyno.processes import die_with_parent, signal_name

OWN = "rigdyno.launchers._horovodrun_presence"
RANKS, SECONDS = 2, 120.0
NAMES = {"gloo": "Gloo", "mpi": "MPI"}
FIX = "make horovod"


@cache
def why_not(framework: str, transport: str, full: bool) -> str | None:
    """None: it works. `full`: there are as many ranks as cores."""
    what = f"Horovod over {NAMES[transport]} for {framework}"
    trouble = gloo.trouble_with_name(LOOPBACK) if transport == "gloo" else None
    if trouble is not None:
        return f"{what} can't work here: {trouble}"
    with tempfile.TemporaryDirectory(prefix="rigdyno-") as place:
        log = Path(place) / "log"
        arguments = ["all", framework, transport, "full" if full else "-", str(os.getpid())]
        child = Child([sys.executable, "-m", OWN, *arguments], log, {**os.environ, "PYTHONSAFEPATH": "1"})
        try:
            in_time = child.wait(SECONDS)
        finally:
            code = child.stop()
        if in_time and code == 0:
            return None
        lines = log.read_text(errors="replace").strip().splitlines()
    why = f"fails: {lines[-1].strip()[:200] if lines else f'exit code {code}'}" if in_time else _late()
    return f"{what} does not work here: summing a number over two ranks {why}; try {FIX}"


def _late() -> str:
    return f"did not end within {SECONDS:g} s"


def main(arguments: Sequence[str]) -> int:
    what, framework, transport, *more = arguments
    if what == "rank":
        die_with_parent(os.getppid())
        return _summed(framework, transport)
    die_with_parent(int(more[1]))
    if transport == "mpi":
        command = [*mpi.mpirun([(LOOPBACK, RANKS)], full=more[0] == "full"), *_rank(framework, transport)]
        return mpi.ended_in_order(command, mpi.own_environment())
    return _over_gloo(_rank(framework, transport))


def _rank(framework: str, transport: str) -> list[str]:
    return [sys.executable, "-m", OWN, "rank", framework, transport]


def _over_gloo(command: Sequence[str]) -> int:
    listener = listening_at(LOOPBACK)
    meeting = meeting_at(listener)
    with gloo.rendezvous(listener.detach()):
        running = {}
        try:
            for rank in range(RANKS):
                told = {**gloo.Slot(rank, RANKS, rank, RANKS, 0, 1).variables(), **gloo.common(meeting, LOOPBACK)}
                running[rank] = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **told})
            codes = [process.wait() for process in running.values()]
            if min(codes) < 0:
                sys.stderr.write(f"a rank dies with {signal_name(min(codes))}\n")
            return max(map(abs, codes))
        finally:
            stop(running)


def _summed(framework: str, transport: str) -> int:
    horovod = importlib.import_module(f"horovod.{framework}")
    horovod.init()
    number = float(horovod.rank() + 1)
    found = horovod.allreduce(_tensor(framework, number), op=horovod.Sum, name="presence")
    joined = "mpi" if horovod.mpi_enabled() else "gloo"
    if float(found) != RANKS * (RANKS + 1) / 2 or joined != transport:
        sys.exit(f"the sum over {horovod.size()} ranks is {float(found):g}, over {joined}")
    horovod.shutdown()
    return 0


def _tensor(framework: str, number: float) -> object:
    made: object = importlib.import_module(framework).__dict__[{"torch": "tensor"}.get(framework, "constant")](number)
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
