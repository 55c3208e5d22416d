"""Control groups, by which containers limit memory and processor time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from driving import until

CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def control_group(controller: str, suffix: str = "") -> Iterator[Path]:
    """Make a control group, of version 1 or 2; skip the test where that isn't possible."""
    v1, v2 = CGROUPS / controller, CGROUPS
    parent = v1 if v1.is_dir() else v2
    group = parent / f"rigdyno-test-{os.getpid()}{suffix}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"can't make a control group here: {error}")
    try:
        if parent == v2 and controller not in (group / "cgroup.controllers").read_text().split():
            pytest.skip(f"the controller '{controller}' is not handed down to control groups here")
        _prioritise(group)
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), "the control group was empty")
        group.rmdir()


def _prioritise(group: Path) -> None:
    """Give the group priority over all other processes, so that other load hardly slows it down."""
    for name, most in (("cpu.shares", "262144"), ("cpu.weight", "10000")):
        if (group / name).exists():
            (group / name).write_text(most)


def is_version_1(group: Path) -> bool:
    return group.parent != CGROUPS


def inside(group: Path, *command: str) -> list[str]:
    """Return a command that enters the group and runs the given command in it."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
