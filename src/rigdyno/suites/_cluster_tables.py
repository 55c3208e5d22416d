"""The tables of the cluster suite, and the published ones beside them."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.schema.energy import EnergyFigures
from rigdyno.schema.estimate import Missing, Number
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import (
    ACCURACY,
    BURSTINESS,
    COUNT,
    EFFICIENCY,
    ENERGY_PER_ITEM,
    ENERGY_RATIO,
    JOB_JOULES,
    JOB_TIME,
    LOSS,
    PHASE_TIME,
    POWER,
    SPEEDUP,
    USAGE,
)
from rigdyno.schema.record import Skipped
from rigdyno.schema.view import Column, Entry, Row, Share, Table, Text
from rigdyno.suites._cluster_curves import (
    NAMES,
    NATIVE,
    PARTS,
    WAYS,
    Curve,
    Shown,
    joules_of,
    name_of,
    quality_of,
    why_no_joules,
)
from rigdyno.suites._cluster_published import LIBRARY, cards, published_summary, published_times
from rigdyno.units import show_scaled


def all_of(shown: Shown) -> tuple[Table, ...]:
    own = (run_times(shown), parts(shown), learnt(shown), summary(shown), energy(shown), beside(shown))
    return (*own, published_times(), published_summary()) if shown.jobs else ()


def _identity(name: str, measurement: Measurement) -> dict[str, Entry]:
    return {"library": Text(text=name), "cards": Number(value=measurement.spec.world_size)}


def _row(name: str, measurement: Measurement, entries: dict[str, Entry]) -> Row:
    return Row(
        entries={**_identity(name, measurement), **entries},
        status=measurement.status,
        facts=measurement.records[-1].columns(),
    )


def _points(shown: Shown) -> list[tuple[Curve, Measurement]]:
    return [(curve, point) for curve in shown.curves for point in curve.points]


def _begun(shown: Shown) -> list[tuple[Curve, Measurement]]:
    """What was skipped has its row and its reason in the first table, and nothing to say in others."""
    return [(curve, point) for curve, point in _points(shown) if not isinstance(point.outcome, Skipped)]


def run_times(shown: Shown) -> Table:
    return Table(
        title=f"Run time of the job: {settings(shown.jobs)}",
        columns=(
            LIBRARY,
            cards(shown.cards_word),
            Column(key="seconds", title="time", metric=JOB_TIME),
            Column(key="ideal", title="ideal", metric=JOB_TIME),
            Column(key="speedup", title="speedup", metric=SPEEDUP, bare=True),
            Column(key="efficiency", title="of ideal", metric=EFFICIENCY),
        ),
        rows=tuple(_row(curve.name, point, _times(curve, point)) for curve, point in _points(shown)),
        notes=(
            "time: from the start of the processes to their end; ideal: that of one, shared out",
            *_ranks_note(shown),
            *_ways_note(shown),
        ),
    )


def settings(jobs: Sequence[Measurement]) -> str:
    items = sorted({round(each.job.items) for each in jobs if each.job is not None})
    images = " or ".join(f"{count:,}" for count in items[-2:]) if items else "some"
    sizes = {int(each.facts.settled["parameters"]) for each in jobs if "parameters" in each.facts.settled}
    known = f", a network of {' or '.join(f'{size:,}' for size in sorted(sizes))} parameters" if sizes else ""
    return f"MNIST, {images} images{known}"


def _ranks_note(shown: Shown) -> tuple[str, ...]:
    return ("CPU ranks are processes on cores of their own, not cards",) if shown.cards_word == "CPU ranks" else ()


def _ways_note(shown: Shown) -> tuple[str, ...]:
    if not any(each.spec.arrangement in WAYS for each in shown.jobs):
        return ()
    own = dict.fromkeys(each.spec.workload for each in shown.jobs)
    named = ", ".join(f"{NAMES[workload]}'s is {NATIVE[workload]}" for workload in own)
    return (f"without Horovod ranks share the work by the library's own way: {named}; one card needs neither",)


def _times(curve: Curve, point: Measurement) -> dict[str, Entry]:
    ideal = curve.ideal(point.spec.world_size)
    entries: dict[str, Entry] = {
        "seconds": Missing(reason=point.why_missing()) if point.job is None else point.job.seconds,
        "speedup": curve.speedup(point),
    }
    if ideal is not None and point is not curve.single:
        entries |= {"ideal": ideal, "efficiency": curve.efficiency(point)}
    return entries


def learnt(shown: Shown) -> Table:
    return Table(
        title="What it learnt",
        columns=(
            LIBRARY,
            cards(shown.cards_word),
            Column(key="first", title="first loss", metric=LOSS),
            Column(key="loss", title="last loss", metric=LOSS),
            Column(key="accuracy", title="accuracy", metric=ACCURACY),
        ),
        rows=tuple(_row(curve.name, point, _learnt(point)) for curve, point in _begun(shown)),
        notes=tuple(dict.fromkeys(note for each in shown.jobs for note in each.facts.notes)),
    )


def _learnt(point: Measurement) -> dict[str, Entry]:
    quality = quality_of(point)
    if quality is None:
        return {"loss": Missing(reason=point.why_missing())}
    entries: dict[str, Entry] = {"accuracy": Missing(reason="nothing was evaluated")}
    if quality.first_loss is not None and quality.last_loss is not None:
        entries |= {"first": Number(value=quality.first_loss), "loss": Number(value=quality.last_loss)}
    if quality.accuracy is not None:
        entries["accuracy"] = Share(value=quality.accuracy, of="test images")
    return entries


def parts(shown: Shown) -> Table:
    titles = {"start": "start", "training": "train", "communication": "wait", "evaluation": "test"}
    return Table(
        title="Where the time of the job goes",
        columns=(
            LIBRARY,
            cards(shown.cards_word),
            *(Column(key=part, title=titles.get(part, part), metric=PHASE_TIME) for part in PARTS),
        ),
        rows=tuple(_row(curve.name, point, _parts(point)) for curve, point in _begun(shown)),
        notes=(
            "start: processes, imports, images, joining, and the end; data: waiting for batches; train: forward and "
            "backward pass, optimizer; wait: for the gradients of others; test: the test images",
        ),
    )


def _parts(point: Measurement) -> dict[str, Entry]:
    if point.job is None:
        return {"start": Missing(reason=point.why_missing())}
    found: dict[str, float | None] = {part: getattr(point.job, part) for part in PARTS}
    return {
        part: Missing(reason="the phases were not timed") if seconds is None else Number(value=seconds, unit="s")
        for part, seconds in found.items()
    }


OF_DEVICES = (
    Column(key="device", title="device", metric=USAGE),
    Column(key="low", title="from", metric=USAGE),
    Column(key="high", title="to", metric=USAGE),
    Column(key="burstiness", title="bursts", metric=BURSTINESS),
)
CPU = Column(key="cpu", title="CPU", metric=USAGE)
WATTS = Column(key="power", title="power", metric=POWER)
NET = (
    Column(key="net", title="net of idle", metric=POWER),
    Column(key="per_image", title="energy", metric=ENERGY_PER_ITEM),
)


def _usages(found: Sequence[Measurement]) -> tuple[Column, ...]:
    """Where something could be read."""
    has_device = any(each.usage is not None and each.usage.device is not None for each in found)
    has_meter = any(isinstance(each.energy, EnergyFigures) for each in found)
    return (*(OF_DEVICES if has_device else ()), CPU, *((WATTS,) if has_meter else ()))


def _unread(found: Sequence[Measurement]) -> list[str]:
    columns = _usages(found)
    said = [] if OF_DEVICES[0] in columns else ["no card's usage could be read here"]
    return (
        said if WATTS in columns else [*said, *dict.fromkeys(f"no power: {why_no_joules(each)}" for each in found[:1])]
    )


def _measured(each: Measurement, columns: Sequence[Column]) -> dict[str, Entry]:
    entries = {**_usage(each), **_power(each)}
    return {column.key: entries[column.key] for column in columns if column.key in entries}


def summary(shown: Shown) -> Table:
    used = _usages(shown.jobs)
    figures = (*used, *(NET if WATTS in used else ()))
    named = [(curve.name, point) for curve, point in _begun(shown)]
    idle = [("idle", shown.idle)] if shown.idle is not None else []
    return Table(
        title="Usage and power while it trains",
        columns=(
            LIBRARY,
            cards(shown.cards_word),
            *figures,
        ),
        rows=tuple(_row(name, each, _measured(each, figures)) for name, each in (*idle, *named)),
        notes=(
            "device: mean usage of the cards, with the range of nine readings of ten; bursts: standard deviation over "
            "mean of these; CPU: of all cores of a node"
            if OF_DEVICES[0] in figures
            else "CPU: usage of all cores of a node, whoever uses them",
            *_unread(shown.jobs),
            *_rails(shown),
        ),
    )


def _usage(point: Measurement) -> dict[str, Entry]:
    usage = point.usage
    if usage is None:
        return {"cpu": Missing(reason="nobody sampled it" if point.kinds else point.why_missing())}
    cpu: Entry = Missing(reason="no core could be read") if usage.cpu is None else Share(value=usage.cpu, of="cores")
    if usage.device is None or usage.device_low is None or usage.device_high is None:
        return {"device": Missing(reason="no card's usage could be read"), "cpu": cpu}
    found: dict[str, Entry] = {
        "device": Share(value=usage.device, of="time"),
        "low": Share(value=usage.device_low, of="time"),
        "high": Share(value=usage.device_high, of="time"),
        "cpu": cpu,
    }
    return found if usage.burstiness is None else {**found, "burstiness": Number(value=usage.burstiness)}


def _power(point: Measurement) -> dict[str, Entry]:
    energy = point.energy
    if not isinstance(energy, EnergyFigures):
        return {"power": Missing(reason=why_no_joules(point))}
    return {"power": energy.watts, "net": energy.net_watts, "per_image": energy.per_item}


def _rails(shown: Shown) -> list[str]:
    """Power by rail, where there are several."""
    found = []
    for curve, point in _begun(shown):
        meters = point.energy.meters if isinstance(point.energy, EnergyFigures) else ()
        if len(meters) > 1:
            rails = ", ".join(f"{meter.title} {show_scaled(meter.watts, 'W')}" for meter in meters)
            found.append(f"{curve.name}, {point.spec.world_size}: {rails}")
    return found


def energy(shown: Shown) -> Table:
    """Of N cards against one for the same job; no rows where there is no meter."""
    rows = [
        _row(curve.name, point, _joules(curve, joules))
        for curve, point in _begun(shown)
        if (joules := joules_of(point)) is not None
    ]
    return Table(
        title="Energy of the job's steps, at the power of the steady ones",
        columns=(
            LIBRARY,
            cards(shown.cards_word),
            Column(key="joules", title="energy", metric=JOB_JOULES),
            Column(key="ratio", title="against one", metric=ENERGY_RATIO),
        ),
        rows=tuple(rows),
    )


def _joules(curve: Curve, joules: float) -> dict[str, Entry]:
    alone = None if curve.single is None else joules_of(curve.single)
    found: dict[str, Entry] = {"joules": Number(value=joules, unit="J")}
    return {**found, "ratio": Number(value=joules / alone, unit="x")} if alone else found


def beside(shown: Shown) -> Table:
    """A single computer's run of the same job: its own table, because it is another machine's."""
    found = [each for each in shown.beside if each.job is not None]
    used = _usages(found)
    runs = ", ".join(dict.fromkeys(run for each in found for run in each.runs))
    return Table(
        title=f"Beside it: {runs}",
        columns=(
            LIBRARY,
            cards("ranks"),
            Column(key="seconds", title="time", metric=JOB_TIME),
            Column(key="images", title="images", metric=COUNT),
            *used,
        ),
        rows=tuple(_row(name_of(each, found), each, _beside(each, used)) for each in found),
    )


def _beside(each: Measurement, used: Sequence[Column]) -> dict[str, Entry]:
    assert each.job is not None
    times: dict[str, Entry] = {"seconds": each.job.seconds, "images": Number(value=each.job.items)}
    return {**times, **_measured(each, used)}
