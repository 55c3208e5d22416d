"""For Bencher: its metric format (BMF), with the measures that every project of it has, throughput and latency, and one
of our own, energy: joules an item, where a meter could be read."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.matching import figures_by_name
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import ENERGY_PER_ITEM, STEP_TIME, THROUGHPUT, Metric
from rigdyno.units import NS_PER_S

MEASURES = {THROUGHPUT.name: "throughput", STEP_TIME.name: "latency", ENERGY_PER_ITEM.name: "energy"}


def document(measurements: Sequence[Measurement]) -> dict[str, dict[str, dict[str, float]]]:
    return {
        name: {MEASURES[metric.name]: _bounded(_in_its_unit(metric, figure)) for metric, figure in figures.by_metric()}
        for name, figures in figures_by_name(measurements).items()
    }


def _in_its_unit(metric: Metric, figure: Estimate) -> Estimate:
    """Bencher's times are in nanoseconds."""
    return figure.scaled(NS_PER_S, "ns") if metric.unit == "s" else figure


def _bounded(figure: Estimate) -> dict[str, float]:
    if figure.interval is None:
        return {"value": figure.value}
    low, high = figure.interval
    return {"value": figure.value, "lower_value": low, "upper_value": high}
