"""The tables of the device suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rigdyno.analyse.limits import bytes_per_s, fits_the_cache, memory_limit
from rigdyno.errors import DamagedRun
from rigdyno.reference.published import TENSOR_ADD_SIZE
from rigdyno.schema.estimate import Estimate, Missing, Number, worst_ratio
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import BANDWIDTH, COUNT, LAUNCH_TIME, LIMIT_SHARE, THROUGHPUT
from rigdyno.schema.view import Column, Entry, Row, Share, Table, Text
from rigdyno.suites._energy import energy_columns, energy_entries
from rigdyno.units import show_bytes

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


def of_workload(measurements: Iterable[Measurement], workload: str) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.spec.workload == workload]


def variant(measurement: Measurement) -> str:
    return str(measurement.spec.options.get("variant", "corrected"))


def moved_by(measurement: Measurement) -> Estimate | Missing:
    rate = measurement.throughput()
    if isinstance(rate, Missing):
        return rate
    return bytes_per_s(measurement) or Missing(reason="the bytes of an iteration are not recorded")


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
    low, high = worst_ratio(part, limit) or (None, None)
    return Share(value=part.value / limit.value, low=low, high=high, of="memory bandwidth")


def adds(measurements: Sequence[Measurement]) -> Table:
    limit = memory_limit(measurements)
    found = of_workload(measurements, "tensor_add")
    return Table(
        title=f"Tensor add, {_sizes(found)}, float32",
        columns=(WHAT, ADD_RATE, MOVED, SHARE, *energy_columns(found), STEPS),
        rows=tuple(add_row(measurement, limit) for measurement in found),
        notes=_counted(found),
    )


def _sizes(found: Sequence[Measurement]) -> str:
    sizes = sorted({size_of(measurement) for measurement in found})
    return ", ".join(f"{size} x {size}" for size in sizes)


def size_of(measurement: Measurement) -> int:
    size = measurement.spec.options.get("size", TENSOR_ADD_SIZE)
    if not isinstance(size, int):
        raise DamagedRun(f"{measurement.records[0].run} holds a tensor add of the size {size!r}")
    return size


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
            **energy_entries(measurement),
            "n": count(measurement.throughput()),
        },
        status=measurement.status,
        facts=measurement.records[-1].columns(),
    )


def count(entry: Estimate | Missing) -> Entry:
    return entry if isinstance(entry, Missing) else Number(value=entry.n)


def _counted(found: Sequence[Measurement]) -> tuple[str, ...]:
    """The bytes an iteration is counted with."""
    counted = {
        VARIANT_NAMES.get(variant(measurement), ""): measurement.facts.per_item["byte"]
        for measurement in found
        if "byte" in measurement.facts.per_item
    }
    if not counted:
        return ()
    return ("Bytes counted an iteration: " + "; ".join(f"{name} {show_bytes(size)}" for name, size in counted.items()),)


def limits(measurements: Sequence[Measurement]) -> Table:
    rows = [row for name in _LIMIT_NAMES for found in of_workload(measurements, name) for row in limit_rows(found)]
    launch = (LAUNCH,) if any(LAUNCH.key in row.entries for row in rows) else ()
    return Table(title="This machine's own limits", columns=(WHAT, RATE, *launch, STEPS), rows=tuple(rows))


def limit_rows(measurement: Measurement) -> list[Row]:
    """A row a kind of step; one row with the reason where there is no figure."""
    kinds: Sequence[str | None] = list(measurement.kinds) or [None]
    return [_limit_row(measurement, kind) for kind in kinds]


def _limit_row(measurement: Measurement, kind: str | None) -> Row:
    name = _LIMIT_NAMES[measurement.spec.workload]
    detail = str(measurement.spec.options.get("dtype") or (kind or "").replace("_", " "))
    rate = measurement.throughput(kind or "step")
    return Row(
        entries={"what": Text(text=f"{name}, {detail}".rstrip(", ")), **_limit(measurement, rate), "n": count(rate)},
        status=measurement.status_of(kind),
        facts=measurement.records[-1].columns(),
    )


def _limit(measurement: Measurement, rate: Estimate | Missing) -> dict[str, Entry]:
    """Bytes and operations as rates; a launch as what one takes."""
    if measurement.facts.unit != "launch":
        return {RATE.key: rate}
    if isinstance(rate, Missing):
        return {LAUNCH.key: rate}
    if rate.ends[0] <= 0:  # there is no upper bound to invert
        return {RATE.key: rate}
    return {LAUNCH.key: rate.mapped(lambda launches: 1 / launches, "s/launch")}


def kind_of(measurement: Measurement) -> str:
    return "cpu" if measurement.spec.device.partition(":")[0] == "cpu" else "gpu"
