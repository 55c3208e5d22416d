"""The tables of the cluster suite, followed by the published ones."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.base.units import show_scaled
from rigdyno.report.sections import joules_of, why_no_joules
from rigdyno.schema.estimate import Missing, Number
from rigdyno.schema.measured import EnergyFigures, Measurement
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
from rigdyno.schema.view import Column, Entry, RatioEntry, Row, Table, Text
from rigdyno.suites.cluster.curves import NAMES, NATIVE, PARTS, WAYS, ClusterResults, JobCurve, name_of, quality_of
from rigdyno.suites.cluster.published import LIBRARY, cards, published_summary, published_times

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


def make_tables(results: ClusterResults) -> tuple[Table, ...]:
    own = (
        run_times(results),
        parts(results),
        training_result_table(results),
        summary(results),
        energy(results),
        beside(results),
    )
    return (*own, published_times(), published_summary()) if results.jobs else ()


def _identity(name: str, measurement: Measurement) -> dict[str, Entry]:
    return {"library": Text(text=name), "cards": Number(value=measurement.spec.world_size)}


def _row(name: str, measurement: Measurement, entries: dict[str, Entry]) -> Row:
    return Row(
        entries={**_identity(name, measurement), **entries},
        status=measurement.status,
        facts=measurement.records[-1].columns(),
    )


def _points(results: ClusterResults) -> list[tuple[JobCurve, Measurement]]:
    return [(curve, point) for curve in results.curves for point in curve.points]


def _started_points(results: ClusterResults) -> list[tuple[JobCurve, Measurement]]:
    """Return the points that weren't skipped; the first table already shows skipped ones with their reason."""
    return [(curve, point) for curve, point in _points(results) if not isinstance(point.outcome, Skipped)]


def run_times(results: ClusterResults) -> Table:
    return Table(
        title=f"Run time of the job: {settings(results.jobs)}",
        columns=(
            LIBRARY,
            cards(results.cards_word),
            Column(key="seconds", title="time", metric=JOB_TIME),
            Column(key="ideal", title="ideal", metric=JOB_TIME),
            Column(key="speedup", title="speedup", metric=SPEEDUP, bare=True),
            Column(key="efficiency", title="of ideal", metric=EFFICIENCY),
        ),
        rows=tuple(_row(curve.name, point, _time_entries(curve, point)) for curve, point in _points(results)),
        notes=(
            "time: from the start of the processes to their end; ideal: that of one, shared out",
            *_ranks_note(results),
            *_ways_note(results),
        ),
    )


def settings(jobs: Sequence[Measurement]) -> str:
    items = sorted({round(each.job.items) for each in jobs if each.job is not None})
    images = " or ".join(f"{count:,}" for count in items[-2:]) if items else "some"
    sizes = {int(each.facts.settled["parameters"]) for each in jobs if "parameters" in each.facts.settled}
    known = f", a network of {' or '.join(f'{size:,}' for size in sorted(sizes))} parameters" if sizes else ""
    return f"MNIST, {images} images{known}"


def _ranks_note(results: ClusterResults) -> tuple[str, ...]:
    return ("CPU ranks are processes on cores of their own, not cards",) if results.cards_word == "CPU ranks" else ()


def _ways_note(results: ClusterResults) -> tuple[str, ...]:
    if not any(each.spec.arrangement in WAYS for each in results.jobs):
        return ()
    own = dict.fromkeys(each.spec.workload for each in results.jobs)
    named = ", ".join(f"{NAMES[workload]}'s is {NATIVE[workload]}" for workload in own)
    return (f"without Horovod ranks share the work by the library's own way: {named}; one card needs neither",)


def _time_entries(curve: JobCurve, point: Measurement) -> dict[str, Entry]:
    ideal = curve.ideal(point.spec.world_size)
    entries: dict[str, Entry] = {
        "seconds": Missing(reason=point.why_missing()) if point.job is None else point.job.seconds,
        "speedup": curve.speedup(point),
    }
    if ideal is not None and point is not curve.single:
        entries |= {"ideal": ideal, "efficiency": curve.efficiency(point)}
    return entries


def training_result_table(results: ClusterResults) -> Table:
    return Table(
        title="What it learnt",
        columns=(
            LIBRARY,
            cards(results.cards_word),
            Column(key="first", title="first loss", metric=LOSS),
            Column(key="loss", title="last loss", metric=LOSS),
            Column(key="accuracy", title="accuracy", metric=ACCURACY),
        ),
        rows=tuple(_row(curve.name, point, _training_entries(point)) for curve, point in _started_points(results)),
        notes=tuple(dict.fromkeys(note for each in results.jobs for note in each.facts.notes)),
    )


def _training_entries(point: Measurement) -> dict[str, Entry]:
    quality = quality_of(point)
    if quality is None:
        return {"loss": Missing(reason=point.why_missing())}
    entries: dict[str, Entry] = {"accuracy": Missing(reason="nothing was evaluated")}
    if quality.first_loss is not None and quality.last_loss is not None:
        entries |= {"first": Number(value=quality.first_loss), "loss": Number(value=quality.last_loss)}
    if quality.accuracy is not None:
        entries["accuracy"] = RatioEntry(value=quality.accuracy, of="test images")
    return entries


def parts(results: ClusterResults) -> Table:
    titles = {"start": "start", "training": "train", "communication": "wait", "evaluation": "test"}
    return Table(
        title="Where the time of the job goes",
        columns=(
            LIBRARY,
            cards(results.cards_word),
            *(Column(key=part, title=titles.get(part, part), metric=PHASE_TIME) for part in PARTS),
        ),
        rows=tuple(_row(curve.name, point, _parts_entries(point)) for curve, point in _started_points(results)),
        notes=(
            "start: processes, imports, images, joining, and the end; data: waiting for batches; train: forward and "
            "backward pass, optimizer; wait: for the gradients of others; test: the test images",
        ),
    )


def _parts_entries(point: Measurement) -> dict[str, Entry]:
    if point.job is None:
        return {"start": Missing(reason=point.why_missing())}
    found: dict[str, float | None] = {part: getattr(point.job, part) for part in PARTS}
    return {
        part: Missing(reason="the phases were not timed") if seconds is None else Number(value=seconds, unit="s")
        for part, seconds in found.items()
    }


def _usage_columns(found: Sequence[Measurement]) -> tuple[Column, ...]:
    """Return the columns for which something could be read."""
    has_device = any(each.usage is not None and each.usage.device is not None for each in found)
    has_meter = any(isinstance(each.energy, EnergyFigures) for each in found)
    return (*(OF_DEVICES if has_device else ()), CPU, *((WATTS,) if has_meter else ()))


def _unread_notes(found: Sequence[Measurement]) -> list[str]:
    columns = _usage_columns(found)
    said = [] if OF_DEVICES[0] in columns else ["no card's usage could be read here"]
    return (
        said if WATTS in columns else [*said, *dict.fromkeys(f"no power: {why_no_joules(each)}" for each in found[:1])]
    )


def _select_entries(each: Measurement, columns: Sequence[Column]) -> dict[str, Entry]:
    entries = {**_usage_entries(each), **_power_entries(each)}
    return {column.key: entries[column.key] for column in columns if column.key in entries}


def summary(results: ClusterResults) -> Table:
    used = _usage_columns(results.jobs)
    figures = (*used, *(NET if WATTS in used else ()))
    named = [(curve.name, point) for curve, point in _started_points(results)]
    idle = [("idle", results.idle)] if results.idle is not None else []
    return Table(
        title="Usage and power while it trains",
        columns=(
            LIBRARY,
            cards(results.cards_word),
            *figures,
        ),
        rows=tuple(_row(name, each, _select_entries(each, figures)) for name, each in (*idle, *named)),
        notes=(
            "device: mean usage of the cards, with the range of nine readings of ten; bursts: standard deviation over "
            "mean of these; CPU: of all cores of a node"
            if OF_DEVICES[0] in figures
            else "CPU: usage of all cores of a node, whoever uses them",
            *_unread_notes(results.jobs),
            *_rail_notes(results),
        ),
    )


def _usage_entries(point: Measurement) -> dict[str, Entry]:
    usage = point.usage
    if usage is None:
        return {"cpu": Missing(reason="nobody sampled it" if point.kinds else point.why_missing())}
    cpu: Entry = (
        Missing(reason="no core could be read") if usage.cpu is None else RatioEntry(value=usage.cpu, of="cores")
    )
    if usage.device is None or usage.device_low is None or usage.device_high is None:
        return {"device": Missing(reason="no card's usage could be read"), "cpu": cpu}
    found: dict[str, Entry] = {
        "device": RatioEntry(value=usage.device, of="time"),
        "low": RatioEntry(value=usage.device_low, of="time"),
        "high": RatioEntry(value=usage.device_high, of="time"),
        "cpu": cpu,
    }
    return found if usage.burstiness is None else {**found, "burstiness": Number(value=usage.burstiness)}


def _power_entries(point: Measurement) -> dict[str, Entry]:
    energy = point.energy
    if not isinstance(energy, EnergyFigures):
        return {"power": Missing(reason=why_no_joules(point))}
    return {"power": energy.watts, "net": energy.net_watts, "per_image": energy.per_item}


def _rail_notes(results: ClusterResults) -> list[str]:
    """Return the power of each rail if there are several."""
    found = []
    for curve, point in _started_points(results):
        meters = point.energy.meters if isinstance(point.energy, EnergyFigures) else ()
        if len(meters) > 1:
            rails = ", ".join(f"{meter.title} {show_scaled(meter.watts, 'W')}" for meter in meters)
            found.append(f"{curve.name}, {point.spec.world_size}: {rails}")
    return found


def energy(results: ClusterResults) -> Table:
    """Compare the energy of N devices with that of one; the table has no rows without a meter."""
    rows = [
        _row(curve.name, point, _energy_entries(curve, joules))
        for curve, point in _started_points(results)
        if (joules := joules_of(point)) is not None
    ]
    return Table(
        title="Energy of the job's steps, at the power of the steady ones",
        columns=(
            LIBRARY,
            cards(results.cards_word),
            Column(key="joules", title="energy", metric=JOB_JOULES),
            Column(key="ratio", title="against one", metric=ENERGY_RATIO),
        ),
        rows=tuple(rows),
    )


def _energy_entries(curve: JobCurve, joules: float) -> dict[str, Entry]:
    alone = None if curve.single is None else joules_of(curve.single)
    found: dict[str, Entry] = {"joules": Number(value=joules, unit="J")}
    return {**found, "ratio": Number(value=joules / alone, unit="x")} if alone else found


def beside(results: ClusterResults) -> Table:
    """Return a table of its own for the same job on another machine (--beside)."""
    found = [each for each in results.beside if each.job is not None]
    used = _usage_columns(found)
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
        rows=tuple(_row(name_of(each, found), each, _beside_entries(each, used)) for each in found),
    )


def _beside_entries(each: Measurement, used: Sequence[Column]) -> dict[str, Entry]:
    assert each.job is not None
    times: dict[str, Entry] = {"seconds": each.job.seconds, "images": Number(value=each.job.items)}
    return {**times, **_select_entries(each, used)}
