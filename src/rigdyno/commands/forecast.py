"""`rigdyno forecast`: what a larger rig would give, from points of a smaller one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rigdyno import catalogue
from rigdyno.commands._points import batch_of, given_points, link_of, require_room
from rigdyno.commands._shared import out_option, rendered
from rigdyno.errors import EXIT_DONE, BadValue, UsageError
from rigdyno.schema.scaling import Given, Link, Point
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.analyse.forecast import Curve
    from rigdyno.analyse.link import Crossing
    from rigdyno.report.forecast import Work

MOST_DEVICES = 1_000_000
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
Two more columns may say what goes over the link between nodes; each is one
number for the whole rig, and the flags of the same name win:
  bytes_per_step   gradients of a step, e.g. 102e6
  link_gbit_s      what a node's link carries, e.g. 10
"""


@click.command("forecast", epilog=EXAMPLES, short_help="What a larger rig would give.")
@click.argument("points", nargs=-1, required=True, metavar="POINTS...")
@click.option("--devices", "sizes", metavar="N[,N...]", help="How many devices. [default: twice and 4 times as many]")
@click.option("--devices-per-node", type=click.IntRange(1), help="How many devices one node holds.")
@click.option("--batch", type=click.IntRange(1, MOST_ITEMS), help="Items that one device does in a step.")
@click.option("--bytes-per-step", type=float, help="Gradients that a step sends between nodes.")
@click.option("--link-gbit-s", type=float, help="What a node's link carries, in Gbit/s.")
@click.option("--images", "--items", "items", type=float, help="How many items the job has, in an epoch.")
@click.option("--epochs", type=float, default=1.0, show_default=True, help="How often the job goes through them.")
@click.option("--watts", type=float, help="What one device draws, for the energy of the job.")
@click.option("--unit", help="What an item is. [default: what the runs say, else image]")
@click.option("--format", "form", type=click.Choice(catalogue.names("format")), default="terminal", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@out_option
def command(
    points: tuple[str, ...],
    sizes: str | None,
    devices_per_node: int | None,
    batch: int | None,
    bytes_per_step: float | None,
    link_gbit_s: float | None,
    items: float | None,
    epochs: float,
    watts: float | None,
    unit: str | None,
    form: str,
    as_json: bool,
    out: str | None,
) -> int:
    """Throughput, speedup and time of a job for more devices than were measured, with a 90 % interval.

    POINTS is a CSV file, or one or more run folders of one configuration with different numbers of ranks. Every
    row says whether it was measured or predicted. A link that none of the points has crossed isn't crossed: that needs
    one more measurement, and it says which; or, for a rougher forecast, --batch and what the link carries.
    """
    from rigdyno.analyse.forecast import Curve
    from rigdyno.report.forecast import Forecast, forecast_view

    given = given_points(points, out)
    link, batch = link_of(given, bytes_per_step, link_gbit_s), batch_of(given, batch)
    kept, remarks = _one_curve(given)
    require_room(kept, devices_per_node)
    crossing = _crossing(kept, link, batch, devices_per_node)
    asked = _sizes(sizes) if sizes else _further(kept, devices_per_node, crossing)
    curve = Curve(kept)
    if crossing is None:
        _require_crossed(kept, asked, devices_per_node, link)
        remarks += _about_the_link(link, batch, curve, asked, devices_per_node)
    forecast = Forecast(
        source=utf8(given.source),
        runs=given.runs,
        curve=curve,
        sizes=asked,
        unit=unit or given.unit or "image",
        batch=batch,
        crossing=crossing,
    )
    view = forecast_view(forecast, _work(items, epochs, watts), remarks)
    click.echo(rendered(view, "json" if as_json else form), nl=False)
    return EXIT_DONE


def _one_curve(given: Given) -> tuple[list[Point], list[str]]:
    from rigdyno.analyse.forecast import LEAST_POINTS
    from rigdyno.analyse.mechanisms import not_one_curve

    kept, remark = not_one_curve(given.points)
    if len(kept) < LEAST_POINTS:
        why = remark or f"{given.source} has {len(given.points)} sizes"
        raise UsageError(f"{why}; a forecast needs at least {LEAST_POINTS}: measure more")
    return kept, [*given.remarks, *([remark] if remark else [])]


def _crossing(
    points: Sequence[Point], link: Link | None, batch: int | None, devices_per_node: int | None
) -> Crossing | None:
    """Only where all points lie on one node: a measured crossing is better than a link's data sheet."""
    from rigdyno.analyse.link import Crossing
    from rigdyno.analyse.mechanisms import devices_on_a_node, have_crossed

    on_a_node = devices_on_a_node(points, devices_per_node)
    if link is None or batch is None or on_a_node is None or have_crossed(points):
        return None
    return Crossing(link=link, batch=batch, devices_per_node=on_a_node)


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BadValue(f"--devices takes whole numbers, not '{text}'; try 16,32,64") from None
    if not 1 <= sizes[0] <= sizes[-1] <= MOST_DEVICES:
        raise BadValue(f"--devices must lie between 1 and {MOST_DEVICES:,}, not '{text}'")
    return sizes


def _further(points: Sequence[Point], devices_per_node: int | None, crossing: Crossing | None) -> list[int]:
    """As far as the points allow; if they allow nothing, twice as many, so that the refusal says why."""
    from rigdyno.analyse.mechanisms import uncrossed_link

    largest = points[-1].devices
    sizes = [2 * largest, 4 * largest]
    if crossing is not None:
        return sizes
    return [size for size in sizes if not uncrossed_link(points, size, devices_per_node)] or sizes[:1]


def _require_crossed(
    points: Sequence[Point], sizes: Sequence[int], devices_per_node: int | None, link: Link | None
) -> None:
    from rigdyno.analyse.mechanisms import uncrossed_link

    for size in sizes:
        reason = uncrossed_link(points, size, devices_per_node)
        if reason and link is None:
            raise UsageError(f"{reason}; for a rougher forecast give --batch, --bytes-per-step and --link-gbit-s")
        if reason:
            raise UsageError(f"{size} devices need several nodes; to cross the given link add {NEEDS_BATCH}")


def _about_the_link(
    link: Link | None, batch: int | None, curve: Curve, sizes: Sequence[int], devices_per_node: int | None
) -> list[str]:
    """Points that have crossed it know better; but the two must not contradict each other."""
    from rigdyno.analyse.link import crossed_steps
    from rigdyno.analyse.mechanisms import devices_on_a_node
    from rigdyno.report.link import link_contradictions

    if link is None:
        return []
    on_a_node = devices_on_a_node(curve.points, devices_per_node)
    if on_a_node is None:
        return ["the given link isn't used: nobody says how many nodes there were; add a column 'nodes'"]
    if batch is None:
        return [f"the given link isn't used: to hold it against the figures, add {NEEDS_BATCH}"]
    return link_contradictions(link, crossed_steps(curve, sizes, batch, on_a_node))


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
