"""Replaces mpirun's remote shell: sends the command to the agent that started mpirun, which forwards it to the agent on
that host, and waits until it is done there.

`python -m rigdyno.launchers.horovod.shell HOST COMMAND...`
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    host, *command = arguments
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(os.environ["RIGDYNO_DOOR"])
        agent.sendall(json.dumps([host, command]).encode() + b"\n")
        agent.recv(1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
