"""Starts several ranks of Horovod on this node, over Gloo or MPI, as `horovodrun` does. Launchers for several nodes use
it on each node, instead of horovodrun's ssh.

It behaves like horovodrun: `--hosts`, consecutive ranks per host, the same environment variables for a rank, the same
options of mpirun. Unlike horovodrun, it listens only on the interface by which the nodes reach each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno import catalogue
from rigdyno.base.addresses import LOOPBACK
from rigdyno.contracts import Launcher, Opening, Scope
from rigdyno.launchers.nodes.children import Child
from rigdyno.launchers.nodes.local import NodeLaunch, NodeShare
from rigdyno.launchers.nodes.ranks import listen_at, make_meeting_point, read_rank_exits, start_agent
from rigdyno.schema.spec import Cell, RunSpec

AGENT = "rigdyno.launchers.horovod.agent"


@dataclass(frozen=True, kw_only=True)
class Horovodrun(Launcher):
    """Several ranks of Horovod, over Gloo or MPI, on this node"""

    scope: ClassVar[Scope] = "machine"

    def open(self, opening: Opening) -> HorovodrunSession:
        return HorovodrunSession()

    def start_part(self, part: NodeShare) -> NodeLaunch:
        return NodeLaunch(part, _start_agent, read_rank_exits)

    def refuses(self, spec: RunSpec, framework: str) -> str | None:
        """Try, while planning, whether two ranks can sum a number; called if the arrangement doesn't refuse."""
        from rigdyno.launchers.horovod.presence import find_problem

        return find_problem(framework, catalogue.load("arrangement", spec.arrangement).transport, spec.device == "cpu")


class HorovodrunSession:
    def start(self, cell: Cell, folder: Path) -> NodeLaunch:
        with listen_at(LOOPBACK) as listener:
            return Horovodrun().start_part(NodeShare(cell, folder, meeting=make_meeting_point(listener)))

    def close(self) -> None:
        """Do nothing: nothing stays open between cells."""


def _start_agent(part: NodeShare) -> Child:
    return start_agent(part, AGENT)
