"""Points of a scaling curve from a CSV file: columns `devices` and `throughput`, and what else is known of the rig."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rigdyno.errors import BadValue
from rigdyno.schema.scaling import Given, Point

REQUIRED = ("devices", "throughput")
EXAMPLE = "the first line must be: devices,throughput (and optionally nodes, bytes_per_step, link_gbit_s)"
LEAST, MOST = 1e-15, 1e18  # nothing of a rig lies outside, and products of such numbers stay finite

Line = Mapping[str, str | None]


def read_points(path: Path) -> Given:
    """Several lines of one size are repeated measurements, and count as their mean."""
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
        points=_merged([_point(line, where) for where, line in lines], path),
        bytes_per_step=_of_the_rig(lines, "bytes_per_step", path),
        link_gbit_s=_of_the_rig(lines, "link_gbit_s", path),
    )


def _point(line: Line, where: str) -> Point:
    point = Point(
        devices=_count(line, "devices", where),
        throughput=_number(line, "throughput", where),
        nodes=_count(line, "nodes", where) if _is_filled(line, "nodes") else None,
    )
    if point.nodes is not None and point.nodes > point.devices:
        raise BadValue(f"{where}: {point.devices} devices can't lie on {point.nodes} nodes")
    return point


def _of_the_rig(lines: Sequence[tuple[str, Line]], column: str, path: Path) -> float | None:
    """It needn't stand in every line, but must be the same wherever it does."""
    found = sorted({_number(line, column, where) for where, line in lines if _is_filled(line, column)})
    if len(found) > 1:
        raise BadValue(f"{path}: '{column}' is {found[0]:g} and {found[-1]:g}; a rig has only one")
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


def _merged(points: Sequence[Point], path: Path) -> tuple[Point, ...]:
    alike: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        alike[point.devices].append(point)
    for devices, group in alike.items():
        if len({point.nodes for point in group}) > 1:
            raise BadValue(f"{path}: {devices} devices lie on different numbers of nodes; a curve can have only one")
    return tuple(
        Point(devices=devices, throughput=fmean([point.throughput for point in group]), nodes=group[0].nodes)
        for devices, group in sorted(alike.items())
    )
