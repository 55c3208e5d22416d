"""Read the points of a scaling curve from stored runs of one configuration on one machine at several sizes."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rigdyno.analyse.matching import name_of
from rigdyno.analyse.statistics import across_processes
from rigdyno.base.errors import UsageError
from rigdyno.base.units import gbit_of_bytes
from rigdyno.features.forecast.curve import LEAST_POINTS
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.schema.scaling import Given, ScalingPoint
from rigdyno.schema.spec import RunSpec

NOT_SET = "not set"


class StoredRun(NamedTuple):
    name: str
    machine: str  # in one line
    measurements: Sequence[Measurement]


def points_of_runs(runs: Sequence[StoredRun]) -> Given:
    """Return the points of the workload with the most sizes; a suite measures other workloads too."""
    _require_one_machine(runs)
    names = ", ".join(run.name for run in runs)
    every = _select_workload([each for run in runs for each in run.measurements], names)
    counting, left_out = _split_by_validity(every)
    _require_one_configuration(counting or every)
    points = _points(counting)
    if len(points) < LEAST_POINTS:
        raise UsageError(_too_few_message(points, every[0].spec, names, left_out))
    suspect = [f"{name_of(each.spec)} is SUSPECT: {_reasons(each)}" for each in counting if each.status == "SUSPECT"]
    return Given(
        source=f"{counting[0].spec.workload} in {names}",
        runs=tuple(run.name for run in runs),
        measured=True,
        points=points,
        unit=counting[0].facts.unit,
        batch=_batch(counting[0]),
        bytes_per_step=_gradient_bytes(counting),
        link_gbit_s=_swept_gbit_s([each for run in runs for each in run.measurements]),
        remarks=(*(f"left out: {name}" for name in left_out), *suspect),
    )


def _require_one_machine(runs: Sequence[StoredRun]) -> None:
    first = runs[0]
    for run in runs[1:]:
        if run.machine != first.machine:
            machines = f"{first.name} on {first.machine}; {run.name} on {run.machine}"
            raise UsageError(f"these runs were made on different machines, and a curve needs one: {machines}")


def _select_workload(measurements: Sequence[Measurement], names: str) -> list[Measurement]:
    sizes: dict[str, set[int]] = defaultdict(set)
    for each in measurements:
        sizes[each.spec.workload].add(each.spec.world_size)
    most = max(map(len, sizes.values()), default=0)
    found = sorted(workload for workload, counts in sizes.items() if len(counts) == most)
    if len(found) == 1:
        return [each for each in measurements if each.spec.workload == found[0]]
    if most < LEAST_POINTS:
        raise UsageError(
            f"{names} has no workload at {LEAST_POINTS} sizes; `rigdyno run scaling` measures such a curve"
        )
    raise UsageError(f"{names} has curves of {' and of '.join(found)}; a forecast needs runs of one workload")


def _split_by_validity(measurements: Iterable[Measurement]) -> tuple[list[Measurement], list[str]]:
    """Return the measurements that count, and the names of the others with their reasons."""
    counting, left_out = [], []
    for each in measurements:
        if each.status in ("VALID", "SUSPECT") and isinstance(each.throughput(), Estimate):
            counting.append(each)
        else:
            left_out.append(f"{name_of(each.spec)} ({each.status}: {_reasons(each)})")
    return counting, left_out


def _reasons(measurement: Measurement) -> str:
    reasons = measurement.validity.reasons if measurement.validity is not None else ()
    return "; ".join(reason.sentence for reason in reasons) or measurement.why_missing()


def _require_one_configuration(measurements: Sequence[Measurement]) -> None:
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for each in measurements:
        for name, value in _traits(each).items():
            found[name][str(value)] = None
    for name, values in found.items():
        if len(values) > 1:
            raise UsageError(
                f"these runs are not one curve: {name} is {' and '.join(values)}; name runs that agree in it"
            )


def _traits(measurement: Measurement) -> dict[str, object]:
    """Return what must be equal along a curve.

    A single rank has no arrangement, and the threads of GPU runs hardly matter.
    """
    spec = measurement.spec
    kind = spec.device.partition(":")[0]
    return {
        **spec.resolved,
        "update": spec.update,
        "device": kind,
        "unit": measurement.facts.unit,
        "the workload's version": ", ".join(sorted({str(record.benchmark_version) for record in measurement.records})),
        **({"arrangement": spec.arrangement} if spec.world_size > 1 else {}),
        **({"--threads": spec.threads or NOT_SET} if kind == "cpu" else {}),
    }


def _points(measurements: Sequence[Measurement]) -> tuple[ScalingPoint, ...]:
    alike: dict[int, list[Measurement]] = defaultdict(list)
    for each in measurements:
        alike[each.spec.world_size].append(each)
    return tuple(_point(group) for _, group in sorted(alike.items()))


def _point(group: Sequence[Measurement]) -> ScalingPoint:
    estimate = _rate(group)
    return ScalingPoint(
        devices=group[0].spec.world_size, throughput=estimate.value, nodes=group[0].spec.nodes, estimate=estimate
    )


def _rate(group: Sequence[Measurement]) -> Estimate:
    """Return the rate of one size over all processes of all runs."""
    first = group[0].kinds["step"]
    if len(group) == 1:
        return first.throughput
    rates = [rate for each in group for rate in each.kinds["step"].process_rates]
    return across_processes(rates, first.throughput.unit, of="processes' throughputs")


def _batch(measurement: Measurement) -> int | None:
    """Return the batch of one device; None if the workload has no such option."""
    batch = {**measurement.spec.resolved, **measurement.facts.settled}.get("batch_size")
    return batch if isinstance(batch, int) and batch > 0 else None


def _gradient_bytes(measurements: Sequence[Measurement]) -> float | None:
    """Return the bytes of gradients per step, which are known if there was more than one rank."""
    sent = [each.facts.settled.get("gradient_bytes") for each in measurements]
    return next((float(size) for size in sent if isinstance(size, (int, float)) and size > 0), None)


def _swept_gbit_s(measurements: Sequence[Measurement]) -> float | None:
    """Return the bandwidth between nodes, from the largest all-reduce that was measured."""
    crossed = [each for each in measurements if each.spec.workload == "allreduce" and each.spec.nodes > 1]
    sweeps = [each for each in crossed if each.kinds and each.status in ("VALID", "SUSPECT")]
    if not sweeps:
        return None
    *_, largest = sweeps[-1].kinds.values()
    return gbit_of_bytes(largest.throughput.value)


def _too_few_message(points: Sequence[ScalingPoint], spec: RunSpec, names: str, left_out: Sequence[str]) -> str:
    sizes = [point.devices for point in points]
    of = f"of {spec.workload}"
    have = f"only these sizes {of}: {', '.join(map(str, sizes))}" if sizes else f"no figure {of}"
    lost = f" (left out: {', '.join(left_out)})" if left_out else ""
    commands = " and ".join(f"`{_command(spec, ranks)}`" for ranks in _further_sizes(sizes))
    return f"{names} has {have}{lost}; a forecast needs at least {LEAST_POINTS}: run {commands}, and name all runs"


def _further_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the missing sizes among 1, 2, 4, ..."""
    doubled = [2**power for power in range(len(sizes) + LEAST_POINTS)]
    return [size for size in doubled if size not in sizes][: LEAST_POINTS - len(sizes)]


def _command(spec: RunSpec, ranks: int) -> str:
    options = [f"--set {shlex.quote(f'{name}={value}')}" for name, value in spec.options.items()]
    threads = [f"--threads {spec.threads}"] if spec.threads is not None else []
    return " ".join(["rigdyno run", shlex.quote(spec.workload), *options, *threads, f"--ranks {ranks}"])
