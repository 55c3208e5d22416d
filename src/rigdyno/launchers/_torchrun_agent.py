"""torchrun, as a child of Rigdyno's: dies with it, and leaves behind which ranks ended badly.

`python -m rigdyno.launchers._torchrun_agent <cell folder> <process id of the parent> <torchrun's options> <module>`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rigdyno.launchers.torchrun import EXITS
from rigdyno.processes import child_command, die_with_parent


def main(arguments: Sequence[str]) -> int:
    folder, parent_pid, *options, module = arguments
    die_with_parent(int(parent_pid))
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args([*options, *child_command(module, Path(folder))]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        first, _ = error.get_first_failure()
        ranks = sorted(error.failures, key=lambda rank: rank != first)
        exits = [(rank, error.failures[rank].exitcode) for rank in ranks]
        Path(folder, EXITS).write_text(json.dumps(exits))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
