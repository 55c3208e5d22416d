"""The steps of one process over time: a small plot for every kind and rank, with the cut of the warm-up."""

from __future__ import annotations

from collections.abc import Iterator

from rigdyno.analyse.measure import facts_of, steady_of
from rigdyno.analyse.slices import rate_over_time
from rigdyno.analyse.steady import MIN_STEPS, Steady
from rigdyno.analyse.streams import Rows, measured_from, seconds_since, streams
from rigdyno.errors import RigdynoError
from rigdyno.report.format_entry import scaled_text
from rigdyno.report.page import Page
from rigdyno.report.plot import HEIGHT, figure_lines, plot_columns
from rigdyno.schema.figure import Axis, Event, Figure, Panel, Series, datum, figure_key
from rigdyno.schema.record import Skipped
from rigdyno.store.folder import StoredCell
from rigdyno.units import rate_unit, seconds_of_ns

TIME = Axis(quantity="time", unit="s", along="time")
MOST_PLOTS = 6  # more of them nobody reads; the ranks of one run are alike
SMALL_HEIGHT = 4  # of each, where there are several


def steps_over_time(cell: StoredCell, page: Page) -> Iterator[str]:
    try:
        found = _titled_streams(cell)
    except RigdynoError as error:
        yield f"rate over time: can't be drawn: {error}"
        return
    if not found and not isinstance(cell.record.outcome, Skipped):
        yield "rate over time: no step was recorded"
    for title, rows in found[:MOST_PLOTS]:
        figure = _rate_figure(title, rows, rate_unit(facts_of(cell.record, [rows]).unit), plot_columns(page.width))
        yield ""
        yield from figure_lines(figure, page.width, HEIGHT if len(found) == 1 else SMALL_HEIGHT)
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
    cut = cut_event(rows, steady)
    return Figure(
        key=figure_key(title),
        kind="timeline",
        title=title,
        x=TIME,
        panels=(Panel(y=Axis(quantity="rate", unit=unit), series=(Series(name="rate", role="measured", data=data),)),),
        events=() if cut is None else (cut,),
        notes=(cut_sentence(rows, steady),) if cut is None else (),
    )


def cut_event(rows: Rows, steady: Steady) -> Event | None:
    """Where the warm-up was cut; None where nothing was."""
    if not 0 < steady.start < len(rows):
        return None
    return Event(x=seconds_since(rows, steady.start), label=cut_sentence(rows, steady), kind="warm_up_cut")


def cut_sentence(rows: Rows, steady: Steady) -> str:
    """How the warm-up was cut, in words."""
    if not steady.settled:
        return f"never settled: {steady.reason}" if len(rows) >= MIN_STEPS else steady.reason
    if steady.start == 0:
        return steady.reason
    reason = "the meter was still warming up" if steady.start == measured_from(rows) else steady.reason
    return f"steady from here; {_what_was_cut(rows[: steady.start])} of {len(rows):,} were cut: {reason}"


def _what_was_cut(rows: Rows) -> str:
    """A row is a step, or a block of short ones."""
    count, largest = len(rows), int(rows["steps"].max())
    what = "step" if largest == 1 else "block"
    seconds = seconds_of_ns(int(rows["end_ns"][-1]) - int(rows["start_ns"][0]))
    return f"{count:,} {what}{'s' if count != 1 else ''} ({scaled_text(seconds, 's')})"
