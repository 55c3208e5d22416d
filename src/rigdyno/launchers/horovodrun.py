"""Several ranks of Horovod as `horovodrun` starts them, over Gloo or MPI, on this node; launchers for several nodes use
it on each of them, in place of horovodrun's own ssh.

What horovodrun's users know is here: `--hosts`, ranks in blocks, one block a host, the variables that a rank is told
by, mpirun's options. Unlike it, nothing listens on other interfaces than the one by which nodes reach each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno import catalogue
from rigdyno.contracts import Opening, Requirement, Scope
from rigdyno.launchers._address import LOOPBACK
from rigdyno.launchers._children import Child
from rigdyno.launchers._node import NodeLaunch, Part
from rigdyno.launchers._ranks import agent_of
from rigdyno.launchers.torchrun import listening_at, meeting_at, rank_exits
from rigdyno.schema.spec import Cell, RunSpec

AGENT = "rigdyno.launchers._horovodrun_agent"


@dataclass(frozen=True, kw_only=True)
class Horovodrun:
    """Several ranks of Horovod, over Gloo or MPI, on this node"""

    requires: ClassVar[tuple[Requirement, ...]] = ()  # the arrangement says what it needs
    scope: ClassVar[Scope] = "machine"

    def open(self, opening: Opening) -> HorovodrunSession:
        return HorovodrunSession()

    def start_part(self, part: Part) -> NodeLaunch:
        return NodeLaunch(part, _agent, rank_exits)

    def refuses(self, spec: RunSpec, framework: str) -> str | None:
        """Asked while planning, once the arrangement has nothing against it: whether two ranks can sum a number."""
        from rigdyno.launchers._horovodrun_presence import why_not

        return why_not(framework, catalogue.load("arrangement", spec.arrangement).transport, spec.device == "cpu")


class HorovodrunSession:
    def start(self, cell: Cell, folder: Path) -> NodeLaunch:
        with listening_at(LOOPBACK) as listener:
            return Horovodrun().start_part(Part(cell, folder, meeting=meeting_at(listener)))

    def close(self) -> None:
        """Nothing stays open between two cells."""


def _agent(part: Part) -> Child:
    return agent_of(part, AGENT)
