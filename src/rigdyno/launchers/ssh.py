"""Starts the node program on other machines over ssh; this machine is node 0."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.base.addresses import find_own_address, resolve_host
from rigdyno.base.errors import UsageError
from rigdyno.contracts import Finds, Launcher, Opening, Scope
from rigdyno.launchers.nodes.calls import NodeCommand, connect_nodes, node_command
from rigdyno.launchers.nodes.messages import make_hello
from rigdyno.launchers.nodes.session import NodesSession

OPTIONS = (
    "-T",  # no terminal, which would change the bytes
    *("-o", "BatchMode=yes"),  # never ask for a password
    *("-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=15"),  # notice a machine that lost its power within a minute
    *("-o", "ServerAliveCountMax=3"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ssh(Launcher):
    """Several nodes, the others reached over ssh"""

    scope: ClassVar[Scope] = "nodes"
    finds_nodes_by: ClassVar[Finds | None] = "hosts"

    def open(self, opening: Opening) -> NodesSession:
        hosts = opening.reach.hosts[: opening.nodes]
        address = check_own_address(hosts[0])
        with ExitStack() as opened:
            calls = []
            for node, host in enumerate(hosts[1:], start=1):
                call = _call(host, opening.reach.python)
                opened.callback(call.close)
                calls.append((node, host, call))
            remotes = connect_nodes(calls, make_hello(opening.system), opening.say)
            return NodesSession(remotes, address, opening.system, on_close=opened.pop_all().close)


def _call(host: str, python: str | None) -> NodeCommand:
    try:
        return NodeCommand(["ssh", *OPTIONS, "--", host, node_command(python)])
    except FileNotFoundError:
        raise UsageError("there is no ssh here; install OpenSSH's client, or start the nodes by hand") from None


def check_own_address(first_host: str) -> str:
    """Return the address of the first host, by which other ranks find this machine. Raises if it isn't this machine."""
    address = resolve_host(first_host.rpartition("@")[2])
    if find_own_address(address) != address:
        raise UsageError(f"the first of --hosts must be this machine, and {first_host} ({address}) isn't")
    return address
