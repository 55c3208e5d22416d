"""What a node does that isn't the first: runs its ranks of each cell that it is told of, sends what they left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rigdyno.launchers._party import Announcement, Member, NoMeeting, files_to_send, own_address
from rigdyno.launchers.torchrun import TorchrunLaunch, on_nodes, ranks_that_failed, start_agent
from rigdyno.runner.worker import work
from rigdyno.store.files import disk_errors, write_json

TICK_SECONDS = 1.0


def follow(rendezvous: str, node: int, folder: Path, say: Callable[[str], None]) -> int:
    """How many cells it took part in."""
    say(f"node {node}: looking for the first node at {rendezvous}")
    address = own_address(rendezvous)
    member = Member(rendezvous, node)
    say(f"node {node}: joined; files in {folder}")
    count = 0
    try:
        for announced in member.cells():
            say(f"node {node}: {announced.name}")
            _take_part(announced, member, address, folder / announced.name)
            count += 1
    except RuntimeError as error:  # of the store
        raise NoMeeting(f"the first node at {rendezvous} is gone; {count} cells were finished") from error
    return count


def _take_part(announced: Announcement, member: Member, address: str, folder: Path) -> None:
    with disk_errors(folder):
        folder.mkdir(parents=True)
    write_json(folder / "spec.json", announced.spec)
    agent = start_agent(on_nodes(announced, member.node, address), announced.spec, folder, work, address)
    launch = TorchrunLaunch(agent, folder)
    try:
        while not launch.wait(TICK_SECONDS):
            if member.is_cancelled(announced):
                launch.stop()
    except BaseException:
        launch.stop()
        raise
    member.send(announced, files_to_send(folder), ranks_that_failed(folder))
