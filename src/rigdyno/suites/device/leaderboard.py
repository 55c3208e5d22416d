"""The published leaderboard of the tensor add, with the rows of this store in it."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.reference.published import TENSOR_ADD_SIZE, PublishedAdd, load_tensor_add
from rigdyno.report.sections import choose_energy_columns, find_verdict, make_energy_entries
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.figure import Figure, Panel, Series, datum_of, figure_key
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import LIMIT_SHARE
from rigdyno.schema.view import Column, Presentation, Published, RatioEntry, Row, Table, Text
from rigdyno.suites.device.figures import DEVICE, RATE, published_series
from rigdyno.suites.device.tables import ADD_RATE, MOVED, kind_of, moved_by, size_of, variant

WHAT_IT_MEASURES = (
    "The published function takes no argument and is scripted, so TorchScript folds it into a constant and the loop "
    "adds one tensor to itself in place.",
    "What is ranked here is therefore memory bandwidth, one read and one write of a 604 MB matrix an iteration, and "
    "nothing else of a device.",
)


def presentation(measurements: Sequence[Measurement]) -> Presentation:
    """Rank stored and published rows, CPUs and GPUs apart. Only the published loop at its size is ranked."""
    ranked = [m for m in measurements if m.kinds and variant(m) == "as_published" and size_of(m) == TENSOR_ADD_SIZE]
    parts = [("CPUs", ("cpu",)), ("GPUs", ("gpu",)), ("CPU or GPU: not said", ("unknown",))]
    doubtful = [f"{row.device} {row.doubt}." for row in load_tensor_add() if row.doubt]
    doubtful += [f"{row.device} is {row.note}." for row in load_tensor_add() if "throttled" in row.note]
    return Presentation(
        title="Leaderboard: tensor add as published, 12288 x 12288 float32",
        tables=tuple(_ranking_table(title, kinds, ranked) for title, kinds in parts),
        figures=tuple(_ranking_figure(title, kinds, ranked) for title, kinds in parts),
        standing=WHAT_IT_MEASURES,
        closing=("Rows that can't be taken at their word: " + " ".join(doubtful),) if doubtful else (),
    )


def _ranking_table(title: str, kinds: tuple[str, ...], ranked: Sequence[Measurement]) -> Table:
    rows = [(row.iterations_per_s, _published_row(row)) for row in load_tensor_add() if row.kind in kinds]
    rows += [(_value(m), _stored_row(m)) for m in ranked if kind_of(m) in kinds]
    rows.sort(key=lambda pair: -pair[0])
    columns = (
        Column(key="device", title="device", numeric=False),
        ADD_RATE,
        MOVED,
        Column(key="nominal", title="of nominal", metric=LIMIT_SHARE),
        *choose_energy_columns([m for m in ranked if kind_of(m) in kinds]),
    )
    sources = sorted({row.source for row in load_tensor_add() if row.kind in kinds})
    notes = (f"published: {', '.join(sources)}; moved = one read and one write; nominal: the memory's data sheet",)
    return Table(title=title, columns=columns, rows=tuple(row for _, row in rows), notes=notes)


def _ranking_figure(title: str, kinds: tuple[str, ...], ranked: Sequence[Measurement]) -> Figure:
    own = tuple(
        datum_of(device_name(each), each.throughput(), verdict=find_verdict(each), note=f"measured in {each.runs[-1]}")
        for each in ranked
        if kind_of(each) in kinds
    )
    measured = (Series(name="measured", role="measured", data=own),) if own else ()
    return Figure(
        key=figure_key("leaderboard", title),
        kind="leaderboard",
        title=f"Leaderboard: {title}",
        x=DEVICE,
        panels=(Panel(y=RATE, series=(*measured, published_series(kinds))),),
        caption="Tensor add as published, 12288 x 12288 float32: memory bandwidth, one read and one write",
        counted="steps",
    )


def _value(measurement: Measurement) -> float:
    rate = measurement.throughput()
    return rate.value if isinstance(rate, Estimate) else 0.0


def _published_row(row: PublishedAdd) -> Row:
    note = "; ".join(part for part in (row.doubt, row.note) if part)
    return Row(
        origin="published",
        entries={
            "device": Text(text=row.device),
            "rate": Published(value=row.iterations_per_s, unit="it/s", source=row.source),
            "moved": Published(value=row.bytes_per_s, unit="B/s", source=row.source),
            **_nominal_share(row),
        },
        notes=(note,) if note else (),
    )


def _nominal_share(row: PublishedAdd) -> dict[str, RatioEntry]:
    nominal = row.nominal_bytes_per_s
    return {} if nominal is None else {"nominal": RatioEntry(value=row.bytes_per_s / nominal, of="nominal bandwidth")}


def _stored_row(measurement: Measurement) -> Row:
    record = measurement.records[-1]
    return Row(
        entries={
            "device": Text(text=device_name(measurement)),
            "rate": measurement.throughput(),
            "moved": moved_by(measurement),
            **make_energy_entries(measurement),
        },
        notes=(f"measured in {record.run}, torch {record.environment.packages.get('torch', 'unknown')}",),
        status=measurement.status,
        runs=measurement.runs,
        facts=measurement.records[-1].columns(),
    )


def device_name(measurement: Measurement) -> str:
    record = measurement.records[-1]
    if record.label:
        return record.label
    if kind_of(measurement) == "cpu" or not record.system.accelerators:
        return record.system.cpu.model
    return record.system.accelerators[0].name
