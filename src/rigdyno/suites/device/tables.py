"""The tables of the device suite, and the presentation of a soak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rigdyno.analyse.scaling import ratio, share
from rigdyno.analyse.validity.verdict import bytes_per_s, fits_the_cache, memory_limit
from rigdyno.base.errors import DamagedRun
from rigdyno.base.units import rate_unit, show_bytes, show_number, show_seconds
from rigdyno.reference.published import TENSOR_ADD_SIZE
from rigdyno.report.sections import (
    SOAK_TITLE,
    choose_energy_columns,
    find_verdict,
    make_energy_entries,
    make_soak_columns,
    make_soak_entries,
    make_soak_figure,
)
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.measured import Measurement, Soak
from rigdyno.schema.metric import BANDWIDTH, COUNT, LAUNCH_TIME, LIMIT_SHARE, THROUGHPUT
from rigdyno.schema.view import Column, Entry, Presentation, Row, Table, Text

VARIANT_NAMES = {
    "as_published": "add, as published",
    "as_intended": "add, as intended",
    "corrected": "add, corrected",
}

_LIMIT_NAMES = {
    "memory_bandwidth": "memory",
    "matmul_peak": "matrix product",
    "host_device_copy": "copy",
    "launch_latency": "launch",
}

WHAT = Column(key="what", title="what", numeric=False)

RATE = Column(key="rate", title="rate", metric=THROUGHPUT)

ADD_RATE = Column(key="rate", title="rate", metric=THROUGHPUT.of("iteration"))

MOVED = Column(key="moved", title="moved", metric=BANDWIDTH)

SHARE = Column(key="share", title="of limit", metric=LIMIT_SHARE)

LAUNCH = Column(key="launch", title="takes", metric=LAUNCH_TIME)

STEPS = Column(key="n", title="n", metric=COUNT)

UNIT = rate_unit("iteration")


def adds(measurements: Sequence[Measurement]) -> Table:
    limit = memory_limit(measurements)
    found = filter_by_workload(measurements, "tensor_add")
    return Table(
        title=f"Tensor add, {_sizes(found)}, float32",
        columns=(WHAT, ADD_RATE, MOVED, SHARE, *choose_energy_columns(found), STEPS),
        rows=tuple(add_row(measurement, limit) for measurement in found),
        notes=_bytes_notes(found),
    )


def add_row(measurement: Measurement, limit: Estimate | None) -> Row:
    moved = moved_by(measurement)
    name = VARIANT_NAMES.get(variant(measurement), variant(measurement))
    if size_of(measurement) != TENSOR_ADD_SIZE:
        name += f" ({size_of(measurement)})"
    return Row(
        entries={
            "what": Text(text=name),
            "rate": measurement.throughput(),
            "moved": moved,
            "share": share_of(measurement, limit),
            **make_energy_entries(measurement),
            "n": count(measurement.throughput()),
        },
        status=measurement.status,
        facts=measurement.records[-1].columns(),
    )


def share_of(measurement: Measurement, limit: Estimate | None) -> Entry:
    part = moved_by(measurement)
    if isinstance(part, Missing):
        return part
    if fits_the_cache(measurement):
        return Missing(reason="no share of the memory's limit: this fits the cache")
    if limit is None:
        return Missing(reason="no valid memory limit was measured in this run")
    if limit.ends[0] <= 0:
        return Missing(reason="the memory limit is too uncertain in this run: its interval reaches down to zero")
    return share(ratio(part, limit), "memory bandwidth")


def moved_by(measurement: Measurement) -> Estimate | Missing:
    rate = measurement.throughput()
    if isinstance(rate, Missing):
        return rate
    return bytes_per_s(measurement) or Missing(reason="the bytes of an iteration are not recorded")


def _sizes(found: Sequence[Measurement]) -> str:
    sizes = sorted({size_of(measurement) for measurement in found})
    return ", ".join(f"{size} x {size}" for size in sizes)


def _bytes_notes(found: Sequence[Measurement]) -> tuple[str, ...]:
    """Return a note with the bytes per iteration of each variant."""
    counted = {
        VARIANT_NAMES.get(variant(measurement), ""): measurement.facts.per_item["byte"]
        for measurement in found
        if "byte" in measurement.facts.per_item
    }
    if not counted:
        return ()
    return ("Bytes counted an iteration: " + "; ".join(f"{name} {show_bytes(size)}" for name, size in counted.items()),)


def limits(measurements: Sequence[Measurement]) -> Table:
    rows = [
        row for name in _LIMIT_NAMES for found in filter_by_workload(measurements, name) for row in limit_rows(found)
    ]
    launch = (LAUNCH,) if any(LAUNCH.key in row.entries for row in rows) else ()
    return Table(title="This machine's own limits", columns=(WHAT, RATE, *launch, STEPS), rows=tuple(rows))


def limit_rows(measurement: Measurement) -> list[Row]:
    """Return a row per kind of step, or one row with the reason if there is no figure."""
    kinds: Sequence[str | None] = list(measurement.kinds) or [None]
    return [_limit_row(measurement, kind) for kind in kinds]


def _limit_row(measurement: Measurement, kind: str | None) -> Row:
    name = _LIMIT_NAMES[measurement.spec.workload]
    detail = str(measurement.spec.options.get("dtype") or (kind or "").replace("_", " "))
    rate = measurement.throughput(kind or "step")
    return Row(
        entries={
            "what": Text(text=f"{name}, {detail}".rstrip(", ")),
            **_limit_entries(measurement, rate),
            "n": count(rate),
        },
        status=measurement.status_of(kind),
        facts=measurement.records[-1].columns(),
    )


def _limit_entries(measurement: Measurement, rate: Estimate | Missing) -> dict[str, Entry]:
    """Return bytes and operations as rates, and a launch as its time."""
    if measurement.facts.unit != "launch":
        return {RATE.key: rate}
    if isinstance(rate, Missing):
        return {LAUNCH.key: rate}
    if rate.ends[0] <= 0:  # there is no upper bound to invert
        return {RATE.key: rate}
    return {LAUNCH.key: rate.mapped(lambda launches: 1 / launches, "s/launch")}


def soak_presentation(measurements: Sequence[Measurement]) -> Presentation:
    soaked = [(measurement, measurement.soak) for measurement in measurements if measurement.soak is not None]
    return Presentation(
        title="device: soak, the tensor add over time",
        tables=(
            Table(
                title=SOAK_TITLE,
                columns=(WHAT, *make_soak_columns(UNIT)),
                rows=tuple(_soak_row(*pair) for pair in soaked),
            ),
        ),
        figures=tuple(make_soak_figure(soak, UNIT, find_verdict(measurement)) for measurement, soak in soaked),
        closing=tuple(_soak_sentence(soak) for _, soak in soaked),
    )


def _soak_row(measurement: Measurement, soak: Soak) -> Row:
    return Row(
        entries={
            "what": Text(text=VARIANT_NAMES.get(variant(measurement), variant(measurement))),
            **make_soak_entries(soak, UNIT),
        },
        status=measurement.status,
        facts=measurement.records[-1].columns(),
    )


def _soak_sentence(soak: Soak) -> str:
    length = show_seconds(soak.seconds[-1] - soak.seconds[0]) if len(soak.seconds) > 1 else "no time"
    rates = f"{show_number(soak.burst)} it/s at first, {show_number(soak.sustained)} it/s at the end of {length}"
    if soak.throttled:
        return f"Throttled: {rates}. The published 'overheated' row fell the same way, from 300 to 55 it/s."
    if soak.fell:
        return f"Slower at the end: {rates}. Other load or a short soak may be why: it isn't called throttled."
    return f"No throttling: {rates}."


def filter_by_workload(measurements: Iterable[Measurement], workload: str) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.spec.workload == workload]


def variant(measurement: Measurement) -> str:
    return str(measurement.spec.options.get("variant", "corrected"))


def size_of(measurement: Measurement) -> int:
    size = measurement.spec.options.get("size", TENSOR_ADD_SIZE)
    if not isinstance(size, int):
        raise DamagedRun(f"{measurement.records[0].run} holds a tensor add of the size {size!r}")
    return size


def kind_of(measurement: Measurement) -> str:
    return "cpu" if measurement.spec.device.partition(":")[0] == "cpu" else "gpu"


def count(entry: Estimate | Missing) -> Entry:
    return entry if isinstance(entry, Missing) else Number(value=entry.n)
