"""Several ranks on this machine, by PyTorch's own launcher."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from rigdyno.contracts import Exit, Requirement
from rigdyno.errors import UsageError
from rigdyno.launchers.process import ProcessLaunch, worker_environment
from rigdyno.processes import child_command
from rigdyno.schema.spec import RunSpec

LOOPBACK = "127.0.0.1"
EXITS = "torchrun.json"  # which ranks ended badly, by exit code; the first one first


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """Several ranks on this machine, by torchrun"""

    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)

    def start(
        self, spec: RunSpec, cell_folder: Path, worker: Callable[[Path], int], turns: int | None = None
    ) -> TorchrunLaunch:
        if turns is not None:
            raise UsageError("a duel is fought by two processes: an arrangement of several ranks can't take turns")
        agent = child_command("rigdyno.launchers._torchrun_agent", cell_folder, *_arguments(spec), worker.__module__)
        with (cell_folder / "torchrun.log").open("wb") as log:
            process = subprocess.Popen(
                agent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**worker_environment(spec), **_on_loopback()},
                start_new_session=True,
            )
        return TorchrunLaunch(process, cell_folder)


def _arguments(spec: RunSpec) -> Sequence[str]:
    """All on the loopback interface: neither a name server nor a firewall has a say in it."""
    return (
        f"--nproc-per-node={spec.world_size}",
        "--nnodes=1",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={LOOPBACK}:0",
        f"--local-addr={LOOPBACK}",
        "--no-python",
    )


def _on_loopback() -> dict[str, str]:
    """Else Gloo looks up this machine's own name to find out where to listen."""
    named = (name for name, addresses in psutil.net_if_addrs().items() if any(a.address == LOOPBACK for a in addresses))
    name = next(named, None)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name}


class TorchrunLaunch(ProcessLaunch):
    def __init__(self, process: subprocess.Popen[bytes], cell_folder: Path) -> None:
        super().__init__(process)
        self._folder = cell_folder

    def exits(self) -> Sequence[Exit]:
        """Of the ranks that ended badly, the first one first; else of torchrun itself."""
        try:
            ended = json.loads((self._folder / EXITS).read_text())
        except (OSError, ValueError):
            return super().exits()
        return [Exit(int(code), int(rank)) for rank, code in ended]
