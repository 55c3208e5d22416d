"""Runs torchrun as a child of Rigdyno: it ends with Rigdyno, and writes the exits of failed ranks.

`python -m rigdyno.launchers.nodes.torchrun_agent <cell folder> <process id of the parent> <this node's folder in it>
<descriptor of the socket that ranks meet at, or -> <torchrun's options> <module>`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno.base.processes import child_command, die_with_parent
from rigdyno.launchers.nodes.ranks import MEET_SECONDS
from rigdyno.schema.layout import CellFolder

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


def main(arguments: Sequence[str]) -> int:
    folder, parent_pid, node_folder, listening, *options, module = arguments
    die_with_parent(int(parent_pid))
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    parsed = parse_args([*options, *child_command(module, Path(folder), "-")])  # type: ignore[no-untyped-call]
    store = None if listening == "-" else _make_store(int(listening), parsed.master_addr, parsed.master_port)
    try:
        run(parsed)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        first, _ = error.get_first_failure()
        ranks = sorted(error.failures, key=lambda rank: rank != first)
        exits = [(rank, error.failures[rank].exitcode) for rank in ranks]
        CellFolder(Path(folder)).participant(node_folder).launcher_exits.write_text(json.dumps(exits))
        return 1
    finally:
        del store
    return 0


def _make_store(listening: int, address: str, port: int) -> TCPStore:
    """Make the store at which the ranks meet, on a socket that is bound already. torchrun's own store would listen on
    every interface; it finds this one on the same port of the same process, and shares it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        address, port, None, True, timedelta(seconds=MEET_SECONDS),
        wait_for_workers=False, multi_tenant=True, master_listen_fd=listening,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
