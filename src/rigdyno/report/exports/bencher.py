"""For Bencher: its metric format (BMF), with the measures that every project of it has, throughput and latency."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.matching import figures_by_name
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.units import NS_PER_S

Metric = dict[str, float]


def document(measurements: Sequence[Measurement]) -> dict[str, dict[str, Metric]]:
    return {
        name: {
            "throughput": _metric(figures.throughput),
            "latency": _metric(figures.step_seconds.scaled(NS_PER_S, "ns")),  # the unit of this measure
        }
        for name, figures in figures_by_name(measurements).items()
    }


def _metric(figure: Estimate) -> Metric:
    if figure.interval is None:
        return {"value": figure.value}
    low, high = figure.interval
    return {"value": figure.value, "lower_value": low, "upper_value": high}
