"""Export to Bencher, in its metric format (BMF).

The measures are throughput and latency, which every Bencher project has, and energy in joules per item, if a power
meter could be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rigdyno.analyse.matching import figures_by_name
from rigdyno.base.files import write_json
from rigdyno.base.units import NS_PER_S
from rigdyno.report.export_data import ExportedRun, list_measurements
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import ENERGY_PER_ITEM, STEP_TIME, THROUGHPUT, Metric

MEASURES = {THROUGHPUT.name: "throughput", STEP_TIME.name: "latency", ENERGY_PER_ITEM.name: "energy"}


def write(runs: Sequence[ExportedRun], path: Path) -> None:
    write_json(path, document(list_measurements(runs)))


def document(measurements: Sequence[Measurement]) -> dict[str, dict[str, dict[str, float]]]:
    return {
        name: {
            MEASURES[metric.name]: _make_entry(_convert_unit(metric, figure)) for metric, figure in figures.by_metric()
        }
        for name, figures in figures_by_name(measurements).items()
    }


def _convert_unit(metric: Metric, figure: Estimate) -> Estimate:
    """Convert times to nanoseconds, the unit of Bencher."""
    return figure.scaled(NS_PER_S, "ns") if metric.unit == "s" else figure


def _make_entry(figure: Estimate) -> dict[str, float]:
    if figure.interval is None:
        return {"value": figure.value}
    low, high = figure.interval
    return {"value": figure.value, "lower_value": low, "upper_value": high}
