"""Compare text with the golden files of this folder, and rewrite them on request.

`make golden` rewrites every file. Read the difference before you commit it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
UPDATE = bool(os.environ.get("UPDATE_GOLDEN"))
HOW_TO_UPDATE = "run `make golden`, then read the difference"
DIGITS = 6  # the last digits of a float differ between processors
LONGEST_SERIES = 24  # points of a figure that are written out one by one

_DECLARED: set[Path] = set()


def declare(names: Iterable[str]) -> list[str]:
    """Register the golden files that a test module uses. Files that no module declares are stale."""
    found = list(names)
    _DECLARED.update(FOLDER / name for name in found)
    return found


def declared_files() -> set[Path]:
    """Return the golden files that the imported test modules use."""
    return set(_DECLARED)


def check_golden(name: str, text: str) -> None:
    """Compare the text with the golden file of that name."""
    path = FOLDER / name
    assert path in _DECLARED, f"{name} is not declared: pass it to golden_files.declare()"
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"there is no golden file {name} yet: {HOW_TO_UPDATE}"
    assert text == path.read_text(encoding="utf-8"), f"{name} has changed: {HOW_TO_UPDATE}"


def format_json(text: str) -> str:
    """Return the JSON text with sorted keys, rounded floats and shortened series."""
    return json.dumps(_simplify(json.loads(text)), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def format_plan(text: str) -> str:
    """Return the plan like `format_json`. A cell like an earlier one is shown by its differences from that one."""
    document = json.loads(text)
    for plan in document.get("plans") or [document["plan"]]:
        plan["cells"] = _fold_repeats(plan["cells"])
    return format_json(json.dumps(document))


def _fold_repeats(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first: dict[str, dict[str, Any]] = {}
    folded = []
    for cell in cells:
        alike = first.setdefault(json.dumps(cell["spec"], sort_keys=True), cell)
        differing = {key: value for key, value in cell.items() if alike.get(key) != value}
        folded.append(cell if alike is cell else {"same spec as": alike["name"], **differing})
    return folded


def _simplify(value: Any) -> Any:
    if isinstance(value, float):
        return round_float(value)
    if isinstance(value, dict):
        return {key: _simplify(each) for key, each in value.items()}
    if isinstance(value, list):
        short = [_simplify(each) for each in value]
        return _shorten(short) if _is_long_series(short) else short
    return value


def round_float(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _is_long_series(values: list[Any]) -> bool:
    points = all(isinstance(each, (int, float, type(None))) or _is_point(each) for each in values)
    return len(values) > LONGEST_SERIES and points


def _is_point(value: Any) -> bool:
    return isinstance(value, dict) and {"x", "value"} <= set(value)


def _shorten(points: list[Any]) -> dict[str, Any]:
    """Keep what shows a change: the number of points, both ends, and the sum of every coordinate."""
    as_dicts = [each if isinstance(each, dict) else {"value": each} for each in points]
    keys = sorted({key for each in as_dicts for key, value in each.items() if isinstance(value, (int, float))})
    sums = {key: math.fsum(each.get(key) or 0.0 for each in as_dicts) for key in keys}
    return {
        "count": len(points),
        "first": points[0],
        "last": points[-1],
        "sums": {key: float(f"{value:.4g}") for key, value in sums.items()},
    }
