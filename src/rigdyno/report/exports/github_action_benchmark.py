"""Export to github-action-benchmark, tool `customBiggerIsBetter`: a list of figures, each with its interval as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rigdyno.analyse.matching import figures_by_name
from rigdyno.base.files import write_json
from rigdyno.report.export_data import ExportedRun, list_measurements
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.metric import THROUGHPUT, Metric


def write(runs: Sequence[ExportedRun], path: Path) -> None:
    write_json(path, document(list_measurements(runs)))


def document(measurements: Sequence[Measurement]) -> list[dict[str, object]]:
    return [
        _make_entry(name if metric.name == THROUGHPUT.name else f"{name}, {metric.name}", metric, figure)
        for name, figures in figures_by_name(measurements).items()
        for metric, figure in _select_bigger_is_better(figures)
    ]


def _select_bigger_is_better(figures: KindFigures) -> Iterator[tuple[Metric, Estimate]]:
    """Yield the figures of which more is better: rates, and items per joule. Step times only repeat the rates."""
    for metric, figure in figures.by_metric():
        if metric.better == "higher":
            yield metric, figure
    energy = figures.energy
    if energy is not None and energy.ends[0] > 0:
        unit = f"{energy.unit.partition('/')[2]}/J"
        yield Metric(name="items per joule", unit=unit, better="higher"), energy.mapped(lambda each: 1 / each, unit)


def _make_entry(name: str, metric: Metric, figure: Estimate) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "unit": metric.unit, "value": figure.value}
    if figure.interval is not None:
        low, high = figure.interval
        known = "" if figure.confidence is None else f"{figure.confidence:.0%} interval, "
        entry["range"] = f"{low:.6g} to {high:.6g}"
        entry["extra"] = f"{known}n = {figure.n}, {figure.method}"
    return entry
