"""mpirun's remote shell: brings the command to the agent that started mpirun, which hands it to the one on that host,
and stays until it is done there.

`python -m rigdyno.launchers._horovodrun_shell HOST COMMAND...`
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    host, *command = arguments
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(os.environ["RIGDYNO_DOOR"])
        door.sendall(json.dumps([host, command]).encode() + b"\n")
        door.recv(1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
