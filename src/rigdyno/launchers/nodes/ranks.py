"""Shared by the agents, which start the ranks of one node as their children and stop them all if one fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rigdyno.base.addresses import address_family
from rigdyno.base.clock import Deadline
from rigdyno.base.processes import child_command, die_with_parent
from rigdyno.contracts import Exit
from rigdyno.launchers.nodes.children import Child, worker_environment
from rigdyno.launchers.nodes.local import WORKER, MeetingPoint, NodeShare
from rigdyno.schema.layout import CellFolder, ParticipantFolder
from rigdyno.schema.spec import Cell, sampler_of

MEET_SECONDS = 60  # time for the ranks of a cell to find each other

POLL_SECONDS, GRACE_SECONDS = 0.05, 2.0

Ended = tuple[int, int]  # a rank and its exit code

Running = dict[int, "subprocess.Popen[bytes]"]


def listen_at(address: str, port: int = 0) -> socket.socket:
    """Listen at this address only, by default at a free port. PyTorch's store would listen on every interface."""
    listener = socket.socket(address_family(address))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def make_meeting_point(listener: socket.socket) -> MeetingPoint:
    address, port = listener.getsockname()[:2]
    return MeetingPoint(address, port, listener.fileno())


def node_folder(part: NodeShare) -> ParticipantFolder:
    return CellFolder(part.folder).participant(sampler_of(part.node).id)


def find_interface(address: str) -> str | None:
    import psutil  # slow to import

    names = (name for name, known in psutil.net_if_addrs().items() if any(each.address == address for each in known))
    return next(names, None)


def read_rank_exits(part: NodeShare, code: int) -> Sequence[Exit]:
    """Return the exits of failed ranks, the first to fail first; else the exit of the agent that started them."""
    try:
        ended = json.loads(node_folder(part).launcher_exits.read_text())
        return [Exit(int(code), f"rank{int(rank)}") for rank, code in ended] or [Exit(code)]
    except (OSError, ValueError, TypeError):
        return [Exit(code)]


def start_agent(part: NodeShare, module: str) -> Child:
    """Start the process that starts the ranks, with the arguments that `parse_share` reads."""
    assert part.meeting is not None
    node_folder(part).path.mkdir(exist_ok=True)
    address, port, listening = part.meeting
    descriptor = "-" if listening is None else str(listening)
    return Child(
        child_command(module, part.folder, str(part.node), address, str(port), descriptor, part.own_address),
        node_folder(part).launcher_log,
        worker_environment(part.cell.spec),
        () if listening is None else (listening,),
    )


def parse_share(arguments: Sequence[str]) -> NodeShare:
    """Return this node's share from the agent's arguments, and make this process end with its parent."""
    folder, parent_pid, node, address, port, listening, own_address = arguments
    die_with_parent(int(parent_pid))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cell = msgspec.json.decode(CellFolder(Path(folder)).spec.read_bytes(), type=Cell)
    meeting = MeetingPoint(address, int(port), None if listening == "-" else int(listening))
    return NodeShare(cell, Path(folder), int(node), meeting, own_address)


def run_ranks(part: NodeShare, variables: Callable[[int], Mapping[str, str]]) -> list[Ended]:
    """Run the ranks, and return each with its exit code, in the order in which they ended. Once one fails, the others
    are stopped. `variables` returns the environment variables of one rank."""
    running: Running = {}
    ended: list[Ended] = []
    try:
        for each in part.ranks:
            assert each.rank is not None
            running[each.rank] = start_rank(part, each.id, {"RANK": str(each.rank), **variables(each.rank)})
        while running and not any(code for _, code in ended):
            _wait_for_any()
            ended += _remove_ended(running)
    finally:
        ended += stop_ranks(running)
    return ended


def start_rank(part: NodeShare, name: str, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with CellFolder(part.folder).participant(name).log.open("ab") as log:
        return subprocess.Popen(
            child_command(WORKER, part.folder, name, python=part.cell.spec.python),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
        )


def _wait_for_any() -> None:
    """Wait in the kernel if possible: polling disturbs the measurement."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    else:
        time.sleep(POLL_SECONDS)


def _remove_ended(running: Running) -> list[Ended]:
    """Remove and return the ranks that have ended."""
    ended = [(rank, code) for rank, process in running.items() if (code := process.poll()) is not None]
    for rank, _ in ended:
        del running[rank]
    return ended


def stop_ranks(running: Mapping[int, subprocess.Popen[bytes]]) -> list[Ended]:
    """Terminate the ranks, then kill them: a rank that waits inside the framework for a lost rank ignores SIGTERM."""
    for process in running.values():
        process.terminate()
    deadline = Deadline(GRACE_SECONDS)
    for process in running.values():
        with suppress(subprocess.TimeoutExpired):
            process.wait(deadline.left)
        process.kill()
    return [(rank, process.wait()) for rank, process in running.items()]


def write_exits(part: NodeShare, ended: Sequence[Ended]) -> int:
    """Write the exits of failed ranks to the node's folder, and return the agent's exit code."""
    failed = [(rank, code) for rank, code in ended if code != 0]
    if failed:
        node_folder(part).launcher_exits.write_text(json.dumps(failed))
    return 1 if failed else 0
