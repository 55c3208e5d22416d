"""What `rigdyno forecast` is given: a CSV file or stored runs, and what flags say about the rig."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rigdyno.commands._shared import newest_or
from rigdyno.errors import BadValue, UsageError
from rigdyno.schema.scaling import Given, Link, Point
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.api import Run


def given_points(arguments: tuple[str, ...], out: str | None) -> Given:
    """One file, or any number of runs by their paths or names."""
    from rigdyno.plan.points import read_points

    paths = newest_or(arguments, out)
    files = [name for name, path in zip(arguments, paths, strict=True) if not path.is_dir()]
    if files and len(arguments) > 1:
        raise UsageError(f"{files[0]} is no run folder; give one CSV file, or only run folders")
    return read_points(Path(files[0])) if files else _stored(paths)


def _stored(paths: Sequence[Path]) -> Given:
    from rigdyno import api
    from rigdyno.analyse.stored_points import StoredRun, given_by

    runs = [api.load(path) for path in {path.resolve(): path for path in paths}.values()]
    given = given_by([StoredRun(utf8(run.folder.name), _machines(run), run.measurements) for run in runs])
    warnings = [utf8(warning) for run in runs for warning in run.warnings]
    return msgspec.structs.replace(given, remarks=(*warnings, *given.remarks))


def _machines(run: Run) -> str:
    """Each kind once: one node and two of the same are the same rig."""
    return "; ".join(dict.fromkeys(machine.line() for machine in run.head.machines(run.records)))


def batch_of(given: Given, flag: int | None) -> int | None:
    if flag is not None and given.batch not in (None, flag):
        raise BadValue(f"--batch says {flag}, but {given.source} was measured with {given.batch}; leave --batch out")
    return flag or given.batch


def link_of(given: Given, bytes_per_step: float | None, gbit_s: float | None) -> Link | None:
    """Flags win over a file's columns."""
    from rigdyno.plan.points import LEAST, MOST

    for flag, value in (("--bytes-per-step", bytes_per_step), ("--link-gbit-s", gbit_s)):
        if value is not None and not LEAST <= value <= MOST:
            raise BadValue(f"{flag} must be a number above zero, not {value:g}")
    moved = given.bytes_per_step if bytes_per_step is None else bytes_per_step
    speed = given.link_gbit_s if gbit_s is None else gbit_s
    if moved is None and speed is None:
        return None
    if moved is None:
        raise BadValue("how quick a link is says nothing without what goes over it; add --bytes-per-step")
    if speed is None and bytes_per_step is None and given.measured:
        return None  # what was sent is known from the runs; nobody has spoken of a link
    if speed is None:
        raise BadValue("how many bytes go over a link says nothing without how quick it is; add --link-gbit-s")
    return Link(bytes_per_step=moved, gbit_s=speed)


def require_room(points: Sequence[Point], devices_per_node: int | None) -> None:
    """A node holds at least as many devices as a point shows."""
    from rigdyno.analyse.mechanisms import devices_on_a_node

    shown = devices_on_a_node(points, None)
    if devices_per_node is not None and shown is not None and devices_per_node < shown:
        raise BadValue(f"--devices-per-node says {devices_per_node}, but one node of the points holds {shown}")
