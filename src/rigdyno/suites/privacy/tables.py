"""The tables of the privacy suite: the cost of each system here, and the published costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rigdyno.analyse.extrapolation import seconds_for
from rigdyno.analyse.scaling import ratio
from rigdyno.base.units import show_bytes, show_seconds
from rigdyno.reference.published import PublishedPrivacy, load_private_training
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.measured import EnergyFigures, Measurement
from rigdyno.schema.metric import COUNT, EPOCH_ENERGY, EPOCH_TIME, EPSILON, PEAK_MEMORY, TIME_RATIO
from rigdyno.schema.record import Completed
from rigdyno.schema.spec import OF_UPDATE
from rigdyno.schema.view import Column, Entry, Published, Row, Table, Text
from rigdyno.suites.privacy.systems import (
    BATCH,
    EFFICIENTNET,
    OWN,
    SYSTEMS,
    PrivacySystem,
    is_plain,
    missing_systems,
    system_of,
)

IMAGES = 50_000  # training images of CIFAR-100

SYSTEM = Column(key="system", title="system", numeric=False)

PROTECTS = Column(key="protected", title="protected", numeric=False)

TIME = Column(key="seconds", title="s/epoch", metric=EPOCH_TIME, bare=True)

SIZE = Column(key="batch", title="batch", metric=COUNT)

COLUMNS = (
    SYSTEM,
    PROTECTS,
    TIME,
    Column(key="ratio", title="x plain", metric=TIME_RATIO, bare=True),
    SIZE,
    Column(key="memory", title="memory", metric=PEAK_MEMORY),
    Column(key="epsilon", title="epsilon", metric=EPSILON),
)

WORTH_SAYING = 0.02  # share of an epoch from which the warm-up is mentioned

JOULES = Column(key="joules", title="J/epoch", metric=EPOCH_ENERGY, bare=True)

OF_SYSTEMS = (BATCH, "norm", "channels_last", "compiled")  # options that differ between systems by definition

NAMES = {
    "pytorch": "PyTorch",
    "pytorch+opacus": "PyTorch + Opacus",
    "pytorch+flower-2party": "PyTorch + 2-party Flower",
    "pytorch+flower-2party+opacus": "PyTorch + 2-party Flower + Opacus",
    "bastionlab": "BastionLab",
    "bastionlab+dp": "BastionLab, DP",
    "bastionlab+tee": "BastionLab, enclave",
    "bastionlab+dp+tee": "BastionLab, DP, enclave",
}

KNOWN = (
    "BastionLab's rows with DP claim an epsilon of 6, and about 368 holds: its engine averaged before it clipped",
    "the clock covers one epoch of 50,000 images",
)


@dataclass(frozen=True)
class PrivacyResults:
    """The measurements by system, in the order of the table."""

    rows: tuple[tuple[PrivacySystem, Measurement], ...]

    @property
    def own(self) -> bool:
        return any(each.spec.workload == OWN for _, each in self.rows)

    @property
    def first(self) -> Measurement:
        return self.rows[0][1]

    def fastest_plain(self, beside: Measurement) -> tuple[PrivacySystem, Estimate] | None:
        """Return the fastest plain training with the same options; a sweep has several."""
        alike = [(system, each) for system, each in self.rows if setting_of(each) == setting_of(beside)]
        timed = [(system, epoch_seconds(each)) for system, each in alike if is_plain(system)]
        known = [(system, seconds) for system, seconds in timed if isinstance(seconds, Estimate)]
        return min(known, key=lambda pair: pair[1].value, default=None)

    def name_of(self, system: PrivacySystem, each: Measurement) -> str:
        """Return the name of the system, with the options that differ if a sweep has several."""
        others = [setting_of(other) for one, other in self.rows if one is system]
        differing = {item for item in setting_of(each) if any(item not in other for other in others)}
        return ", ".join([system.name, *(f"{key} {value}" for key, value in sorted(differing))])

    def with_times(self) -> list[tuple[PrivacySystem, Measurement, Estimate]]:
        found = [(system, each, epoch_seconds(each)) for system, each in self.rows]
        return [(system, each, seconds) for system, each, seconds in found if isinstance(seconds, Estimate)]


def collect_results(measurements: Sequence[Measurement]) -> PrivacyResults:
    found = [(system_of(each), each) for each in measurements if each.spec.workload in (EFFICIENTNET, OWN)]
    known = [(system, each) for system, each in found if system is not None]
    return PrivacyResults(tuple(sorted(known, key=lambda pair: SYSTEMS.index(pair[0]))))


def setting_of(each: Measurement) -> frozenset[tuple[str, str]]:
    options = each.spec.resolved.items()
    own = [(name, str(value)) for name, value in options if name not in OF_SYSTEMS and not name.startswith(OF_UPDATE)]
    return frozenset(own)


def samples_of(each: Measurement) -> int:
    found = each.facts.settled.get("samples")
    return int(found) if isinstance(found, int | float) and found else IMAGES


def epoch_seconds(each: Measurement) -> Estimate | Missing:
    return seconds_for(samples_of(each), each, of_many=True)


def results_table(found: PrivacyResults) -> Table | None:
    if not found.rows:
        return None
    metered = any(isinstance(each.energy, EnergyFigures) for _, each in found.rows)
    taken = [system for system, _ in found.rows]
    return Table(
        title=settings(found),
        columns=(*COLUMNS, JOULES) if metered else COLUMNS,
        rows=(
            *(_row(found, system, each) for system, each in found.rows),
            *(_missing_row(system, reason) for system, reason in missing_systems(taken, own=found.own)),
        ),
        notes=tuple(_notes(found)),
    )


def settings(found: PrivacyResults) -> str:
    spec = found.first.spec
    budget = next(iter(spec.largest.values()), None)
    where = f"the largest batch within {show_bytes(budget)}" if budget else "a given batch"
    what = (
        "Your training" if found.own else f"EfficientNet-B0, images of {_image_size(spec.resolved.get('image_size'))}"
    )
    smaller = "" if budget is None or budget >= 8e9 or found.own else " (published: 8 GB and more; --full)"
    return f"{what}, {where}{smaller}; {samples_of(found.first):,} samples an epoch, {_epoch_words(found)}"


def _image_size(size: object) -> str:
    return f"{size} x {size}"


def _epoch_words(found: PrivacyResults) -> str:
    return "whole epochs" if any(each.job is not None for _, each in found.rows) else "extrapolated from steps"


def _row(found: PrivacyResults, system: PrivacySystem, each: Measurement) -> Row:
    entries: dict[str, Entry] = {
        "system": Text(text=found.name_of(system, each)),
        "protected": Text(text=system.protection.label),
        "seconds": epoch_seconds(each),
        "ratio": ratio_to_plain(found, each),
        **({} if each.spec.update == "plain" else {"epsilon": _epsilon(each)}),
    }
    batch = each.spec.options.get(BATCH)
    if isinstance(batch, int):
        entries["batch"] = Number(value=batch)
    memory = max((record.memory_bytes or 0 for record in each.records), default=0)
    if memory:
        entries["memory"] = Number(value=memory, unit="B")
    if isinstance(each.energy, EnergyFigures) and isinstance(each.energy.per_item, Estimate):
        entries["joules"] = each.energy.per_item.scaled(samples_of(each), "J")
    return Row(entries=entries, status=each.status, runs=each.runs, facts=each.records[-1].columns())


def _missing_row(system: PrivacySystem, reason: str) -> Row:
    missing = Missing(reason=reason)
    return Row(
        entries={
            "system": Text(text=system.name),
            "protected": Text(text=system.protection.label),
            "seconds": missing,
        },
        status="SKIPPED",
    )


def ratio_to_plain(found: PrivacyResults, each: Measurement) -> Entry:
    seconds, best = epoch_seconds(each), found.fastest_plain(each)
    if isinstance(seconds, Missing):
        return seconds
    if best is None:
        return Missing(reason="no plain training was measured")
    if seconds == best[1]:
        return Number(value=1.0, unit="x")
    return ratio(seconds, best[1], n=len(each.records))


def epsilon_of(each: Measurement) -> float | None:
    quality = each.outcome.quality if isinstance(each.outcome, Completed) else None
    if quality is None:
        return None
    return quality.epsilon if each.job is not None else quality.epoch_epsilon


def _epsilon(each: Measurement) -> Entry:
    found = epsilon_of(each)
    if found is None or not math.isfinite(found):
        return Missing(reason=each.why_missing() if not each.kinds else "no data set of known size, or no accountant")
    return Number(value=found)


def _notes(found: PrivacyResults) -> list[str]:
    said = [
        "protected: none, incomplete, ok, by three questions: can whoever trains read the data, is the result private, "
        "must the host be trusted"
    ]
    private = next((each for system, each in found.rows if system.update != "plain"), None)
    if private is not None:
        names = ("delta", "noise_multiplier", "max_grad_norm")
        delta, noise, bound = (private.spec.resolved.get(OF_UPDATE + name) for name in names)
        said.append(
            f"epsilon: of one epoch at delta {delta}, with noise {noise} and clipping {bound}, Poisson batches, by the "
            "PLD accountant for all engines; a larger batch takes more of it"
        )
    if any(system.update == "dp_expanded" for system, _ in found.rows):
        said.append("expanded weights: the idea of BastionLab's DP engine, with correct clipping and accounting")
    begin = [f"{found.name_of(system, each)} {show_seconds(more)}" for system, each, more in _warm_ups(found)]
    if begin:
        said.append(f"once in a training, before its first epoch is steady: {', '.join(begin)}")
    few = [system.name for system, each in found.rows if _has_few_steps(each)]
    if few:
        said.append(f"sampled with few steps, because each takes long: {', '.join(few)}")
    return [*said, *dict.fromkeys(note for _, each in found.rows for note in each.facts.notes)]


def _warm_ups(found: PrivacyResults) -> list[tuple[PrivacySystem, Measurement, float]]:
    """Return the extra time of the first steps (compilation, a check of the first batch) if it is significant."""
    known = [
        (system, each, each.kinds["step"].warm_up_seconds, seconds.value)
        for system, each, seconds in found.with_times()
    ]
    return [(system, each, more) for system, each, more, epoch in known if more > WORTH_SAYING * epoch]


def _has_few_steps(each: Measurement) -> bool:
    figures = each.kinds.get("step")
    return figures is not None and figures.throughput.n < 10 and each.job is None


def published_tables() -> list[Table]:
    """Return one table per machine of the document."""
    found = load_private_training()
    machines = list(dict.fromkeys(row.device.removesuffix(" (SEV)") for row in found))
    return [_published_table(device, [row for row in found if row.device.startswith(device)]) for device in machines]


def _published_table(device: str, rows: Sequence[PublishedPrivacy]) -> Table:
    return Table(
        title=f"Published: {device}, the largest batch within {show_bytes(rows[0].memory_bytes)}",
        columns=(SYSTEM, PROTECTS, TIME, Column(key="ratio", title="x plain", metric=TIME_RATIO, bare=True), SIZE),
        rows=tuple(_published_row(row, rows[0]) for row in rows),
        notes=KNOWN,
    )


def _published_row(row: PublishedPrivacy, plain: PublishedPrivacy) -> Row:
    entries: dict[str, Entry] = {"system": Text(text=NAMES[row.system]), "protected": Text(text=row.privacy)}
    if row.seconds is None:
        entries["seconds"] = Missing(reason=row.note or "not published")
    else:
        entries["seconds"] = Published(value=row.seconds, unit="s", source=row.source)
        if plain.seconds:
            entries["ratio"] = Number(value=row.seconds / plain.seconds, unit="x")
    if row.batch_size is not None:
        entries["batch"] = Number(value=row.batch_size)
    return Row(entries=entries, origin="published", notes=(row.note,) if row.note and row.seconds is not None else ())
