"""Starts several ranks on this node with torchrun. Launchers for several nodes use it on each node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno.base.addresses import LOOPBACK
from rigdyno.base.processes import child_command
from rigdyno.contracts import Launcher, Opening, Requirement, Scope
from rigdyno.launchers.nodes.children import Child, worker_environment
from rigdyno.launchers.nodes.local import WORKER, NodeLaunch, NodeShare
from rigdyno.launchers.nodes.ranks import (
    MEET_SECONDS,
    find_interface,
    listen_at,
    make_meeting_point,
    node_folder,
    read_rank_exits,
)
from rigdyno.schema.spec import Cell

AGENT = "rigdyno.launchers.nodes.torchrun_agent"


@dataclass(frozen=True, kw_only=True)
class Torchrun(Launcher):
    """Several ranks by torchrun, on this node"""

    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    scope: ClassVar[Scope] = "machine"

    def open(self, opening: Opening) -> TorchrunSession:
        return TorchrunSession()

    def start_part(self, part: NodeShare) -> NodeLaunch:
        return NodeLaunch(part, _start_agent, read_rank_exits)


class TorchrunSession:
    def start(self, cell: Cell, folder: Path) -> NodeLaunch:
        """Start the ranks on the loopback interface, so that neither a name server nor a firewall matters."""
        with listen_at(LOOPBACK) as listener:
            return Torchrun().start_part(NodeShare(cell, folder, meeting=make_meeting_point(listener)))

    def close(self) -> None:
        """Do nothing: nothing stays open between cells."""


def _start_agent(part: NodeShare) -> Child:
    assert part.meeting is not None
    node_folder(part).path.mkdir(exist_ok=True)
    listening = part.meeting.listening
    descriptor = "-" if listening is None else str(listening)
    return Child(
        child_command(AGENT, part.folder, node_folder(part).path.name, descriptor, *_options(part), WORKER),
        node_folder(part).launcher_log,
        {**worker_environment(part.cell.spec), **_interface_variables(part.own_address)},
        () if listening is None else (listening,),
    )


def _options(part: NodeShare) -> Sequence[str]:
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


def _interface_variables(address: str) -> dict[str, str]:
    """Return variables that tell Gloo and NCCL the interface; else they guess it, or look up this machine's name. A
    user's choice, such as the faster of two networks, is kept."""
    name = find_interface(address)
    if name is None:
        return {}
    return {variable: os.environ.get(variable, name) for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
