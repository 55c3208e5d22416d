"""The sentences of the cluster suite: what separates a job from its ideal, what it learnt, and its energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rigdyno.base.units import show_percent, show_scaled, show_seconds
from rigdyno.report.sections import joules_of
from rigdyno.schema.measured import JobTime, Measurement
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.view import Headline
from rigdyno.suites.cluster.curves import PARTS, ClusterResults, JobCurve, is_published, quality_of, way_of
from rigdyno.suites.cluster.published import TWO_MODELS

TEST_IMAGES = 10_000  # in MNIST, Fashion-MNIST and the synthetic images

NORMAL_95 = 1.96

NAMES = {
    "start": "start-up, which more cards don't shorten",
    "data": "waiting for batches",
    "training": "computing, which takes longer beside the others",
    "communication": "waiting for the gradients of others",
    "evaluation": "the evaluation, which every card does as a whole",
}


def closing(results: ClusterResults) -> tuple[str, ...]:
    said = [
        words
        for curve in results.curves
        for words in (_gap_sentence(curve), _learning_sentence(curve), _energy_sentence(curve))
    ]
    said += [_ways_sentence(curves) for curves in results.by_job()]
    models = [f"{TWO_MODELS[0].upper()}{TWO_MODELS[1:]}."] if any(map(is_published, results.jobs)) else []
    return tuple(words for words in (*said, *models) if words is not None)


def headline(results: ClusterResults) -> Headline | None:
    """Return the time of the fastest job."""
    timed = [
        (curve, each, each.job.seconds) for curve in results.curves for each in curve.points if each.job is not None
    ]
    if not timed:
        return None
    curve, best, seconds = min(timed, key=lambda each: each[2].value)
    what = f"a job in {curve.name}, {best.spec.world_size} {_cards_word(best)}"
    return Headline(what=what, figure=seconds, status=best.status, place="the published jobs are other ones")


def _gap_sentence(curve: JobCurve) -> str | None:
    """Explain the distance from the ideal on most devices, by comparing each part of the time with one device."""
    largest = next((point for point in reversed(curve.points) if point.job is not None), None)
    if largest is None or largest.job is None or curve.alone is None or largest.spec.world_size == 1:
        return None
    cards, job, alone = largest.spec.world_size, largest.job, curve.alone
    ideal = alone.seconds.value / cards
    above = job.seconds.value - ideal
    head = f"{curve.name}, {cards} {_cards_word(largest)}: "
    if above <= 0:
        return f"{head}nothing keeps it from the ideal of {show_seconds(ideal)}."
    found = {part: _seconds(job, part) - _seconds(alone, part) / cards for part in PARTS}
    most = max(found, key=lambda part: found[part])
    share = show_percent(min(1.0, found[most] / above))
    times = alone.without_start / job.without_start
    return (
        f"{head}{show_seconds(above)} above the ideal of {show_seconds(ideal)}, {share} of it {NAMES[most]}. Without "
        f"start-up it is {times:.2f} times as fast as one."
    )


def _ways_sentence(curves: Sequence[JobCurve]) -> str | None:
    """Compare the arrangements of one job on most devices."""
    found = [(curve.points[-1], curve.points[-1].job) for curve in curves]
    timed = [(point, job) for point, job in found if job is not None and point.spec.world_size > 1]
    if len({point.spec.arrangement for point, _ in timed}) < 2:
        return None
    spec = timed[0][0].spec
    times = ", ".join(f"{way_of(point)} {_time_and_wait(job)}" for point, job in timed)
    head = f"{curves[0].name}, {spec.world_size} {_cards_word(timed[0][0])}"
    return f"{head}: {times}.{_duel_hint([point.spec for point, _ in timed])}"


def _duel_hint(specs: Sequence[RunSpec]) -> str:
    """Suggest a duel of the first two arrangements if they are on one machine."""
    a, b = specs[:2]
    if a.nodes > 1:
        return ""
    arms = f"--a arrangement={a.arrangement} --b arrangement={b.arrangement}"
    return f" `rigdyno duel {a.workload} --ranks {a.world_size} {arms}` tells which step is faster."


def _time_and_wait(job: JobTime) -> str:
    waited = "" if job.communication is None else f", {show_seconds(job.communication)} of it waiting for gradients"
    return f"takes {show_seconds(job.seconds.value)}{waited}"


def _cards_word(measurement: Measurement) -> str:
    return "CPU ranks" if measurement.spec.device == "cpu" else "cards"


def _seconds(job: JobTime, part: str) -> float:
    return getattr(job, part) or 0.0


def _learning_sentence(curve: JobCurve) -> str | None:
    """Tell whether the accuracy changed with the number of devices.

    The largest difference between two of them is compared with what chance allows for the number of test images.
    """
    known = [(point, quality.accuracy) for point in curve.whole if (quality := quality_of(point)) is not None]
    found = [(point.spec.world_size, accuracy) for point, accuracy in known if accuracy is not None]
    if len(found) < 2:
        return None
    (few, low), *_, (many, high) = sorted(found, key=lambda each: each[1])
    apart = f"{show_percent(low)} with {few} and {show_percent(high)} with {many}"
    same = high - low <= chance_difference(low, high, len(found))
    verdict, why = ("did not change", "closer than") if same else ("changed", "further apart than")
    return (
        f"{curve.name}: the accuracy {verdict} with their number: {apart} are {why} {TEST_IMAGES:,} test images can "
        f"tell{_losses_words(curve)}."
    )


def chance_difference(one: float, other: float, among: int) -> float:
    """Return the difference that equal accuracies exceed by chance in 5 % of cases, for this number of test images.

    The most different two of several may differ more, by Bonferroni's correction for the number of pairs.
    """
    pairs = among * (among - 1) // 2
    mean = (one + other) / 2
    factor = math.sqrt(NORMAL_95**2 + 2 * math.log(pairs)) if pairs > 1 else NORMAL_95
    return factor * math.sqrt(2 * max(mean * (1 - mean), 1 / TEST_IMAGES) / TEST_IMAGES)


def _losses_words(curve: JobCurve) -> str:
    found = [quality.last_loss for point in curve.whole if (quality := quality_of(point)) is not None]
    known = [loss for loss in found if loss is not None]
    if len(known) < 2:
        return ""
    return f"; the last losses are {' and '.join(f'{loss:.2f}' for loss in known)}"


def _energy_sentence(curve: JobCurve) -> str | None:
    """Name the number of devices with the least energy, time and product; None without a meter."""
    found = [
        (point.spec.world_size, joules, point.job.seconds.value)
        for point in curve.whole
        if point.job is not None and (joules := joules_of(point)) is not None
    ]
    if len(found) < 2:
        return None
    criteria: dict[str, Callable[[tuple[int, float, float]], float]] = {
        "energy": lambda each: each[1],
        "time": lambda each: each[2],
        "their product": lambda each: each[1] * each[2],
    }
    best = ", ".join(f"{min(found, key=rule)[0]} take the least {what}" for what, rule in criteria.items())
    one, most = found[0], found[-1]
    ratio = f"{most[0]} take {show_percent(most[1] / one[1])} of the energy of {one[0]}"
    return f"{curve.name}: {best}; {ratio} ({show_scaled(most[1], 'J')} against {show_scaled(one[1], 'J')})."
