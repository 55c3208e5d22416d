"""Several nodes, reached over ssh: this one is the first, the same Rigdyno is started on the others."""

from __future__ import annotations

import atexit
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rigdyno.launchers.torchrun import Torchrun

CONNECT_SECONDS = 15
GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Ssh(Torchrun):
    """Several nodes by torchrun, the others reached over ssh"""


class Called:
    """One `rigdyno run --node-rank R` for each of the other hosts; ends with this process."""

    def __init__(self, hosts: Sequence[str], rendezvous: str) -> None:
        self._hosts = hosts
        self._calls = {node: _call(hosts, node, rendezvous) for node in range(1, len(hosts))}
        atexit.register(self.hang_up)

    def why_not_coming(self, node: int) -> str | None:
        """What its ssh said, if it ended before the node came."""
        call = self._calls[node]
        if call.poll() is None:
            return None
        said = (call.communicate()[0] or "").strip().splitlines()
        words = said[-1] if said else f"exit code {call.returncode}"
        return f"ssh {self._hosts[node]}: {words}"

    def hang_up(self) -> None:
        """The nodes themselves go when the first one says that it is over, or is gone."""
        for call in self._calls.values():
            with suppress(subprocess.TimeoutExpired):
                call.wait(GRACE_SECONDS)
            call.kill()


def _call(hosts: Sequence[str], node: int, rendezvous: str) -> subprocess.Popen[str]:
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    return subprocess.Popen(
        ["ssh", *options, "--", hosts[node], remote_command(len(hosts), node, rendezvous)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches rigdyno alone
    )


def remote_command(nodes: int, node: int, rendezvous: str) -> str:
    """By the interpreter of the same path. What to run comes over the store; its files stay below the home folder."""
    where = ["--nodes", str(nodes), "--node-rank", str(node), "--rendezvous", rendezvous]
    return f"exec {shlex.join([sys.executable, '-m', 'rigdyno', 'run', *where])}"
