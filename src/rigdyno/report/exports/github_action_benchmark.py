"""For github-action-benchmark, tool `customBiggerIsBetter`: a list of rates, each with its interval as a text."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.matching import figures_by_name
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement


def document(measurements: Sequence[Measurement]) -> list[dict[str, object]]:
    return [_entry(name, figures.throughput) for name, figures in figures_by_name(measurements).items()]


def _entry(name: str, rate: Estimate) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "unit": rate.unit, "value": rate.value}
    if rate.interval is not None:
        low, high = rate.interval
        known = "" if rate.confidence is None else f"{rate.confidence:.0%} interval, "
        entry["range"] = f"{low:.6g} to {high:.6g}"
        entry["extra"] = f"{known}n = {rate.n}, {rate.method}"
    return entry
