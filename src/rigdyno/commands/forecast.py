"""`rigdyno forecast`: what a larger rig would give, from points of a smaller one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno import catalogue
from rigdyno.commands._shared import rendered
from rigdyno.errors import EXIT_DONE, BadValue, UsageError
from rigdyno.schema.scaling import Point

if TYPE_CHECKING:
    from rigdyno.report.forecast import Work

MOST_DEVICES = 1_000_000
EXAMPLES = """\b
Examples:
  rigdyno forecast points.csv
  rigdyno forecast points.csv --devices 64,128 --images 1.28e6 --epochs 90
  rigdyno forecast points.csv --images 1.28e6 --epochs 90 --watts 300

\b
points.csv, with at least three sizes; `nodes` may be left out:
  devices,throughput,nodes
  1,41.49,1
  8,303.5,1
  16,608,2
"""


@click.command("forecast", epilog=EXAMPLES, short_help="What a larger rig would give.")
@click.argument("points", type=click.Path())
@click.option("--devices", "sizes", metavar="N[,N...]", help="How many devices. [default: twice and 4 times as many]")
@click.option("--devices-per-node", type=click.IntRange(1), help="How many devices one node holds.")
@click.option("--images", "--items", "items", type=float, help="How many items the job has, in an epoch.")
@click.option("--epochs", type=float, default=1.0, show_default=True, help="How often the job goes through them.")
@click.option("--watts", type=float, help="What one device draws, for the energy of the job.")
@click.option("--unit", default="image", show_default=True, help="What an item is.")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    points: str,
    sizes: str | None,
    devices_per_node: int | None,
    items: float | None,
    epochs: float,
    watts: float | None,
    unit: str,
    form: str,
    as_json: bool,
) -> int:
    """Throughput, speedup and time of a job for more devices than were measured, with a 90 % interval.

    POINTS is a CSV file. What was measured and what is foretold are told apart in every row. A link that none of the
    points has crossed isn't crossed: that needs one more measurement, and it says which.
    """
    from rigdyno.analyse.forecast import Curve
    from rigdyno.plan.points import read_points
    from rigdyno.report.forecast import forecast_view

    path = Path(points)
    given = read_points(path)
    kept, remarks = _one_curve(given, path)
    asked = _sizes(sizes) if sizes else _further(kept, devices_per_node)
    _require_crossed(kept, asked, devices_per_node)
    view = forecast_view(path.name, Curve(kept), asked, unit, _work(items, epochs, watts), remarks)
    click.echo(rendered(view, "json" if as_json else form), nl=False)
    return EXIT_DONE


def _one_curve(given: Sequence[Point], path: Path) -> tuple[list[Point], list[str]]:
    from rigdyno.analyse.forecast import LEAST_POINTS
    from rigdyno.analyse.mechanisms import not_one_curve

    kept, remark = not_one_curve(given)
    if len(kept) < LEAST_POINTS:
        why = remark or f"{path} has {len(given)} sizes"
        raise UsageError(f"{why}; a forecast needs at least {LEAST_POINTS}: measure more")
    return kept, [remark] if remark else []


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BadValue(f"--devices takes whole numbers, not '{text}'; try 16,32,64") from None
    if not 1 <= sizes[0] <= sizes[-1] <= MOST_DEVICES:
        raise BadValue(f"--devices must lie between 1 and {MOST_DEVICES:,}, not '{text}'")
    return sizes


def _further(points: Sequence[Point], devices_per_node: int | None) -> list[int]:
    """As far as the points allow; if they allow nothing, twice as many, so that the refusal says why."""
    from rigdyno.analyse.mechanisms import uncrossed_link

    largest = points[-1].devices
    sizes = [2 * largest, 4 * largest]
    return [size for size in sizes if not uncrossed_link(points, size, devices_per_node)] or sizes[:1]


def _require_crossed(points: Sequence[Point], sizes: Sequence[int], devices_per_node: int | None) -> None:
    from rigdyno.analyse.mechanisms import uncrossed_link

    for size in sizes:
        reason = uncrossed_link(points, size, devices_per_node)
        if reason:
            raise UsageError(reason)


def _work(items: float | None, epochs: float, watts: float | None) -> Work | None:
    from rigdyno.report.forecast import Work

    for flag, value in (("--images", items), ("--epochs", epochs), ("--watts", watts)):
        if value is not None and not 0 < value < math.inf:
            raise BadValue(f"{flag} must be above zero, not {value:g}")
    if items is None:
        if watts is not None:
            raise BadValue("--watts needs a job to count the energy of; add --images")
        return None
    return Work(items=items * epochs, watts_per_device=watts)
