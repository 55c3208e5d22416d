"""Checks that Horovod works: two ranks sum a number, in child processes, within a time limit.

`horovodrun --check-build` only reports the options with which it was built. Each of the two ranks is
`python -m rigdyno.launchers.horovod.presence rank <framework> <transport>`.
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

from rigdyno.base.addresses import LOOPBACK
from rigdyno.base.processes import die_with_parent, signal_name
from rigdyno.launchers.horovod import gloo, mpi
from rigdyno.launchers.nodes.children import Child
from rigdyno.launchers.nodes.ranks import listen_at, make_meeting_point, stop_ranks

OWN = "rigdyno.launchers.horovod.presence"

RANKS, SECONDS = 2, 120.0

NAMES = {"gloo": "Gloo", "mpi": "MPI"}

FIX = "make horovod"


@cache
def find_problem(framework: str, transport: str, full: bool) -> str | None:
    """Return why Horovod doesn't work, or None. `full`: there are as many ranks as cores."""
    what = f"Horovod over {NAMES[transport]} for {framework}"
    problem = gloo.check_host_name(LOOPBACK) if transport == "gloo" else None
    if problem is not None:
        return f"{what} can't work here: {problem}"
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
    failure = f"fails: {lines[-1].strip()[:200] if lines else f'exit code {code}'}"
    why = failure if in_time else f"did not end within {SECONDS:g} s"
    return f"{what} does not work here: summing a number over two ranks {why}; try {FIX}"


def main(arguments: Sequence[str]) -> int:
    what, framework, transport, *more = arguments
    if what == "rank":
        die_with_parent(os.getppid())
        return _sum_over_ranks(framework, transport)
    die_with_parent(int(more[1]))
    rank_command = [sys.executable, "-m", OWN, "rank", framework, transport]
    if transport == "mpi":
        command = [*mpi.mpirun_command([(LOOPBACK, RANKS)], full=more[0] == "full"), *rank_command]
        return mpi.run_to_end(command, mpi.own_environment())
    return _run_over_gloo(rank_command)


def _run_over_gloo(command: Sequence[str]) -> int:
    listener = listen_at(LOOPBACK)
    meeting = make_meeting_point(listener)
    with gloo.serve_rendezvous(listener.detach()):
        running = {}
        try:
            for rank in range(RANKS):
                slot = gloo.RankSlot(rank, RANKS, rank, RANKS, 0, 1)
                environment = {**os.environ, **slot.variables(), **gloo.common_variables(meeting, LOOPBACK)}
                running[rank] = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
            codes = [process.wait() for process in running.values()]
            if min(codes) < 0:
                sys.stderr.write(f"a rank dies with {signal_name(min(codes))}\n")
            return max(map(abs, codes))
        finally:
            stop_ranks(running)


def _sum_over_ranks(framework: str, transport: str) -> int:
    horovod = importlib.import_module(f"horovod.{framework}")
    horovod.init()
    number = float(horovod.rank() + 1)
    total = horovod.allreduce(_make_tensor(framework, number), op=horovod.Sum, name="presence")
    joined = "mpi" if horovod.mpi_enabled() else "gloo"
    if float(total) != RANKS * (RANKS + 1) / 2 or joined != transport:
        sys.exit(f"the sum over {horovod.size()} ranks is {float(total):g}, over {joined}")
    horovod.shutdown()
    return 0


def _make_tensor(framework: str, number: float) -> object:
    tensor: object = importlib.import_module(framework).__dict__[{"torch": "tensor"}.get(framework, "constant")](number)
    return tensor


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
