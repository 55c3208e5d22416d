"""For github-action-benchmark, tool `customBiggerIsBetter`: a list of figures, each with its interval as a text."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.matching import figures_by_name
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import Metric


def document(measurements: Sequence[Measurement]) -> list[dict[str, object]]:
    return [
        _entry(name, metric, figure)
        for name, figures in figures_by_name(measurements).items()
        for metric, figure in figures.by_metric()
        if metric.better == "higher"
    ]


def _entry(name: str, metric: Metric, figure: Estimate) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "unit": metric.unit, "value": figure.value}
    if figure.interval is not None:
        low, high = figure.interval
        known = "" if figure.confidence is None else f"{figure.confidence:.0%} interval, "
        entry["range"] = f"{low:.6g} to {high:.6g}"
        entry["extra"] = f"{known}n = {figure.n}, {figure.method}"
    return entry
