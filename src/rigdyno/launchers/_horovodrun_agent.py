"""Starts the ranks of one node for Horovod, and ends them all when one of them fails.

`python -m rigdyno.launchers._horovodrun_agent <cell folder> <process id of the parent> <node> <address and port where
nodes meet> <descriptor of the socket that is bound there, or -> <address of this node>`
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rigdyno import catalogue
from rigdyno.launchers import _horovodrun_gloo as gloo
from rigdyno.launchers import _horovodrun_mpi as mpi
from rigdyno.launchers._ranks import part_of, ranks_of, told_of


def main(arguments: Sequence[str]) -> int:
    part = part_of(arguments)
    if catalogue.load("arrangement", part.cell.spec.arrangement).transport == "mpi":
        return mpi.carried_out(part)
    assert part.meeting is not None
    trouble = gloo.trouble_with_name(part.own_address)
    if trouble is not None:
        sys.exit(trouble)
    with gloo.rendezvous(part.meeting.listening):
        return told_of(part, ranks_of(part, gloo.slots_of(part)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
