"""The steps of one process over time: a small plot for every kind and rank, with the cut of the warm-up."""

from __future__ import annotations

from collections.abc import Iterator

from rigdyno.analyse.process import facts_of, steady_of
from rigdyno.analyse.soak import rate_over_time
from rigdyno.analyse.steady import MIN_STEPS, Steady
from rigdyno.analyse.streams import Rows, measured_from, seconds_since, streams
from rigdyno.base.errors import RigdynoError
from rigdyno.base.units import rate_unit, seconds_of_ns
from rigdyno.report.plot import HEIGHT, count_plot_columns, draw_figure_as_text
from rigdyno.report.text import Page, format_scaled
from rigdyno.schema.figure import Axis, Event, Figure, Panel, Series, datum, figure_key
from rigdyno.schema.record import Skipped
from rigdyno.store.folder import StoredCell

TIME = Axis(quantity="time", unit="s", along="time")

MOST_PLOTS = 6  # more would be unreadable, and the ranks of one run are alike

SMALL_HEIGHT = 4  # of each, where there are several


def draw_steps_over_time(cell: StoredCell, page: Page) -> Iterator[str]:
    try:
        found = _titled_streams(cell)
    except RigdynoError as error:
        yield f"rate over time: can't be drawn: {error}"
        return
    if not found and not isinstance(cell.record.outcome, Skipped):
        yield "rate over time: no step was recorded"
    for title, rows in found[:MOST_PLOTS]:
        figure = _rate_figure(
            title, rows, rate_unit(facts_of(cell.record, [rows]).unit), count_plot_columns(page.width)
        )
        yield ""
        yield from draw_figure_as_text(figure, page.width, HEIGHT if len(found) == 1 else SMALL_HEIGHT)
    if len(found) > MOST_PLOTS:
        yield f"and {len(found) - MOST_PLOTS} more, not drawn"


def _titled_streams(cell: StoredCell) -> list[tuple[str, Rows]]:
    ranks = [(header.participant.rank, streams(header, rows)) for header, rows in cell.steps()]
    several = len(ranks) > 1
    return [
        ("rate over time" + (f", {kind}" if kind != "step" else "") + (f", rank {rank}" if several else ""), rows)
        for rank, kinds in ranks
        for kind, rows in kinds.items()
    ]


def _rate_figure(title: str, rows: Rows, unit: str, columns: int) -> Figure:
    steady = steady_of(rows)
    seconds, rates = rate_over_time(rows, slices=columns)
    data = tuple(map(datum, seconds.tolist(), rates.tolist()))
    cut = find_warm_up_cut(rows, steady)
    return Figure(
        key=figure_key(title),
        kind="timeline",
        title=title,
        x=TIME,
        panels=(Panel(y=Axis(quantity="rate", unit=unit), series=(Series(name="rate", role="measured", data=data),)),),
        events=() if cut is None else (cut,),
        notes=(describe_warm_up_cut(rows, steady),) if cut is None else (),
    )


def find_warm_up_cut(rows: Rows, steady: Steady) -> Event | None:
    """Return the event where the warm-up was cut; None if nothing was cut."""
    if not 0 < steady.start < len(rows):
        return None
    return Event(x=seconds_since(rows, steady.start), label=describe_warm_up_cut(rows, steady), kind="warm_up_cut")


def describe_warm_up_cut(rows: Rows, steady: Steady) -> str:
    """Say how the warm-up was cut."""
    if not steady.settled:
        return f"never settled: {steady.reason}" if len(rows) >= MIN_STEPS else steady.reason
    if steady.start == 0:
        return steady.reason
    reason = "the meter was still warming up" if steady.start == measured_from(rows) else steady.reason
    return f"steady from here; {_what_was_cut(rows[: steady.start])} of {len(rows):,} were cut: {reason}"


def _what_was_cut(rows: Rows) -> str:
    """Say how many steps, or blocks of short steps, were cut, and how long they took."""
    count, largest = len(rows), int(rows["steps"].max())
    what = "step" if largest == 1 else "block"
    seconds = seconds_of_ns(int(rows["end_ns"][-1]) - int(rows["start_ns"][0]))
    return f"{count:,} {what}{'s' if count != 1 else ''} ({format_scaled(seconds, 's')})"
