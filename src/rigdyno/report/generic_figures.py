"""The figures of what belongs to no suite: a sweep, several configurations, what a run's time was spent on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rigdyno.schema.estimate import Estimate, Missing, Number, Verdict
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.record import Total
from rigdyno.schema.view import Column, Row, Table

ALONG = {"ranks": "devices", "nodes": "nodes", "batch": "batch", "batch_size": "batch"}
SPENT = ("predicting", "waiting for input", "waiting for writers")  # what `rigdyno infer` counts, in turns


def rate_figures(table: Table, unit: str | None) -> tuple[Figure, ...]:
    """The rates of a table's rows: a curve over the one number that differs, else a bar for each. Rates of different
    units have no axis in common."""
    rows = [row for row in table.rows if isinstance(row.entries.get("rate"), Estimate | Missing)]
    if unit is None or len(rows) < 2:
        return ()
    swept = _swept(table, rows)
    data = tuple(_datum(table, row, swept) for row in rows)
    axis = Axis(quantity="configuration", along="category")
    if swept is not None:
        data = tuple(sorted(data, key=lambda each: float(each.x)))
        axis = Axis(quantity=swept.title, along=ALONG.get(swept.title, "value"))  # type: ignore[arg-type]
    return (
        Figure(
            key="rate",
            kind="bars" if swept is None else "curve",
            title="Rate" if swept is None else f"Rate by {swept.title}",
            x=axis,
            panels=(
                Panel(y=Axis(quantity="rate", unit=unit), series=(Series(name="rate", role="measured", data=data),)),
            ),
            caption=table.title,
            counted="steps",
        ),
    )


def _swept(table: Table, rows: Sequence[Row]) -> Column | None:
    """The only column that tells rows apart, if it has a different number in each."""
    if len(table.identifying) != 1:
        return None
    column = table.identifying[0]
    found = [entry.value for row in rows if isinstance(entry := row.entries.get(column.key), Number)]
    return column if len(found) == len(rows) == len(set(found)) else None


def _datum(table: Table, row: Row, swept: Column | None) -> Datum:
    rate = row.entries["rate"]
    assert isinstance(rate, Estimate | Missing)
    x: float | str = table.name_of(row)
    if swept is not None:
        entry = row.entries[swept.key]
        assert isinstance(entry, Number)
        x = float(entry.value)
    return datum_of(x, rate, verdict=_verdict(row))


def _verdict(row: Row) -> Verdict | None:
    return row.status if row.status in ("VALID", "SUSPECT", "INVALID") else None


def spent_figures(name: str, totals: Mapping[str, Total]) -> tuple[Figure, ...]:
    """Where the time of an inference went; what none of its parts explains is a part of its own."""
    parts = {part: totals[part].value for part in SPENT if part in totals and totals[part].unit == "s"}
    if not parts or "time" not in totals:
        return ()
    parts["the rest"] = max(0.0, totals["time"].value - sum(parts.values()))
    series = tuple(Series(name=part, role="measured", data=(datum(name, value),)) for part, value in parts.items())
    return (
        Figure(
            key="where-time-goes",
            kind="stack",
            title="Where the time went",
            x=Axis(quantity="run", along="category"),
            panels=(Panel(y=Axis(quantity="time", unit="s"), series=series),),
            caption="Of the whole run, warm-up included",
        ),
    )
