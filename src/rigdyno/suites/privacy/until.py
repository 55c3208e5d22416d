"""Compare systems at equal utility: each update trains to the same accuracy, with three seeds.

The frontier of accuracy and epsilon is measured as well. Validation images, which are separate from the training images
and count as public, decide when to stop. The test images are used once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from rigdyno.base.units import show_percent, show_seconds
from rigdyno.contracts import Machine, Wanted
from rigdyno.plan.request import Request
from rigdyno.report.sections import joules_of
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import ACCURACY, COUNT, EPSILON, JOB_JOULES, JOB_TIME
from rigdyno.schema.record import Completed, Quality
from rigdyno.schema.spec import OF_UPDATE, Budget, RunSpec, Value
from rigdyno.schema.view import Column, Entry, RatioEntry, Row, Table, Text
from rigdyno.suites.privacy.systems import EFFICIENTNET, SYSTEMS, PrivacySystem
from rigdyno.workloads.datasets import cifar, mnist

MNIST = "mnist_cnn_until"

ACCURACY_OPTION = "target_accuracy"  # option of the workloads; "until" in runs of older versions

SEEDS = 3

VALIDATION = 5000

FIXED_SECONDS, FIXED_EPSILON = 10.0, 3.0

NOISES, EPOCHS = (0.7, 1.0, 2.0, 4.0), (2, 5, 10)  # points of the frontier

NAMES = ("PyTorch", "Rigdyno's engine", "expanded weights", "Opacus, functorch")


@dataclass(frozen=True)
class Setting:
    """A batch and a learning rate that suit plain or private training: each needs different ones."""

    options: dict[str, Value]
    steps: int  # at most
    step_seconds: float  # an estimate for planning


PLAIN = Setting({"batch_size": 64, "learning_rate": 0.05, "momentum": 0.9, "dropout": 0.0}, 3000, 0.01)

PRIVATE = Setting({"batch_size": 1024, "learning_rate": 0.5, "momentum": 0.9, "dropout": 0.0}, 1500, 0.06)

PLAIN_CIFAR = Setting({"batch_size": 128, "channels_last": True}, 40_000, 0.3)

PRIVATE_CIFAR = Setting({"batch_size": 1024, "norm": "group", "dropout": 0.0, "stochastic_depth": 0.0}, 10_000, 2.0)


def cells(accuracy: float, request: Request, machine: Machine) -> list[Wanted]:
    to_accuracy = [
        _accuracy_spec(accuracy, request, machine, system, seed) for seed in range(SEEDS) for system in _systems()
    ]
    return [Wanted(spec) for spec in (*to_accuracy, *_frontier_specs(request, machine))]


def _systems() -> list[PrivacySystem]:
    return [system for name in NAMES for system in SYSTEMS if system.name == name]


def _is_cifar(request: Request) -> bool:
    data = request.options.get("data")
    return bool(data) and cifar.refusal(str(data)) is None


def _data(request: Request) -> dict[str, Value]:
    """Return the given data; else Fashion-MNIST if it is installed."""
    if request.options.get("data"):
        return {"data": str(request.options["data"])}
    return {"data": mnist.FASHION} if mnist.refusal(mnist.FASHION) is None else {}


def _setting(request: Request, private: bool) -> tuple[str, Setting]:
    if _is_cifar(request):
        return EFFICIENTNET, PRIVATE_CIFAR if private else PLAIN_CIFAR
    return MNIST, PRIVATE if private else PLAIN


def _spec(
    request: Request, machine: Machine, system: PrivacySystem, extra: dict[str, Value], budget: Budget, seed: int = 0
) -> RunSpec:
    workload, setting = _setting(request, private=system.update != "plain")
    mode: dict[str, Value] = {} if system.mode is None else {f"{OF_UPDATE}mode": system.mode}
    tested: dict[str, Value] = {"test_images": cifar.TEST_IMAGES} if workload == EFFICIENTNET else {}
    return RunSpec(
        workload=workload,
        options={**setting.options, **tested, **mode, **_data(request), "validation": VALIDATION, **extra},
        update=system.update,
        device=machine.device,
        threads=request.threads,
        seed=seed,
        budget=budget,
    )


def _accuracy_spec(accuracy: float, request: Request, machine: Machine, system: PrivacySystem, seed: int) -> RunSpec:
    _, setting = _setting(request, private=system.update != "plain")
    steps = request.steps or setting.steps
    budget = Budget(seconds=0.2 * steps * setting.step_seconds, job_steps=steps)
    return _spec(request, machine, system, {ACCURACY_OPTION: accuracy}, budget, seed)


def _frontier_specs(request: Request, machine: Machine) -> list[RunSpec]:
    ours = next(system for system in SYSTEMS if system.update == "dp_fast")
    images = cifar.TRAIN_IMAGES if _is_cifar(request) else mnist.TRAIN_IMAGES
    by_noise = [
        _spec(request, machine, ours, {f"{OF_UPDATE}noise_multiplier": noise}, Budget(seconds=FIXED_SECONDS))
        for noise in NOISES
    ]
    by_epochs = [
        _spec(
            request,
            machine,
            ours,
            {f"{OF_UPDATE}epsilon": FIXED_EPSILON, f"{OF_UPDATE}epochs": epochs},
            Budget(seconds=4.0 * epochs, job_items=epochs * (images - VALIDATION)),
        )
        for epochs in EPOCHS
    ]
    return [*by_noise, *by_epochs]


def target_accuracy(each: Measurement) -> float:
    """Return the accuracy to which a cell trains; 0 if it doesn't train to one."""
    resolved = each.spec.resolved
    return float(resolved.get(ACCURACY_OPTION) or resolved.get("until") or 0.0)


def is_asked(measurements: Sequence[Measurement]) -> bool:
    return any(target_accuracy(each) for each in measurements)


def _qualities(each: Measurement) -> list[Quality]:
    return [record.outcome.quality for record in each.records if isinstance(record.outcome, Completed)]


def tables(measurements: Sequence[Measurement]) -> list[Table]:
    found = [each for each in measurements if target_accuracy(each)]
    wanted = target_accuracy(found[0])
    return [
        Table(
            title=f"To an accuracy of {wanted} on validation images; {_network_name(found[0])}",
            columns=(
                Column(key="system", title="system", numeric=False),
                Column(key="reached", title="reached", metric=COUNT),
                Column(key="test", title="test", metric=ACCURACY),
                Column(key="epsilon", title="epsilon", metric=EPSILON),
                Column(key="steps", title="steps", metric=COUNT),
                Column(key="time", title="time", metric=JOB_TIME),
                *((Column(key="joules", title="energy", metric=JOB_JOULES),) if _has_joules(found) else ()),
            ),
            rows=tuple(_row(each) for each in found),
            notes=(
                f"{SEEDS} seeds each; {VALIDATION:,} validation images, kept apart from the training ones, decide when "
                "to stop, and count as public; the test images are looked at once",
                "plain and private training each have a batch and a learning rate that suit them; no dropout",
                *dict.fromkeys(note for each in found for note in each.facts.notes),
            ),
        ),
        *_frontier_tables(measurements),
    ]


def _has_joules(found: Sequence[Measurement]) -> bool:
    return any(joules_of(each) is not None for each in found)


def _network_name(each: Measurement) -> str:
    return "EfficientNet-B0" if each.spec.workload == EFFICIENTNET else "MNIST's CNN"


def _system_name(each: Measurement) -> str:
    mode = each.spec.resolved.get(f"{OF_UPDATE}mode")
    found = [system for system in _systems() if system.update == each.spec.update and system.mode in (None, mode)]
    return found[0].name if found else each.spec.update


def _row(each: Measurement) -> Row:
    qualities = [quality for quality in _qualities(each) if quality.reached is not None]
    reached = [quality for quality in qualities if quality.reached]
    entries: dict[str, Entry] = {"system": Text(text=_system_name(each))}
    if not qualities:
        entries["reached"] = Missing(reason=each.why_missing())
        return Row(entries=entries, status=each.status)
    entries |= {
        "reached": Number(value=len(reached)),
        "test": _accuracy(qualities),
        "steps": _mean(reached, lambda quality: quality.trained_steps, ""),
        "time": _mean(reached, lambda quality: quality.trained_seconds, "s"),
    }
    if each.spec.update != "plain":
        entries["epsilon"] = _mean(reached, lambda quality: quality.epsilon, "")
    if (joules := joules_of(each)) is not None:
        entries["joules"] = Number(value=joules, unit="J")
    return Row(entries=entries, facts=each.records[-1].columns(), runs=each.runs)


def _accuracy(qualities: Sequence[Quality]) -> Entry:
    known = [quality.accuracy for quality in qualities if quality.accuracy is not None]
    if not known:
        return Missing(reason="no test images")
    return RatioEntry(value=fmean(known), low=min(known), high=max(known), of="test images")


def _mean(qualities: Sequence[Quality], of: Callable[[Quality], float | None], unit: str) -> Entry:
    known = [value for quality in qualities if (value := of(quality)) is not None and math.isfinite(value)]
    if not known:
        return Missing(reason="the accuracy was not reached")
    if len(known) == 1:
        return Estimate(value=known[0], n=1, unit=unit, method="one seed, no interval")
    from rigdyno.analyse.statistics import across_processes  # imports numpy, which a listing doesn't need

    return across_processes(known, unit, of="seeds")


def _noise_sweep(measurements: Sequence[Measurement]) -> list[tuple[float, Measurement]]:
    """Return the measurements at a fixed time, by noise in descending order."""
    found = [each for each in measurements if _is_frontier(each) and not each.spec.resolved.get(f"{OF_UPDATE}epsilon")]
    return sorted(((float(each.spec.resolved[f"{OF_UPDATE}noise_multiplier"]), each) for each in found), reverse=True)


def _epochs_sweep(measurements: Sequence[Measurement]) -> list[tuple[float, Measurement]]:
    """Return the measurements at a fixed epsilon, by epochs."""
    found = [each for each in measurements if _is_frontier(each) and each.spec.resolved.get(f"{OF_UPDATE}epsilon")]
    return sorted((float(each.spec.resolved[f"{OF_UPDATE}epochs"]), each) for each in found)


def _is_frontier(each: Measurement) -> bool:
    return each.spec.update == "dp_fast" and bool(each.spec.resolved.get("validation")) and not target_accuracy(each)


def _frontier_tables(measurements: Sequence[Measurement]) -> list[Table]:
    rows = [(_fixed_quantity(each), each) for _, each in (*_noise_sweep(measurements), *_epochs_sweep(measurements))]
    if not rows:
        return []
    return [
        Table(
            title="The frontier: accuracy, epsilon and time of private training by Rigdyno's engine",
            columns=(
                Column(key="fixed", title="fixed", numeric=False),
                Column(key="epsilon", title="epsilon", metric=EPSILON),
                Column(key="time", title="time", metric=JOB_TIME),
                Column(key="test", title="test", metric=ACCURACY),
            ),
            rows=tuple(_frontier_row(fixed, each) for fixed, each in rows),
            notes=("one seed each: neighbours may change places",),
        )
    ]


def _fixed_quantity(each: Measurement) -> str:
    return "epsilon" if each.spec.resolved.get(f"{OF_UPDATE}epsilon") else "time"


def _frontier_row(fixed: str, each: Measurement) -> Row:
    entries: dict[str, Entry] = {"fixed": Text(text=fixed)}
    qualities = _qualities(each)
    if not qualities:
        return Row(entries={**entries, "test": Missing(reason=each.why_missing())}, status=each.status)
    entries["test"] = _accuracy(qualities)
    if qualities[0].epsilon is not None:
        entries["epsilon"] = Number(value=qualities[0].epsilon)
    entries["time"] = Number(value=_seconds(each), unit="s")
    return Row(entries=entries, facts=each.records[-1].columns())


def _seconds(each: Measurement) -> float:
    return each.job.loop if each.job is not None else each.spec.budget.seconds


def make_figures(measurements: Sequence[Measurement]) -> tuple[Figure, ...]:
    by_epsilon = [
        (quality.epsilon, quality.accuracy)
        for _, each in _noise_sweep(measurements)
        for quality in _qualities(each)[:1]
        if quality.epsilon is not None and quality.accuracy is not None
    ]
    by_time = [
        (_seconds(each), quality.accuracy)
        for _, each in _epochs_sweep(measurements)
        for quality in _qualities(each)[:1]
        if quality.accuracy is not None
    ]
    drawn = (
        _frontier_figure(
            "epsilon", "", f"Accuracy against epsilon, {FIXED_SECONDS:g} s of training", sorted(by_epsilon)
        ),
        _frontier_figure("time", "s", f"Accuracy against time, at epsilon {FIXED_EPSILON:g}", sorted(by_time)),
    )
    return tuple(figure for figure in drawn if figure is not None)


def _frontier_figure(quantity: str, unit: str, title: str, points: Sequence[tuple[float, float]]) -> Figure | None:
    if len(points) < 2:
        return None
    data = tuple(datum(x, accuracy) for x, accuracy in points)
    return Figure(
        key=f"frontier-{quantity}",
        kind="curve",
        title=title,
        x=Axis(quantity=quantity, unit=unit),
        panels=(
            Panel(
                y=Axis(quantity="accuracy on test images"),
                series=(Series(name="Rigdyno's engine", role="measured", data=data),),
            ),
        ),
        caption=f"{title}; one seed each",
    )


def closing(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    found = {_system_name(each): _row(each).entries for each in measurements if target_accuracy(each)}
    plain = found.get("PyTorch", {}).get("time")
    said = []
    for name, entries in found.items():
        time, epsilon = entries.get("time"), entries.get("epsilon")
        if name == "PyTorch" or not isinstance(time, Estimate) or not isinstance(plain, Estimate):
            continue
        spent = f" and epsilon {epsilon.value:.2f}" if isinstance(epsilon, Estimate) else ""
        said.append(
            f"{name} takes {time.value / plain.value:.1f} times as long as plain training to the same accuracy "
            f"({show_seconds(time.value)} against {show_seconds(plain.value)}){spent}."
        )
    missed = [name for name, entries in found.items() if isinstance(entries.get("time"), Missing)]
    wanted = next((target_accuracy(each) for each in measurements if target_accuracy(each)), None)
    if missed and isinstance(wanted, float):
        said.append(f"{show_percent(wanted)} were not reached by {', '.join(missed)}: no price can be named.")
    return tuple(said)
