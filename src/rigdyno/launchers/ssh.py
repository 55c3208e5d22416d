"""Several nodes, reached over ssh: this machine is the first of them, and starts the node program on the others."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.contracts import Opening, Requirement, Scope
from rigdyno.errors import UsageError
from rigdyno.launchers._address import address_of, own_address_towards
from rigdyno.launchers._nodes.calls import Call, met, node_command
from rigdyno.launchers._nodes.messages import hello
from rigdyno.launchers._nodes.session import NodesSession

OPTIONS = (
    "-T",  # no terminal: it would change bytes on their way
    *("-o", "BatchMode=yes"),  # nobody is there to type a password
    *("-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=15"),  # a machine that lost its power is found out within a minute
    *("-o", "ServerAliveCountMax=3"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """Several nodes, the others reached over ssh"""

    requires: ClassVar[tuple[Requirement, ...]] = ()
    scope: ClassVar[Scope] = "nodes"

    def open(self, opening: Opening) -> NodesSession:
        hosts = opening.reach.hosts[: opening.nodes]
        address = own_address(hosts[0])
        with ExitStack() as calling:
            calls = []
            for node, host in enumerate(hosts[1:], start=1):
                call = _call(host, opening.reach.python)
                calling.callback(call.hang_up)
                calls.append((node, host, call))
            remotes = met(calls, hello(opening.system), opening.say)
            return NodesSession(remotes, address, opening.system, at_last=calling.pop_all().close)


def _call(host: str, python: str | None) -> Call:
    try:
        return Call(["ssh", *OPTIONS, "--", host, node_command(python)])
    except FileNotFoundError:
        raise UsageError("there is no ssh here; install OpenSSH's client, or start the nodes by hand") from None


def own_address(first_host: str) -> str:
    """The first of the hosts must be this machine: by this address the ranks of the others find it."""
    address = address_of(first_host.rpartition("@")[2])
    if own_address_towards(address) != address:
        raise UsageError(f"the first of --hosts must be this machine, and {first_host} ({address}) is another one")
    return address
