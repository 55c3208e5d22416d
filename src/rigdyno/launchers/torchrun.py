"""Several ranks by PyTorch's own launcher, on this node; launchers for several nodes use it on each of them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Exit, Opening, Requirement, Scope
from rigdyno.launchers._address import LOOPBACK, family_of
from rigdyno.launchers._children import Child, worker_environment
from rigdyno.launchers._node import WORKER, MeetingPoint, NodeLaunch, Part
from rigdyno.processes import child_command
from rigdyno.schema.layout import CellFolder, ParticipantFolder
from rigdyno.schema.participant import sampler_of
from rigdyno.schema.spec import Cell

MEET_SECONDS = 60  # for the ranks of a cell to find each other
AGENT = "rigdyno.launchers._torchrun_agent"


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """Several ranks by torchrun, on this node"""

    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    scope: ClassVar[Scope] = "machine"

    def open(self, opening: Opening) -> TorchrunSession:
        return TorchrunSession()

    def start_part(self, part: Part) -> NodeLaunch:
        return NodeLaunch(part, _agent, rank_exits)


class TorchrunSession:
    def start(self, cell: Cell, folder: Path) -> NodeLaunch:
        """All on the loopback interface: neither a name server nor a firewall has a say in it."""
        with listening_at(LOOPBACK) as listener:
            return Torchrun().start_part(Part(cell, folder, meeting=meeting_at(listener)))

    def close(self) -> None:
        """Nothing stays open between two cells."""


def listening_at(address: str, port: int = 0) -> socket.socket:
    """On this address alone, by default at a free port: PyTorch's own store would listen on every interface."""
    listener = socket.socket(family_of(address))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def meeting_at(listener: socket.socket) -> MeetingPoint:
    address, port = listener.getsockname()[:2]
    return MeetingPoint(address, port, listener.fileno())


def _agent(part: Part) -> Child:
    assert part.meeting is not None
    node_folder(part).path.mkdir(exist_ok=True)
    listening = part.meeting.listening
    told = "-" if listening is None else str(listening)
    return Child(
        child_command(AGENT, part.folder, node_folder(part).path.name, told, *_options(part), WORKER),
        node_folder(part).launcher_log,
        {**worker_environment(part.cell.spec), **_interface_of(part.own_address)},
        () if listening is None else (listening,),
    )


def _options(part: Part) -> Sequence[str]:
    assert part.meeting is not None
    return (
        f"--nproc-per-node={len(part.ranks)}",
        f"--nnodes={part.cell.spec.nodes}",
        f"--node-rank={part.node}",
        "--max-restarts=0",
        f"--master-addr={part.meeting.address}",
        f"--master-port={part.meeting.port}",
        f"--local-addr={part.own_address}",
        f"--rdzv-conf=timeout={MEET_SECONDS}",
        "--no-python",
    )


def node_folder(part: Part) -> ParticipantFolder:
    return CellFolder(part.folder).participant(sampler_of(part.node).id)


def _interface_of(address: str) -> dict[str, str]:
    """Else Gloo and NCCL guess which of the interfaces is meant, or look up this machine's own name. A user who has
    chosen one, such as the quicker of two networks, is not overruled."""
    name = interface_at(address)
    if name is None:
        return {}
    return {variable: os.environ.get(variable, name) for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}


def interface_at(address: str) -> str | None:
    import psutil  # takes as long to load as all else in a listing

    named = (name for name, known in psutil.net_if_addrs().items() if any(each.address == address for each in known))
    return next(named, None)


def rank_exits(part: Part, code: int) -> Sequence[Exit]:
    """Of the ranks that ended badly, the first one first; else of what started them."""
    try:
        ended = json.loads(node_folder(part).launcher_exits.read_text())
        return [Exit(int(code), f"rank{int(rank)}") for rank, code in ended] or [Exit(code)]
    except (OSError, ValueError, TypeError):
        return [Exit(code)]
