"""Starts several ranks on this node that find each other through TF_CONFIG. Launchers for several nodes use it on each
node.

Every rank listens at its own port; the nodes exchange their ports before the first rank starts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rigdyno.base.addresses import LOOPBACK
from rigdyno.contracts import Launcher, Opening, Scope
from rigdyno.launchers.nodes.children import Child
from rigdyno.launchers.nodes.local import NodeLaunch, NodeShare
from rigdyno.launchers.nodes.ranks import listen_at, make_meeting_point, read_rank_exits, start_agent
from rigdyno.schema.spec import Cell

AGENT = "rigdyno.launchers.nodes.tf_config_agent"


@dataclass(frozen=True, kw_only=True)
class TfConfig(Launcher):
    """Several ranks that find each other through TF_CONFIG, on this node"""

    scope: ClassVar[Scope] = "machine"

    def open(self, opening: Opening) -> TfConfigSession:
        return TfConfigSession()

    def start_part(self, part: NodeShare) -> NodeLaunch:
        return NodeLaunch(part, _start_agent, read_rank_exits)


class TfConfigSession:
    def start(self, cell: Cell, folder: Path) -> NodeLaunch:
        with listen_at(LOOPBACK) as listener:
            return TfConfig().start_part(NodeShare(cell, folder, meeting=make_meeting_point(listener)))

    def close(self) -> None:
        """Do nothing: nothing stays open between cells."""


def _start_agent(part: NodeShare) -> Child:
    return start_agent(part, AGENT)


def format_tf_config(endpoints: Sequence[str], rank: int) -> str:
    return json.dumps({"cluster": {"worker": list(endpoints)}, "task": {"type": "worker", "index": rank}})
