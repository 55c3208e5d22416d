"""`rigdyno forecast`: predict the throughput of more devices from measurements of fewer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rigdyno import catalogue
from rigdyno.base.errors import EXIT_DONE, BadValue, UsageError
from rigdyno.commands.common.output import device_counts, out_option
from rigdyno.features.forecast.points import batch_of, given_points, link_of, require_room
from rigdyno.report.text import render_view
from rigdyno.schema.scaling import Given, Link, ScalingPoint
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.features.forecast.curve import ScalingCurve
    from rigdyno.features.forecast.links import Crossing
    from rigdyno.features.forecast.report import Work
    from rigdyno.schema.view import View

MOST_ITEMS = 1_000_000_000

NEEDS_BATCH = "--batch, the items that one device does in a step"

EXAMPLES = """\b
Examples:
  rigdyno forecast points.csv
  rigdyno forecast points.csv --devices 64,128 --images 1.28e6 --epochs 90
  rigdyno forecast points.csv --images 1.28e6 --epochs 90 --watts 300
  rigdyno forecast points.csv --batch 32 --bytes-per-step 102e6 --link-gbit-s 10
  rigdyno forecast runs/scaling.20260101-120000 --devices-per-node 8

\b
points.csv, with at least three sizes; `nodes` may be left out:
  devices,throughput,nodes
  1,41.49,1
  8,303.5,1
  16,608,2

\b
Two more columns may describe the link between nodes. Each has one number for
the whole cluster; flags of the same name override it:
  bytes_per_step   gradients of a step, e.g. 102e6
  link_gbit_s      bandwidth of a node's link, e.g. 10
"""


@click.command("forecast", epilog=EXAMPLES, short_help="Predict the throughput of more devices.")
@click.argument("points", nargs=-1, required=True, metavar="POINTS...")
@click.option("--devices", "sizes", metavar="N[,N...]", help="Numbers of devices. [default: 2 and 4 times the largest]")
@click.option("--devices-per-node", type=click.IntRange(1), help="Number of devices of one node.")
@click.option("--batch", type=click.IntRange(1, MOST_ITEMS), help="Items per device and step.")
@click.option("--bytes-per-step", type=float, help="Bytes of gradients that a step sends between nodes.")
@click.option("--link-gbit-s", type=float, help="Bandwidth of a node's link, in Gbit/s.")
@click.option("--images", "--items", "items", type=float, help="Items per epoch of the job.")
@click.option("--epochs", type=float, default=1.0, show_default=True, help="Epochs of the job.")
@click.option("--watts", type=float, help="Power of one device, for the energy of the job.")
@click.option("--unit", help="Name of an item. [default: that of the runs, else image]")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@out_option
def command(
    points: tuple[str, ...],
    sizes: str | None,
    form: str,
    as_json: bool,
    out: str | None,
    **asked: Any,
) -> int:
    """Predict throughput, speedup and job time of more devices than were measured, with a 90 % interval.

    POINTS is a CSV file, or one or more run folders of one configuration with different numbers of ranks. Every row is
    marked as measured or predicted. A forecast for several nodes from measurements on one node needs one more
    measurement, which is named; or, for a rougher forecast, --batch, --bytes-per-step and --link-gbit-s.
    """
    view = _forecast_points(points, sizes, out, **asked)
    click.echo(render_view(view, "json" if as_json else form), nl=False)
    return EXIT_DONE


def _forecast_points(
    points: tuple[str, ...],
    sizes: str | None,
    out: str | None,
    *,
    devices_per_node: int | None,
    batch: int | None,
    bytes_per_step: float | None,
    link_gbit_s: float | None,
    items: float | None,
    epochs: float,
    watts: float | None,
    unit: str | None,
) -> View:
    from rigdyno import api
    from rigdyno.features.forecast.curve import ScalingCurve
    from rigdyno.features.forecast.report import Forecast, forecast_view

    given = given_points(points, out, api.load)
    link, batch = link_of(given, bytes_per_step, link_gbit_s), batch_of(given, batch)
    kept, remarks = _points_of_one_curve(given)
    require_room(kept, devices_per_node)
    crossing = _make_crossing(kept, link, batch, devices_per_node)
    asked = device_counts(sizes) if sizes else _default_sizes(kept, devices_per_node, crossing)
    curve = ScalingCurve(kept)
    if crossing is None:
        _require_crossed(kept, asked, devices_per_node, link)
        remarks += _check_link(link, batch, curve, asked, devices_per_node)
    forecast = Forecast(
        source=utf8(given.source),
        runs=given.runs,
        curve=curve,
        sizes=asked,
        unit=unit or given.unit or "image",
        batch=batch,
        crossing=crossing,
    )
    return forecast_view(forecast, _make_work(items, epochs, watts), remarks)


def _points_of_one_curve(given: Given) -> tuple[list[ScalingPoint], list[str]]:
    from rigdyno.features.forecast.curve import LEAST_POINTS
    from rigdyno.features.forecast.links import points_after_jump

    kept, remark = points_after_jump(given.points)
    if len(kept) < LEAST_POINTS:
        why = remark or f"{given.source} has {len(given.points)} sizes"
        raise UsageError(f"{why}; a forecast needs at least {LEAST_POINTS}: measure more")
    return kept, [*given.remarks, *([remark] if remark else [])]


def _make_crossing(
    points: Sequence[ScalingPoint], link: Link | None, batch: int | None, devices_per_node: int | None
) -> Crossing | None:
    """Model the link between nodes, only if all points are on one node: otherwise the points have measured it."""
    from rigdyno.features.forecast.links import Crossing, devices_on_a_node, have_crossed

    on_a_node = devices_on_a_node(points, devices_per_node)
    if link is None or batch is None or on_a_node is None or have_crossed(points):
        return None
    return Crossing(link=link, batch=batch, devices_per_node=on_a_node)


def _default_sizes(
    points: Sequence[ScalingPoint], devices_per_node: int | None, crossing: Crossing | None
) -> list[int]:
    """Return 2 and 4 times the largest size if the points allow it; if neither, 2 times, so that the error says why."""
    from rigdyno.features.forecast.links import uncrossed_link

    largest = points[-1].devices
    sizes = [2 * largest, 4 * largest]
    if crossing is not None:
        return sizes
    return [size for size in sizes if not uncrossed_link(points, size, devices_per_node)] or sizes[:1]


def _require_crossed(
    points: Sequence[ScalingPoint], sizes: Sequence[int], devices_per_node: int | None, link: Link | None
) -> None:
    from rigdyno.features.forecast.links import uncrossed_link

    for size in sizes:
        reason = uncrossed_link(points, size, devices_per_node)
        if reason and link is None:
            raise UsageError(f"{reason}; for a rougher forecast give --batch, --bytes-per-step and --link-gbit-s")
        if reason:
            raise UsageError(f"{size} devices need several nodes; to use the given link add {NEEDS_BATCH}")


def _check_link(
    link: Link | None, batch: int | None, curve: ScalingCurve, sizes: Sequence[int], devices_per_node: int | None
) -> list[str]:
    """Return remarks if the given link contradicts points on several nodes, which take precedence over it."""
    from rigdyno.features.forecast.links import crossed_steps, devices_on_a_node, link_contradictions

    if link is None:
        return []
    on_a_node = devices_on_a_node(curve.points, devices_per_node)
    if on_a_node is None:
        return ["the given link isn't used: the number of nodes is unknown; add a column 'nodes'"]
    if batch is None:
        return [f"the given link isn't used: to compare it with the figures, add {NEEDS_BATCH}"]
    return link_contradictions(link, crossed_steps(curve, sizes, batch, on_a_node))


def _make_work(items: float | None, epochs: float, watts: float | None) -> Work | None:
    from rigdyno.features.forecast.report import Work

    for flag, value in (("--images", items), ("--epochs", epochs), ("--watts", watts)):
        if value is not None and not 0 < value < math.inf:
            raise BadValue(f"{flag} must be above zero, not {value:g}")
    if items is None:
        if watts is not None:
            raise BadValue("--watts needs a job to compute the energy of; add --images")
        return None
    return Work(items=items * epochs, watts_per_device=watts)
