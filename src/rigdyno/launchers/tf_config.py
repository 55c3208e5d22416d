"""Several ranks that are told of each other by TF_CONFIG, on this node; launchers for several nodes use it on each of
them. Every rank listens at a port of its own: the nodes tell each other theirs before the first rank starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno.contracts import Opening, Requirement, Scope
from rigdyno.launchers._address import LOOPBACK
from rigdyno.launchers._children import Child
from rigdyno.launchers._node import NodeLaunch, Part
from rigdyno.launchers._ranks import agent_of
from rigdyno.launchers.torchrun import listening_at, meeting_at, rank_exits
from rigdyno.schema.spec import Cell

AGENT = "rigdyno.launchers._tf_config_agent"


@dataclass(frozen=True, kw_only=True)
class TfConfig:
    """Several ranks that are told of each other by TF_CONFIG, on this node"""

    requires: ClassVar[tuple[Requirement, ...]] = ()
    scope: ClassVar[Scope] = "machine"

    def open(self, opening: Opening) -> TfConfigSession:
        return TfConfigSession()

    def start_part(self, part: Part) -> NodeLaunch:
        return NodeLaunch(part, _agent, rank_exits)


class TfConfigSession:
    def start(self, cell: Cell, folder: Path) -> NodeLaunch:
        with listening_at(LOOPBACK) as listener:
            return TfConfig().start_part(Part(cell, folder, meeting=meeting_at(listener)))

    def close(self) -> None:
        """Nothing stays open between two cells."""


def _agent(part: Part) -> Child:
    return agent_of(part, AGENT)


def tf_config(endpoints: Sequence[str], rank: int) -> str:
    return json.dumps({"cluster": {"worker": list(endpoints)}, "task": {"type": "worker", "index": rank}})
