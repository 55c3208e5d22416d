"""The ranks of Horovod over MPI: one mpirun on the first node, its daemons on the others.

mpirun reaches other nodes by a remote shell. Ours hands the daemon's command to the agent that waits on that node
already, however that node was reached: neither passwords nor keys are needed beside those of the run. Other nodes run
nothing but the daemon, without a shell.
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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rigdyno.launchers._address import family_of
from rigdyno.launchers._node import Part
from rigdyno.launchers._ranks import GRACE_SECONDS, Ended, told_of
from rigdyno.launchers.torchrun import MEET_SECONDS

DAEMON = "orted"
# What mpirun starts once a rank, on whichever node: the interpreter and the folder are that node's own.
RANK_PROGRAM = ("sh", "-c", 'exec "$RIGDYNO_PYTHON" -m rigdyno.launchers._horovodrun_rank')
SHELL = "rigdyno.launchers._horovodrun_shell"
MOST_BYTES = 1_000_000  # of what nodes tell each other
# Of another job manager, or of an mpirun that this one runs under: each would take over.
FOREIGN = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "PRTE_", "PBS_", "LSB_")

ONE_ADDRESS = "two nodes have one address, MPI can't tell them apart; try --arrangement horovod"


def carried_out(part: Part) -> int:
    """This node's exit code; which of its ranks ended badly is left in its folder."""
    with tempfile.TemporaryDirectory(prefix="rigdyno-") as place:
        environment = rank_environment(part, Path(place))
        code = (_led if part.node == 0 else _followed)(part, environment, Path(place))
        return told_of(part, exits_in(Path(place))) or min(1, abs(code))


def rank_environment(part: Part, place: Path) -> dict[str, str]:
    return {
        **own_environment(),
        "RIGDYNO_CELL": str(part.folder.resolve()),
        "RIGDYNO_EXITS": str(place),
        "RIGDYNO_FOLDER": str(Path.cwd()),  # mpirun would go to the first node's
    }


def own_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    transport = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    return {**kept, **transport, "RIGDYNO_PYTHON": sys.executable, "PYTHONSAFEPATH": "1"}


def exits_in(place: Path) -> list[Ended]:
    """Of the ranks of this node, in the order that they ended in."""
    told = (json.loads(path.read_text()) for path in place.glob("rank*.json"))
    return [(int(rank), int(code)) for _, rank, code in sorted(told)]


def mpirun(hosts: Sequence[tuple[str, int]], *, full: bool) -> list[str]:
    """With horovodrun's own options, and those of a machine that is full: a rank that waits for others polls, and must
    let go of the core; more ranks than cores are no mistake; and whoever wants cores of its own takes them itself."""
    network = network_of(hosts[0][0])
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


def network_of(address: str) -> str:
    """As other nodes know it, whose interfaces may have other names; empty where nobody can tell."""
    import psutil  # takes as long to load as all else in a listing

    for known in (each for interface in psutil.net_if_addrs().values() for each in interface):
        if known.address == address and known.netmask:
            return str(ipaddress.ip_interface(f"{address}/{known.netmask}").network)
    return ""


def _led(part: Part, environment: Mapping[str, str], place: Path) -> int:
    assert part.meeting is not None
    assert part.meeting.listening is not None
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket(fileno=part.meeting.listening))
        others = _gathered(part, listener, opened)
        hosts = [(part.own_address, len(part.ranks)), *((each.address, each.slots) for each in others)]
        if len({address for address, _ in hosts}) < len(hosts):
            sys.exit(ONE_ADDRESS)
        command = mpirun(hosts, full=part.cell.spec.device == "cpu")
        if others:
            door = opened.enter_context(_door(place / "door", {each.address: each for each in others}))
            command += ["--mca", "plm_rsh_agent", f"{sys.executable} -m {SHELL}", "--mca", "plm_rsh_no_tree_spawn", "1"]
            environment = {**environment, "RIGDYNO_DOOR": door}
        return ended_in_order([*command, *RANK_PROGRAM], environment)


class _Follower:
    """Another node, as the first one sees it."""

    def __init__(self, stream: socket.socket, address: str, slots: int) -> None:
        self.stream, self.address, self.slots = stream, address, slots


def _gathered(part: Part, listener: socket.socket, opened: ExitStack) -> list[_Follower]:
    """In the order of the nodes: ranks are numbered by it."""
    deadline, found = time.monotonic() + MEET_SECONDS, dict[int, _Follower]()
    while len(found) < part.cell.spec.nodes - 1:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        stream = opened.enter_context(listener.accept()[0])
        stream.settimeout(max(0.01, deadline - time.monotonic()))
        node, address, slots = json.loads(_line(stream))
        found[int(node)] = _Follower(stream, str(address), int(slots))
        stream.settimeout(None)
    return [found[node] for node in sorted(found)]


@contextmanager
def _door(path: Path, followers: Mapping[str, _Follower]) -> Iterator[str]:
    """Where our remote shell brings mpirun's command for another node, and stays as long as that node runs it."""
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
        threading.Thread(target=_hand_over, args=(caller, followers), daemon=True).start()


def _hand_over(caller: socket.socket, followers: Mapping[str, _Follower]) -> None:
    with caller, suppress(OSError, ValueError, KeyError):
        host, command = json.loads(_line(caller))
        stream = followers[host].stream
        stream.sendall(json.dumps(command).encode() + b"\n")
        stream.recv(1)  # until that node is done


def _followed(part: Part, environment: Mapping[str, str], place: Path) -> int:
    assert part.meeting is not None
    with socket.socket(family_of(part.meeting.address)) as stream:
        stream.settimeout(MEET_SECONDS)
        stream.connect((part.meeting.address, part.meeting.port))  # it listens since before this node was told of it
        stream.sendall(json.dumps([part.node, part.own_address, len(part.ranks)]).encode() + b"\n")
        told = _line(stream)
        if not told:
            sys.exit(f"the first node ended before it started anything here; if {ONE_ADDRESS}")
        command = daemon_command(json.loads(told))
        stream.settimeout(None)
        return ended_in_order(command, environment, stream)


def daemon_command(words: Sequence[str]) -> list[str]:
    """mpirun's daemon and nothing else, whatever is asked for."""
    command = shlex.split(" ".join(map(str, words)))
    if not command or Path(command[0]).name != DAEMON:
        raise ValueError(f"the first node asks for {command[:1]}, and only {DAEMON} is started")
    return [DAEMON, *command[1:]]


def ended_in_order(command: Sequence[str], environment: Mapping[str, str], leader: socket.socket | None = None) -> int:
    """Its exit code. However this process ends, it is told to end its ranks first; when the leader is gone, too."""
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


def _watch(leader: socket.socket, gone: Callable[[], None]) -> None:
    with suppress(OSError):
        leader.recv(1)
    gone()


def _line(stream: socket.socket) -> bytes:
    with stream.makefile("rb") as lines:
        return lines.readline(MOST_BYTES)
