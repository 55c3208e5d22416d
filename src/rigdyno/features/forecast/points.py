"""Read the input of `rigdyno forecast`: a CSV file or stored runs, and flags about the machine."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from rigdyno.base.errors import BadValue, UsageError
from rigdyno.schema.scaling import Given, Link, ScalingPoint
from rigdyno.store.campaign import named_or_newest_runs
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.api import Run

REQUIRED = ("devices", "throughput")

EXAMPLE = "the first line must be: devices,throughput (and optionally nodes, bytes_per_step, link_gbit_s)"

LEAST, MOST = 1e-15, 1e18  # every real value is inside, and products of such numbers stay finite

Line = Mapping[str, str | None]


def given_points(arguments: tuple[str, ...], out: str | None, load: Callable[[Path], Run]) -> Given:
    """Read one CSV file, or any number of runs by their paths or names."""

    paths = named_or_newest_runs(arguments, out)
    files = [name for name, path in zip(arguments, paths, strict=True) if not path.is_dir()]
    if files and len(arguments) > 1:
        raise UsageError(f"{files[0]} is no run folder; give one CSV file, or only run folders")
    return read_points(Path(files[0])) if files else _read_runs(paths, load)


def _read_runs(paths: Sequence[Path], load: Callable[[Path], Run]) -> Given:
    from rigdyno.features.forecast.stored_points import StoredRun, points_of_runs

    runs = [load(path) for path in {path.resolve(): path for path in paths}.values()]
    given = points_of_runs([StoredRun(utf8(run.folder.name), _machine_line(run), run.measurements) for run in runs])
    warnings = [utf8(warning) for run in runs for warning in run.warnings]
    return msgspec.structs.replace(given, remarks=(*warnings, *given.remarks))


def _machine_line(run: Run) -> str:
    """Describe each kind of machine once: one node and two equal nodes are the same machine."""
    return "; ".join(dict.fromkeys(machine.line() for machine in run.head.machines(run.records)))


def batch_of(given: Given, flag: int | None) -> int | None:
    if flag is not None and given.batch not in (None, flag):
        raise BadValue(f"--batch says {flag}, but {given.source} was measured with {given.batch}; leave --batch out")
    return flag or given.batch


def link_of(given: Given, bytes_per_step: float | None, gbit_s: float | None) -> Link | None:
    """Return the link from flags and columns of the file; flags win."""

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
        return None  # the runs know their gradients, but no link was given
    if speed is None:
        raise BadValue("how many bytes go over a link says nothing without how quick it is; add --link-gbit-s")
    return Link(bytes_per_step=moved, gbit_s=speed)


def require_room(points: Sequence[ScalingPoint], devices_per_node: int | None) -> None:
    """Raise BadValue if a point has more devices on a node than --devices-per-node."""
    from rigdyno.features.forecast.links import devices_on_a_node

    shown = devices_on_a_node(points, None)
    if devices_per_node is not None and shown is not None and devices_per_node < shown:
        raise BadValue(f"--devices-per-node says {devices_per_node}, but one node of the points holds {shown}")


def read_points(path: Path) -> Given:
    """Read points from a CSV file; several lines of one size count as their mean."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text"
        raise BadValue(f"can't read {path}: {why.lower()}; give a CSV file of points, or run folders") from error
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    missing = [column for column in REQUIRED if column not in (reader.fieldnames or ())]
    if missing:
        raise BadValue(f"{path} has no column '{missing[0]}'; {EXAMPLE}")
    lines = [(f"{path}:{reader.line_num}", line) for line in reader]
    return Given(
        source=path.name,
        points=_merge_repeats([_point(line, where) for where, line in lines], path),
        bytes_per_step=_rig_value(lines, "bytes_per_step", path),
        link_gbit_s=_rig_value(lines, "link_gbit_s", path),
    )


def _point(line: Line, where: str) -> ScalingPoint:
    point = ScalingPoint(
        devices=_count(line, "devices", where),
        throughput=_number(line, "throughput", where),
        nodes=_count(line, "nodes", where) if _is_filled(line, "nodes") else None,
    )
    if point.nodes is not None and point.nodes > point.devices:
        raise BadValue(f"{where}: {point.devices} devices can't lie on {point.nodes} nodes")
    return point


def _rig_value(lines: Sequence[tuple[str, Line]], column: str, path: Path) -> float | None:
    """Return a value of the whole machine, which must be the same in every line that has it."""
    found = sorted({_number(line, column, where) for where, line in lines if _is_filled(line, column)})
    if len(found) > 1:
        raise BadValue(f"{path}: '{column}' is {found[0]:g} and {found[-1]:g}; a machine has only one")
    return found[0] if found else None


def _is_filled(line: Line, column: str) -> bool:
    return bool((line.get(column) or "").strip())


def _count(line: Line, column: str, where: str) -> int:
    number = _number(line, column, where)
    if number != int(number):
        raise BadValue(f"{where}: '{column}' must be a whole number, not {number:g}")
    return int(number)


def _number(line: Line, column: str, where: str) -> float:
    text = (line.get(column) or "").strip()
    if not text:
        raise BadValue(f"{where}: '{column}' is empty; leave the line out if it wasn't measured")
    try:
        number = float(text)
    except ValueError:
        raise BadValue(f"{where}: '{column}' must be a number, not '{text}'") from None
    if not number > 0:
        raise BadValue(f"{where}: '{column}' must be a number above zero, not {text}")
    if not LEAST <= number <= MOST:
        raise BadValue(f"{where}: '{column}' must lie between {LEAST:g} and {MOST:g}, not at {text}")
    return number


def _merge_repeats(points: Sequence[ScalingPoint], path: Path) -> tuple[ScalingPoint, ...]:
    alike: dict[int, list[ScalingPoint]] = defaultdict(list)
    for point in points:
        alike[point.devices].append(point)
    for devices, group in alike.items():
        if len({point.nodes for point in group}) > 1:
            raise BadValue(f"{path}: {devices} devices lie on different numbers of nodes; a curve can have only one")
    return tuple(
        ScalingPoint(devices=devices, throughput=fmean([point.throughput for point in group]), nodes=group[0].nodes)
        for devices, group in sorted(alike.items())
    )
