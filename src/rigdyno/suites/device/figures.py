"""The figures of the device suite: its additions next to the published ones, and the roofline of this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rigdyno.analyse.validity.verdict import bytes_per_s, fits_the_cache, memory_limit
from rigdyno.reference.published import PublishedAdd, load_tensor_add
from rigdyno.report.sections import find_verdict
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.figure import Axis, Datum, Figure, Panel, Series, datum, datum_of
from rigdyno.schema.measured import Measurement
from rigdyno.suites.device.tables import VARIANT_NAMES, filter_by_workload, kind_of, variant

RATE = Axis(quantity="rate", unit="it/s")

DEVICE = Axis(quantity="device", along="category")

_MARGIN = 4.0  # factor by which the lines of a roofline extend beyond the outermost workload


def make_figures(measurements: Sequence[Measurement]) -> tuple[Figure, ...]:
    adds = filter_by_workload(measurements, "tensor_add")
    drawn = (_adds_figure(adds) if adds else None, _roofline_figure(measurements))
    return tuple(figure for figure in drawn if figure is not None)


def published_series(kinds: Sequence[str]) -> Series:
    rows = [row for row in load_tensor_add() if row.kind in kinds]
    sources = ", ".join(sorted({row.source for row in rows}))
    return Series(name="published", role="published", data=tuple(map(_published_datum, rows)), source=sources)


def _published_datum(row: PublishedAdd) -> Datum:
    note = "; ".join(part for part in (row.doubt, row.note) if part)
    return Datum(x=row.device, value=row.iterations_per_s, note=note)


def _adds_figure(adds: Sequence[Measurement]) -> Figure:
    own = tuple(
        datum_of(f"this machine: {_name(each)}", each.throughput(), verdict=find_verdict(each)) for each in adds
    )
    kinds = sorted({kind_of(each) for each in adds})
    return Figure(
        key="tensor-add",
        kind="bars",
        title="Tensor add, beside published machines",
        x=DEVICE,
        panels=(Panel(y=RATE, series=(Series(name="measured", role="measured", data=own), published_series(kinds))),),
        caption="Additions a second of 12288 x 12288 float32; published machines ran the loop as published",
        counted="steps or processes",
    )


def _name(measurement: Measurement) -> str:
    return VARIANT_NAMES.get(variant(measurement), variant(measurement))


def _roofline_figure(measurements: Sequence[Measurement]) -> Figure | None:
    """Draw the roofline from the memory and arithmetic limits of this run; matrix products are on their own limit."""
    memory, products = memory_limit(measurements), filter_by_workload(measurements, "matmul_peak")
    peaks = [(each, rate) for each in products if isinstance(rate := each.throughput(), Estimate)]
    workloads = [
        found for each in filter_by_workload(measurements, "tensor_add") if (found := _add_point(each)) is not None
    ]
    if memory is None or memory.value <= 0 or not peaks or not workloads:
        return None
    workloads += [found for each, rate in peaks if (found := _product_point(each, rate)) is not None]
    xs = [point.x for point in workloads if not isinstance(point.x, str)]
    first, last = min(xs) / _MARGIN, max(*xs, *(rate.value / memory.value for _, rate in peaks)) * _MARGIN
    roofs = tuple(_roof_series(each, rate, memory.value, first, last) for each, rate in peaks)
    return Figure(
        key="roofline",
        kind="roofline",
        title="Roofline of this machine",
        x=Axis(quantity="arithmetic intensity", unit="FLOP/B", along="intensity", scale="log"),
        panels=(
            Panel(
                y=Axis(quantity="rate", unit="FLOP/s", scale="log"),
                series=(*roofs, Series(name="workloads", role="measured", data=tuple(workloads))),
            ),
        ),
        caption="The most that memory and arithmetic of this machine allow, both measured in this run",
        counted="steps or processes",
    )


def _roof_series(product: Measurement, peak: Estimate, memory: float, first: float, last: float) -> Series:
    ridge = peak.value / memory
    line = [datum(x, min(x * memory, peak.value)) for x in sorted({first, ridge, last})]
    return Series(name=f"memory, then {_dtype(product)}", role="limit", data=tuple(line))


def _dtype(product: Measurement) -> str:
    return str(product.spec.options.get("dtype", "float32"))


def _add_point(measurement: Measurement) -> Datum | None:
    """Return the point of an addition; None if it fits the cache, where memory bandwidth is no limit."""
    moved, per_item = bytes_per_s(measurement), measurement.facts.per_item.get("byte")
    if moved is None or per_item is None or fits_the_cache(measurement) or moved.value <= 0:
        return None
    size = measurement.spec.resolved.get("size")
    if not isinstance(size, int) or size <= 0 or per_item <= 0:
        return None
    intensity = size**2 / per_item
    rate = moved.scaled(intensity, "FLOP/s")
    return datum_of(intensity, rate, verdict=find_verdict(measurement), label=_name(measurement))


def _product_point(measurement: Measurement, rate: Estimate) -> Datum | None:
    """Return the point of a matrix product that reads or writes each matrix once, which is the minimum."""
    shape = str(measurement.facts.settled.get("shape", "")).split("x")
    widths = {"float64": 8, "float32": 4}
    if len(shape) != 3 or not all(part.isdigit() and int(part) > 0 for part in shape):
        return None
    m, k, n = map(int, shape)
    moved = widths.get(_dtype(measurement), 2) * (m * k + k * n + m * n)
    intensity = 2.0 * m * k * n / moved
    if not math.isfinite(intensity):
        return None
    name = f"product, {_dtype(measurement)}"
    return datum_of(intensity, rate, verdict=find_verdict(measurement), label=name)
