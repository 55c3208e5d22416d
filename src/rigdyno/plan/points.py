"""Points of a scaling curve from a CSV file: columns `devices` and `throughput`, and `nodes` where it is known."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rigdyno.errors import BadValue
from rigdyno.schema.scaling import Point

REQUIRED = ("devices", "throughput")
EXAMPLE = "the first line must be: devices,throughput (and optionally nodes)"


def read_points(path: Path) -> list[Point]:
    """In ascending order; several lines of one size are repeated measurements, and count as their mean."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text"
        raise BadValue(f"can't read {path}: {why.lower()}; give a CSV file of points") from error
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    missing = [column for column in REQUIRED if column not in (reader.fieldnames or ())]
    if missing:
        raise BadValue(f"{path} has no column '{missing[0]}'; {EXAMPLE}")
    return _merged([_point(row, f"{path}:{reader.line_num}") for row in reader], path)


def _point(row: Mapping[str, str | None], where: str) -> Point:
    nodes = row.get("nodes") or ""
    point = Point(
        devices=_count(row, "devices", where),
        throughput=_number(row, "throughput", where),
        nodes=_count(row, "nodes", where) if nodes.strip() else None,
    )
    if point.nodes is not None and point.nodes > point.devices:
        raise BadValue(f"{where}: {point.devices} devices can't lie on {point.nodes} nodes")
    return point


def _count(row: Mapping[str, str | None], column: str, where: str) -> int:
    number = _number(row, column, where)
    if number != int(number):
        raise BadValue(f"{where}: '{column}' must be a whole number, not {number:g}")
    return int(number)


def _number(row: Mapping[str, str | None], column: str, where: str) -> float:
    text = (row.get(column) or "").strip()
    if not text:
        raise BadValue(f"{where}: '{column}' is empty; leave the line out if it wasn't measured")
    try:
        number = float(text)
    except ValueError:
        raise BadValue(f"{where}: '{column}' must be a number, not '{text}'") from None
    if not math.isfinite(number) or number <= 0:
        raise BadValue(f"{where}: '{column}' must be a number above zero, not {text}")
    return number


def _merged(points: Sequence[Point], path: Path) -> list[Point]:
    alike: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        alike[point.devices].append(point)
    for devices, group in alike.items():
        if len({point.nodes for point in group}) > 1:
            raise BadValue(f"{path}: {devices} devices lie on different numbers of nodes; a curve can have only one")
    return [
        Point(devices=devices, throughput=fmean([point.throughput for point in group]), nodes=group[0].nodes)
        for devices, group in sorted(alike.items())
    ]
