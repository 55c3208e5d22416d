"""Starts the ranks of one node for Horovod, and stops them all if one fails.

`python -m rigdyno.launchers.horovod.agent <cell folder> <process id of the parent> <node> <address and port where
nodes meet> <descriptor of the socket that is bound there, or -> <address of this node>`
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rigdyno import catalogue
from rigdyno.launchers.horovod import gloo, mpi
from rigdyno.launchers.nodes.ranks import parse_share, run_ranks, write_exits


def main(arguments: Sequence[str]) -> int:
    part = parse_share(arguments)
    if catalogue.load("arrangement", part.cell.spec.arrangement).transport == "mpi":
        return mpi.run_over_mpi(part)
    assert part.meeting is not None
    problem = gloo.check_host_name(part.own_address)
    if problem is not None:
        sys.exit(problem)
    with gloo.serve_rendezvous(part.meeting.listening):
        return write_exits(part, run_ranks(part, gloo.make_rank_variables(part)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
