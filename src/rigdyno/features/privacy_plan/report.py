"""The view of a plan for private training: noise, epsilon over the epochs by two accountants, and the time here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import EPSILON, JOB_TIME
from rigdyno.schema.spec import OF_UPDATE
from rigdyno.schema.view import Column, Entry, Row, Table, View

POINTS = (1, 2, 5)  # times powers of ten are the epochs of the table


@dataclass(frozen=True)
class EpsilonAt:
    epochs: int
    epsilon: float
    by_rdp: float


@dataclass(frozen=True)
class PrivacyPlan:
    samples: int
    batch: int
    delta: float
    noise: float
    target: float | None  # None: the noise was given
    points: tuple[EpsilonAt, ...]

    @classmethod
    def make(
        cls, samples: int, batch: int, epochs: int, delta: float, *, epsilon: float | None, noise: float | None
    ) -> PrivacyPlan:
        """Compute the noise for `epsilon`, or epsilon for the given noise; raise the errors of the engine."""
        from rigdyno.engines.dp import Spent, noise_multiplier_for
        from rigdyno.engines.dp import epsilon as epsilon_of
        from rigdyno.engines.dp.accounting import check_delta

        check_delta(delta, samples)
        rate = batch / samples
        if noise is None:
            assert epsilon is not None
            noise = _round_up(noise_multiplier_for(epsilon, delta, rate, steps_of(epochs, rate)))
        found = [
            (each, epsilon_of([Spent(noise, rate, steps_of(each, rate))], delta)) for each in epochs_to_show(epochs)
        ]
        points = tuple(EpsilonAt(each, spent.epsilon, spent.by_rdp) for each, spent in found)
        return cls(samples, batch, delta, noise, epsilon, points)

    @property
    def rate(self) -> float:
        return self.batch / self.samples

    @property
    def epochs(self) -> int:
        return self.points[-1].epochs


def _round_up(noise: float) -> float:
    """Round noise up to four digits: a little more noise never costs more privacy."""
    return math.ceil(noise * 1e4) / 1e4


def steps_of(epochs: int, rate: float) -> int:
    return max(1, math.ceil(round(epochs / rate, 6)))


def epochs_to_show(epochs: int) -> list[int]:
    """Return some epochs on the way, and the last one."""
    tens = range(int(math.log10(epochs)) + 1)
    return sorted({point * 10**power for power in tens for point in POINTS if point * 10**power < epochs} | {epochs})


def privacy_plan_view(plan: PrivacyPlan, timed: Measurement | str) -> View:
    seconds = seconds_of_an_epoch(plan, timed)
    return View(
        title="A plan for private training",
        tables=(_settings_table(plan), _epochs_table(plan, seconds)),
        figures=(_figure(plan),),
        closing=tuple(_closing(plan, timed, seconds)),
    )


def seconds_of_an_epoch(plan: PrivacyPlan, timed: Measurement | str) -> Estimate | Missing:
    if isinstance(timed, str):
        return Missing(reason=timed)
    rate = timed.throughput()
    if isinstance(rate, Missing):
        return rate
    bare = rate if rate.ends[0] > 0 else rate.without_interval(rate.method)
    return bare.mapped(lambda items: plan.samples / items, "s")


def _settings_table(plan: PrivacyPlan) -> Table:
    return Table(
        title="What to set",
        columns=(
            Column(key="noise", title="noise multiplier", identifies=True),
            Column(key="rate", title="sampling rate", identifies=True),
            Column(key="steps", title="steps", identifies=True),
            Column(key="delta", title="delta", identifies=True),
        ),
        rows=(
            Row(
                entries={
                    "noise": Number(value=plan.noise),
                    "rate": Number(value=plan.rate),
                    "steps": Number(value=steps_of(plan.epochs, plan.rate)),
                    "delta": Number(value=plan.delta),
                },
                origin="forecast",
            ),
        ),
        notes=(
            "noise: its standard deviation over the clipping bound; each sample is in a batch with the sampling rate",
        ),
    )


def _epochs_table(plan: PrivacyPlan, seconds: Estimate | Missing) -> Table:
    return Table(
        title="Epsilon over the epochs",
        columns=(
            Column(key="epochs", title="epochs", identifies=True),
            Column(key="pld", title="epsilon", metric=EPSILON),
            Column(key="rdp", title="by RDP", metric=EPSILON),
            *(() if isinstance(seconds, Missing) else (Column(key="time", title="time here", metric=JOB_TIME),)),
        ),
        rows=tuple(_row(at, seconds) for at in plan.points),
        notes=("epsilon: by privacy loss distributions, the tight bound; RDP is looser. To add or remove one sample",),
    )


def _row(at: EpsilonAt, seconds: Estimate | Missing) -> Row:
    time: dict[str, Entry] = {} if isinstance(seconds, Missing) else {"time": seconds.scaled(at.epochs, "s")}
    return Row(
        entries={
            "epochs": Number(value=at.epochs),
            "pld": _epsilon_entry(at.epsilon),
            "rdp": _epsilon_entry(at.by_rdp),
            **time,
        },
        origin="forecast",
    )


def _epsilon_entry(epsilon: float) -> Entry:
    return Number(value=epsilon) if math.isfinite(epsilon) else Missing(reason="no bound: there is too little noise")


def _figure(plan: PrivacyPlan) -> Figure:
    tight = tuple(datum(at.epochs, at.epsilon) for at in plan.points)
    loose = tuple(datum(at.epochs, at.by_rdp) for at in plan.points)
    return Figure(
        key="epsilon-over-epochs",
        kind="curve",
        title="Epsilon over the epochs",
        x=Axis(quantity="epochs"),
        panels=(
            Panel(
                y=Axis(quantity="epsilon"),
                series=(
                    Series(name="PLD", role="predicted", data=tight),
                    Series(name="RDP", role="predicted", data=loose),
                ),
            ),
        ),
        caption=f"At delta {plan.delta:g}, with noise {plan.noise:g} and a sampling rate of {plan.rate:.4g}",
    )


def _closing(plan: PrivacyPlan, timed: Measurement | str, seconds: Estimate | Missing) -> list[str]:
    last = plan.points[-1]
    kept = "" if plan.target is None else f", within the {plan.target:g} asked for"
    said = [
        f"With noise {plan.noise:g}, {plan.epochs} epochs of {plan.samples:,} samples in batches of {plan.batch} "
        f"cost epsilon {last.epsilon:.3f} at delta {plan.delta:g}{kept}."
    ]
    if isinstance(timed, str):
        said.append(f"No time: {timed}.")
    elif isinstance(seconds, Estimate):
        batch = timed.spec.options.get("batch_size", timed.spec.defaults.get("batch_size"))
        mode = timed.spec.resolved.get(f"{OF_UPDATE}mode")
        how = f"{timed.spec.update}{f' ({mode})' if mode and timed.spec.update != 'dp_fast' else ''}"
        said.append(
            f"The time is that of {timed.spec.workload} under {how} at a batch of {batch} in {timed.runs[0]}; another "
            "network, or another batch, takes another."
        )
    return said
