"""Agents that start the ranks of one node as their children: when one of them fails, all are ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rigdyno.launchers._children import Child, worker_environment
from rigdyno.launchers._node import WORKER, MeetingPoint, Part
from rigdyno.launchers.torchrun import node_folder
from rigdyno.processes import child_command, die_with_parent
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import Cell

POLL_SECONDS, GRACE_SECONDS = 0.05, 2.0

Ended = tuple[int, int]  # a rank and its exit code
Running = dict[int, "subprocess.Popen[bytes]"]


def agent_of(part: Part, module: str) -> Child:
    """The process that starts the ranks, told what `part_of` reads."""
    assert part.meeting is not None
    node_folder(part).path.mkdir(exist_ok=True)
    listening = part.meeting.listening
    told = (str(part.node), part.meeting.address, str(part.meeting.port), "-" if listening is None else str(listening))
    return Child(
        child_command(module, part.folder, *told, part.own_address),
        node_folder(part).launcher_log,
        worker_environment(part.cell.spec),
        () if listening is None else (listening,),
    )


def part_of(arguments: Sequence[str]) -> Part:
    """What this node has to do, once it is certain that somebody waits for it."""
    folder, parent_pid, node, address, port, listening, own_address = arguments
    die_with_parent(int(parent_pid))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cell = msgspec.json.decode(CellFolder(Path(folder)).spec.read_bytes(), type=Cell)
    meeting = MeetingPoint(address, int(port), None if listening == "-" else int(listening))
    return Part(cell, Path(folder), int(node), meeting, own_address)


def ranks_of(part: Part, told: Callable[[int], Mapping[str, str]]) -> list[Ended]:
    """Each rank with its exit code, in the order that they ended in; once one has failed, the others are stopped.
    `told`: what stands in a rank's environment for it alone."""
    running: Running = {}
    ended: list[Ended] = []
    try:
        for each in part.ranks:
            assert each.rank is not None
            running[each.rank] = started(part, each.id, {"RANK": str(each.rank), **told(each.rank)})
        while running and not any(code for _, code in ended):
            _wait_for_any()
            ended += _over(running)
    finally:
        ended += stop(running)
    return ended


def started(part: Part, name: str, told: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with CellFolder(part.folder).participant(name).log.open("ab") as log:
        return subprocess.Popen(
            child_command(WORKER, part.folder, name, python=part.cell.spec.python),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **told},
        )


def _wait_for_any() -> None:
    """In the kernel where it can: who polls disturbs what is measured."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    else:
        time.sleep(POLL_SECONDS)


def _over(running: Running) -> list[Ended]:
    """Those that are, taken out."""
    done = [(rank, code) for rank, process in running.items() if (code := process.poll()) is not None]
    for rank, _ in done:
        del running[rank]
    return done


def stop(running: Mapping[int, subprocess.Popen[bytes]]) -> list[Ended]:
    """Asks them, then makes them: a rank that waits for a lost one inside the framework doesn't hear."""
    for process in running.values():
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in running.values():
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
    return [(rank, process.wait()) for rank, process in running.items()]


def told_of(part: Part, ended: Sequence[Ended]) -> int:
    """The agent's own exit code; which ranks ended badly is left in the node's folder."""
    bad = [(rank, code) for rank, code in ended if code != 0]
    if bad:
        node_folder(part).launcher_exits.write_text(json.dumps(bad))
    return 1 if bad else 0
