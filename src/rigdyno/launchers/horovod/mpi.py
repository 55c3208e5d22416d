"""Runs the ranks of Horovod over MPI: one mpirun on node 0, its daemons on the other nodes.

mpirun reaches other nodes by a remote shell. Ours forwards the daemon's command to the agent that already runs on that
node, so no further passwords or keys are needed. Other nodes run nothing but the daemon, without a shell.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rigdyno.base.addresses import address_family
from rigdyno.base.clock import Deadline
from rigdyno.launchers.nodes.local import NodeShare
from rigdyno.launchers.nodes.ranks import GRACE_SECONDS, MEET_SECONDS, Ended, write_exits

DAEMON = "orted"

# Started by mpirun for each rank; each node has its own interpreter and folder.
RANK_PROGRAM = ("sh", "-c", 'exec "$RIGDYNO_PYTHON" -m rigdyno.launchers.horovod.rank')

SHELL = "rigdyno.launchers.horovod.shell"

MOST_BYTES = 1_000_000  # longest message between nodes

# Variables of other job managers, or of an outer mpirun, which would take control.
FOREIGN = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "PRTE_", "PBS_", "LSB_")

ONE_ADDRESS = "two nodes have the same address, MPI can't tell them apart; try --arrangement horovod"


def run_over_mpi(part: NodeShare) -> int:
    """Run this node's ranks and return its exit code. The exits of failed ranks are written to its folder."""
    with tempfile.TemporaryDirectory(prefix="rigdyno-") as place:
        environment = rank_environment(part, Path(place))
        code = (_lead if part.node == 0 else _follow)(part, environment, Path(place))
        return write_exits(part, read_exits(Path(place))) or min(1, abs(code))


def rank_environment(part: NodeShare, place: Path) -> dict[str, str]:
    return {
        **own_environment(),
        "RIGDYNO_CELL": str(part.folder.resolve()),
        "RIGDYNO_EXITS": str(place),
        "RIGDYNO_FOLDER": str(Path.cwd()),  # mpirun would use node 0's folder
    }


def own_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    transport = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    return {**kept, **transport, "RIGDYNO_PYTHON": sys.executable, "PYTHONSAFEPATH": "1"}


def read_exits(place: Path) -> list[Ended]:
    """Read the exits of this node's ranks, in the order in which they ended."""
    exits = (json.loads(path.read_text()) for path in place.glob("rank*.json"))
    return [(int(rank), int(code)) for _, rank, code in sorted(exits)]


def mpirun_command(hosts: Sequence[tuple[str, int]], *, full: bool) -> list[str]:
    """Return the command of mpirun, with horovodrun's options and those for a full machine: a waiting rank polls and so
    must yield its core, there may be more ranks than cores, and ranks aren't bound to cores."""
    network = find_network(hosts[0][0])
    settings = {
        "pml": "ob1",
        "btl": "^openib",
        "btl_tcp_if_include": network,
        "oob_tcp_if_include": network,
        "plm": "rsh",
        "ras": "^slurm,tm,lsf,loadleveler",
        **({"mpi_yield_when_idle": "1"} if full else {}),
    }
    known = {name: value for name, value in settings.items() if value}
    return [
        "mpirun",
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *("-np", str(sum(slots for _, slots in hosts))),
        *("-H", ",".join(f"{address}:{slots}" for address, slots in hosts)),
        *("--oversubscribe", "--bind-to", "none", "--map-by", "slot", "--leave-session-attached"),
        *(word for name, value in known.items() for word in ("--mca", name, value)),
    ]  # fmt: skip


def find_network(address: str) -> str:
    """Return the network of the address, because interfaces may have other names on other nodes; empty if unknown."""
    import psutil  # slow to import

    for known in (each for interface in psutil.net_if_addrs().values() for each in interface):
        if known.address == address and known.netmask:
            return str(ipaddress.ip_interface(f"{address}/{known.netmask}").network)
    return ""


def _lead(part: NodeShare, environment: Mapping[str, str], place: Path) -> int:
    """Run mpirun on node 0."""
    assert part.meeting is not None
    assert part.meeting.listening is not None
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket(fileno=part.meeting.listening))
        others = _gather_followers(part, listener, opened)
        hosts = [(part.own_address, len(part.ranks)), *((each.address, each.slots) for each in others)]
        if len({address for address, _ in hosts}) < len(hosts):
            sys.exit(ONE_ADDRESS)
        command = mpirun_command(hosts, full=part.cell.spec.device == "cpu")
        if others:
            forwarder = opened.enter_context(_forward_commands(place / "door", {each.address: each for each in others}))
            command += ["--mca", "plm_rsh_agent", f"{sys.executable} -m {SHELL}", "--mca", "plm_rsh_no_tree_spawn", "1"]
            environment = {**environment, "RIGDYNO_DOOR": forwarder}
        return run_to_end([*command, *RANK_PROGRAM], environment)


class _Follower:
    """Another node, as seen by node 0."""

    def __init__(self, stream: socket.socket, address: str, slots: int) -> None:
        self.stream, self.address, self.slots = stream, address, slots


def _gather_followers(part: NodeShare, listener: socket.socket, opened: ExitStack) -> list[_Follower]:
    """Wait for the other nodes, and return them in their order, which numbers the ranks."""
    deadline, followers = Deadline(MEET_SECONDS), dict[int, _Follower]()
    while len(followers) < part.cell.spec.nodes - 1:
        listener.settimeout(max(0.01, deadline.left))
        stream = opened.enter_context(listener.accept()[0])
        stream.settimeout(max(0.01, deadline.left))
        node, address, slots = json.loads(_read_line(stream))
        followers[int(node)] = _Follower(stream, str(address), int(slots))
        stream.settimeout(None)
    return [followers[node] for node in sorted(followers)]


@contextmanager
def _forward_commands(path: Path, followers: Mapping[str, _Follower]) -> Iterator[str]:
    """Listen at a local socket, to which our remote shell brings mpirun's command for another node. The shell stays
    connected as long as that node runs it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_serve, args=(listener, followers), daemon=True).start()
        yield str(path)


def _serve(listener: socket.socket, followers: Mapping[str, _Follower]) -> None:
    while True:
        try:
            caller = listener.accept()[0]
        except OSError:
            return
        threading.Thread(target=_forward_command, args=(caller, followers), daemon=True).start()


def _forward_command(caller: socket.socket, followers: Mapping[str, _Follower]) -> None:
    with caller, suppress(OSError, ValueError, KeyError):
        host, command = json.loads(_read_line(caller))
        stream = followers[host].stream
        stream.sendall(json.dumps(command).encode() + b"\n")
        stream.recv(1)  # until that node is done


def _follow(part: NodeShare, environment: Mapping[str, str], place: Path) -> int:
    """Run mpirun's daemon on another node, when node 0 sends its command."""
    assert part.meeting is not None
    with socket.socket(address_family(part.meeting.address)) as stream:
        stream.settimeout(MEET_SECONDS)
        stream.connect((part.meeting.address, part.meeting.port))  # node 0 listened before it told this node
        stream.sendall(json.dumps([part.node, part.own_address, len(part.ranks)]).encode() + b"\n")
        line = _read_line(stream)
        if not line:
            sys.exit(f"the first node ended before it started anything here; if {ONE_ADDRESS}")
        command = daemon_command(json.loads(line))
        stream.settimeout(None)
        return run_to_end(command, environment, stream)


def daemon_command(words: Sequence[str]) -> list[str]:
    """Return the command of mpirun's daemon, and refuse any other command."""
    command = shlex.split(" ".join(map(str, words)))
    if not command or Path(command[0]).name != DAEMON:
        raise ValueError(f"the first node asks for {command[:1]}, but only {DAEMON} may be started")
    return [DAEMON, *command[1:]]


def run_to_end(command: Sequence[str], environment: Mapping[str, str], leader: socket.socket | None = None) -> int:
    """Run the command and return its exit code. If this process or the leader ends first, terminate the command, so
    that it can end its ranks."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=dict(environment))
    if leader is not None:
        threading.Thread(target=_watch, args=(leader, process.terminate), daemon=True).start()
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            process.kill()
            process.wait()


def _watch(leader: socket.socket, terminate: Callable[[], None]) -> None:
    with suppress(OSError):
        leader.recv(1)
    terminate()


def _read_line(stream: socket.socket) -> bytes:
    with stream.makefile("rb") as lines:
        return lines.readline(MOST_BYTES)
