"""Several ranks by PyTorch's own launcher, on this node or on several."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rigdyno.contracts import Exit, Requirement
from rigdyno.errors import UsageError
from rigdyno.launchers._address import split_endpoint
from rigdyno.launchers.process import ProcessLaunch, worker_environment
from rigdyno.processes import child_command
from rigdyno.schema.spec import RunSpec

if TYPE_CHECKING:
    from rigdyno.launchers._party import Announcement, Leader

LOOPBACK = "127.0.0.1"
EXITS = "torchrun.json"  # which ranks of a node ended badly, by exit code; the first one first
MEET_SECONDS = 60  # for the ranks of a cell to find each other


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """Several ranks by torchrun, on one node or several"""

    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)

    def start(
        self, spec: RunSpec, cell_folder: Path, worker: Callable[[Path], int], turns: int | None = None
    ) -> TorchrunLaunch:
        if turns is not None:
            raise UsageError("a duel is fought by two processes: an arrangement of several ranks can't take turns")
        if spec.nodes == 1:
            return TorchrunLaunch(start_agent(_on_this_node(spec), spec, cell_folder, worker, LOOPBACK), cell_folder)
        leader = led(spec.rendezvous)
        announced = leader.announce(cell_folder.name, spec)
        address = split_endpoint(spec.rendezvous)[0]
        agent = start_agent(on_nodes(announced, 0, address), spec, cell_folder, worker, address)
        return NodesLaunch(agent, cell_folder, leader, announced)


_meetings: dict[str, Leader] = {}  # last as long as this process: cells come one after the other


def led(rendezvous: str) -> Leader:
    if rendezvous not in _meetings:
        raise UsageError(f"nobody has met at {rendezvous}")
    return _meetings[rendezvous]


def meet(rendezvous: str, nodes: int, why_not_coming: Callable[[int], str | None] | None = None) -> None:
    """Waits for all nodes; once for all cells of a run."""
    from rigdyno.launchers._party import Leader

    leader = Leader(rendezvous, nodes, _say, why_not_coming or (lambda node: None))
    atexit.register(leader.close)
    _meetings[rendezvous] = leader


def _say(words: str) -> None:
    print(f"rigdyno: {words}", file=sys.stderr)  # noqa: T201


def start_agent(
    options: Sequence[str], spec: RunSpec, cell_folder: Path, worker: Callable[[Path], int], address: str
) -> subprocess.Popen[bytes]:
    """`address`: of this node, as its ranks are reached by the others."""
    agent = child_command("rigdyno.launchers._torchrun_agent", cell_folder, *options, worker.__module__)
    with (cell_folder / "torchrun.log").open("wb") as log:
        return subprocess.Popen(
            agent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**worker_environment(spec), **_listening_at(address)},
            start_new_session=True,
        )


def _on_this_node(spec: RunSpec) -> Sequence[str]:
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


def on_nodes(announced: Announcement, node: int, address: str) -> Sequence[str]:
    spec = announced.spec
    return (
        f"--nproc-per-node={spec.world_size // spec.nodes}",
        f"--nnodes={spec.nodes}",
        f"--node-rank={node}",
        "--max-restarts=0",
        f"--master-addr={split_endpoint(spec.rendezvous)[0]}",
        f"--master-port={announced.port}",
        f"--local-addr={address}",
        f"--rdzv-conf=timeout={MEET_SECONDS}",
        "--no-python",
    )


def _listening_at(address: str) -> dict[str, str]:
    """Else Gloo and NCCL guess which of the interfaces is meant, or look up this machine's own name."""
    import psutil  # takes as long to load as all else in a listing

    named = (name for name, known in psutil.net_if_addrs().items() if any(each.address == address for each in known))
    name = next(named, None)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


class TorchrunLaunch(ProcessLaunch):
    def __init__(self, process: subprocess.Popen[bytes], cell_folder: Path) -> None:
        super().__init__(process)
        self._folder = cell_folder

    def exits(self) -> Sequence[Exit]:
        """Of the ranks that ended badly, the first one first; else of torchrun itself."""
        return ranks_that_failed(self._folder) or super().exits()


def ranks_that_failed(folder: Path) -> list[Exit]:
    try:
        ended = json.loads((folder / EXITS).read_text())
    except (OSError, ValueError):
        return []
    return [Exit(int(code), int(rank)) for rank, code in ended]


class NodesLaunch(TorchrunLaunch):
    """Done when the other nodes, too, have sent what they have."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        cell_folder: Path,
        leader: Leader,
        announced: Announcement,
    ) -> None:
        super().__init__(process, cell_folder)
        self._leader, self._announced = leader, announced
        self._elsewhere: list[Exit] | None = None

    def exits(self) -> Sequence[Exit]:
        if self._elsewhere is None:
            self._elsewhere = self._leader.collect(self._announced, self._folder)
        here = ranks_that_failed(self._folder)
        return [*here, *self._elsewhere] or super().exits()

    def stop(self) -> None:
        self._leader.cancel(self._announced)
        super().stop()
