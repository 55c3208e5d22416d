"""The tables of the volume suite: the published table, the same as rates, and the details of both jobs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rigdyno.base.units import show_percent
from rigdyno.reference.volumes import ITERATIONS, PublishedUnet, compute_written_share, load_unet3d
from rigdyno.report.sections import choose_energy_columns, make_energy_entries, phase_title
from rigdyno.schema.estimate import Missing, Number
from rigdyno.schema.measured import Measurement, Status
from rigdyno.schema.metric import (
    ACCURACY,
    COUNT,
    DATA_WAIT,
    EFFICIENCY,
    ITERATION_RATE,
    JOB_TIME,
    LOSS,
    PATCH_RATE,
    PHASE_TIME,
    THROUGHPUT,
)
from rigdyno.schema.samples import PHASES
from rigdyno.schema.view import Column, Entry, Published, RatioEntry, Row, Table, Text
from rigdyno.suites.volume import rows
from rigdyno.suites.volume.rows import VolumeResults

SYSTEM = Column(key="system", title="system", numeric=False)

DEVICES = Column(key="devices", title="devices", identifies=True)

TRAINING = Column(key="training", title="training", metric=JOB_TIME)

INFERENCE = Column(key="inference", title="inference", metric=JOB_TIME)

AS_PUBLISHED = (
    SYSTEM,
    Column(key="cuda", title="CUDA", identifies=True),
    Column(key="pytorch", title="PyTorch", numeric=False),
    DEVICES,
    TRAINING,
    INFERENCE,
)

MEGAVOXELS = THROUGHPUT.in_unit("megavoxel/s")

TRANSLATED = (
    SYSTEM,
    DEVICES,
    Column(key="iterations", title="it/min", metric=ITERATION_RATE, bare=True),
    Column(key="patches", title="patch/min", metric=PATCH_RATE, bare=True),
    Column(key="efficiency", title="of ideal", metric=EFFICIENCY),
    Column(key="covered", title="Mvoxel/s", metric=MEGAVOXELS, bare=True),
    Column(key="written", title="written", metric=MEGAVOXELS, bare=True),
)

INFERRED = (
    Column(key="scheme", title="blocks", numeric=False),
    DEVICES,
    Column(key="time", title="time", metric=JOB_TIME.in_unit("h")),
    Column(key="written", title="written", metric=MEGAVOXELS, bare=True),
    Column(key="passed", title="passed", metric=MEGAVOXELS, bare=True),
    Column(key="efficiency", title="of ideal", metric=EFFICIENCY),
)

SCHEMES = {"published": "as published", "own": "as `rigdyno infer`"}

_ORDER: tuple[Status, ...] = ("VALID", "SUSPECT", "INVALID", "SKIPPED", "FAILED")  # from good to bad

_SHOWN = 1e-3  # seconds: a phase that is always shorter has no column


def make_tables(results: VolumeResults) -> tuple[Table, ...]:
    return (
        published_form_table(results),
        rates_table(results),
        inference_table(results),
        time_table(results),
        training_result_table(results),
    )


def published_form_table(results: VolumeResults) -> Table:
    """Return a row per number of devices, with its training and the inference by our own scheme."""
    return Table(
        title=f"{ITERATIONS} iterations of training, inference of 1.9 gigavoxel",
        columns=AS_PUBLISHED,
        rows=(
            *(_times_row(results, *pair) for pair in results.pairs),
            *(_published_row(each, _published_times(each)) for each in load_unet3d()),
        ),
        notes=(*_size_notes(results), *_extrapolation_note(results)),
    )


def name_of(each: Measurement) -> str:
    other = "" if rows.network(each) == "published" else f", {rows.network(each)}"
    return (each.records[-1].label or "this machine") + other


def _times_row(results: VolumeResults, trained: Measurement | None, inferred: Measurement | None) -> Row:
    entries: dict[str, Entry] = {}
    for each, key in ((trained, "training"), (inferred, "inference")):
        if each is not None:
            entries |= {**_own_versions(each), key: results.seconds(each)}
    return _row([each for each in (trained, inferred) if each is not None], entries)


def _row(both: Sequence[Measurement], entries: dict[str, Entry]) -> Row:
    """Return a row with the worse verdict of the two."""
    first = both[0]
    return Row(
        entries={"system": Text(text=name_of(first)), "devices": Number(value=first.spec.world_size), **entries},
        status=max((each.status for each in both), key=_ORDER.index),
        facts=first.records[-1].columns(),
    )


def _own_versions(each: Measurement) -> dict[str, Entry]:
    facts = each.records[-1].columns()
    return _version_entries(str(facts.get("cuda", "")), str(facts.get("torch", "")))


def _version_entries(cuda: str, pytorch: str) -> dict[str, Entry]:
    """Return the versions that are known."""
    known: dict[str, Entry] = {"pytorch": Text(text=pytorch)} if pytorch else {}
    try:
        return {"cuda": Number(value=float(cuda)), **known}
    except ValueError:
        return known


def _published_row(each: PublishedUnet, entries: dict[str, Entry]) -> Row:
    return Row(
        entries={
            "system": Text(text=each.system),
            "devices": Number(value=each.devices),
            **entries,
        },
        origin="published",
    )


def _published_times(each: PublishedUnet) -> dict[str, Entry]:
    found: dict[str, Entry] = {
        **_version_entries(each.cuda, each.pytorch),
        "training": Published(value=each.training_seconds, unit="s", source=each.source),
    }
    if each.inference_seconds is not None:
        found["inference"] = Published(value=each.inference_seconds, unit="s", source=each.source)
    return found


def _size_notes(results: VolumeResults) -> tuple[str, ...]:
    said = ["devices of this machine: processes that share its cores"] if _uses_cpu(results) else []
    said.append("published: 12/60/300/1500 maps, patches of 40x432x432, a patch of each device in an iteration")
    smaller = [each for each in results.trained if not rows.is_full(each)]
    if smaller:
        maps = str(smaller[0].spec.resolved.get("features") or "12,60,300,1500").replace(",", "/")
        patch = rows.option(smaller[0], "patch")
        said.append(f"here smaller than published: {maps} maps, patches of {patch} (--full: the published sizes)")
    return tuple(said)


def _uses_cpu(results: VolumeResults) -> bool:
    return any(each.spec.device == "cpu" for each in (*results.training, *results.inferred))


def _extrapolation_note(results: VolumeResults) -> tuple[str, ...]:
    measured = [*results.training, *results.inferred]
    if not any(rows.is_extrapolated(each) and each.kinds for each in measured):
        return ()
    return ("here extrapolated from steady steps and from a random sample of blocks; --full runs all of them",)


def rates_table(results: VolumeResults) -> Table:
    own = [_rates_row(trained, inferred, results) for trained, inferred in results.pairs]
    own += [_row([each], _training_rates(each, results.training)) for each in results.others]
    return Table(
        title="Translated to rates",
        columns=TRANSLATED,
        rows=(*own, *(_published_row(each, _published_rates(each)) for each in load_unet3d())),
        notes=(
            "patch/min: of all devices together; with more of them an iteration takes longer, and does more",
            f"written: the published script lays blocks 65x675x675 apart and writes 55x575x575, so that "
            f"{show_percent(1 - compute_written_share())} of its volume was never written; here every voxel is",
            "the published devices shared an iteration by Inferno's data parallelism in one process, here by ddp",
        ),
    )


def _rates_row(trained: Measurement | None, inferred: Measurement | None, results: VolumeResults) -> Row:
    entries = _training_rates(trained, results.training) if trained is not None else {}
    if inferred is not None:
        written = rows.megavoxels(inferred.throughput())
        entries |= {"covered": written, "written": written}
    return _row([each for each in (trained, inferred) if each is not None], entries)


def _training_rates(each: Measurement, among: Sequence[Measurement]) -> dict[str, Entry]:
    found: dict[str, Entry] = {
        "iterations": rows.iterations_per_minute(each),
        "patches": rows.patches_per_minute(each),
    }
    efficiency = rows.efficiency_entry(each, among)
    return found if efficiency is None else {**found, "efficiency": efficiency}


def _published_rates(each: PublishedUnet) -> dict[str, Entry]:
    def printed(value: float, unit: str) -> Published:
        return Published(value=round(value, 1), unit=unit, source=each.source)

    found: dict[str, Entry] = {
        "iterations": printed(each.iterations_per_minute, "it/min"),
        "patches": printed(each.patches_per_minute, "patch/min"),
    }
    if each.devices > 1 and (share := each.efficiency(load_unet3d())) is not None:
        found["efficiency"] = RatioEntry(value=share, of="perfect scaling")
    if each.voxels_per_s is not None and each.written_per_s is not None:
        found["covered"] = printed(each.voxels_per_s / 1e6, "megavoxel/s")
        found["written"] = printed(each.written_per_s / 1e6, "megavoxel/s")
    return found


def inference_table(results: VolumeResults) -> Table:
    return Table(
        title="Inference of 200x3072x3072 voxels, three affinities each as uint8",
        columns=(*INFERRED, *choose_energy_columns(results.inferred)),
        rows=tuple(_inference_row(results, each) for each in results.inferred),
        notes=(
            "megavoxel/s; written: voxels of the volume, each once; passed: through the network, those around a block "
            "included",
            *dict.fromkeys(_blocks_note(each) for each in results.inferred),
            *dict.fromkeys(note for each in results.inferred for note in each.facts.notes),
        ),
    )


def _inference_row(results: VolumeResults, each: Measurement) -> Row:
    efficiency = rows.efficiency_entry(each, results.inferred)
    return Row(
        entries={
            "scheme": Text(text=SCHEMES.get(rows.scheme(each), rows.scheme(each))),
            "devices": Number(value=each.spec.world_size),
            "time": rows.in_hours(results.seconds(each)),
            "written": rows.megavoxels(each.throughput()),
            "passed": rows.megavoxels(rows.voxels_passed(each)),
            **({} if efficiency is None else {"efficiency": efficiency}),
            **make_energy_entries(each),
        },
        status=each.status,
        facts=each.records[-1].columns(),
    )


def _blocks_note(each: Measurement) -> str:
    name = SCHEMES.get(rows.scheme(each), rows.scheme(each))
    return f"{name}: blocks of {rows.option(each, 'block') or '?'} with {rows.option(each, 'halo') or '?'} around them"


def time_table(results: VolumeResults) -> Table:
    timed = [(each, each.phases) for each in results.training if each.phases is not None]
    means = [
        {name: fmean(rank.get(name, 0.0) for rank in phases.by_rank.values()) for name in PHASES} for _, phases in timed
    ]
    names = [name for name in PHASES if name == "data" or any(each[name] >= _SHOWN for each in means)]
    return Table(
        title="Where the time of a training step goes",
        columns=(
            Column(key="network", title="network", numeric=False),
            *(Column(key=name, title=phase_title(name), metric=PHASE_TIME) for name in names),
            Column(key="waiting", title="waits", metric=DATA_WAIT),
        ),
        rows=tuple(_phase_row(each, seconds, names) for (each, _), seconds in zip(timed, means, strict=True)),
        notes=(
            "data: waiting for patches that the loader processes have not ready; waits: that share of a step, of the "
            "rank that waits longest; the published text says that the GPU's usage should be about 100 %",
        ),
    )


def _phase_row(each: Measurement, seconds: dict[str, float], names: Sequence[str]) -> Row:
    return Row(
        entries={
            "network": Text(text=_network_name(each)),
            **{name: Number(value=seconds[name], unit="s") for name in names},
            "waiting": rows.waiting_share(each),
        },
    )


def _network_name(each: Measurement) -> str:
    """Return the network, and the number of devices if there are several."""
    several = "" if each.spec.world_size == 1 else f" x {each.spec.world_size}"
    return f"{rows.network(each)}{several}"


def training_result_table(results: VolumeResults) -> Table:
    return Table(
        title="What it learnt",
        columns=(
            Column(key="network", title="network", numeric=False),
            DEVICES,
            Column(key="parameters", title="parameters", metric=COUNT),
            Column(key="first", title="first loss", metric=LOSS),
            Column(key="loss", title="last loss", metric=LOSS),
            Column(key="accuracy", title="accuracy", metric=ACCURACY),
        ),
        rows=tuple(_training_row(each) for each in results.training),
        notes=(
            "loss: 1 - the Sorensen-Dice coefficient of the cuts; accuracy: of the affinities of patches that were "
            "held out, the mean of both kinds: chance gives 50 %, and so few steps hardly more",
            *dict.fromkeys(note for each in results.training for note in each.facts.notes),
        ),
    )


def _training_row(each: Measurement) -> Row:
    entries: dict[str, Entry] = {
        "network": Text(text=rows.network(each)),
        "devices": Number(value=each.spec.world_size),
    }
    parameters, quality = each.facts.settled.get("parameters"), rows.quality_of(each)
    if isinstance(parameters, int):
        entries["parameters"] = Number(value=parameters)
    if quality is None:
        return Row(entries={**entries, "loss": Missing(reason=each.why_missing())}, status=each.status)
    if quality.first_loss is not None and quality.last_loss is not None:
        entries |= {"first": Number(value=quality.first_loss), "loss": Number(value=quality.last_loss)}
    entries["accuracy"] = (
        Missing(reason="nothing was evaluated")
        if quality.accuracy is None
        else RatioEntry(value=quality.accuracy, of="affinities")
    )
    return Row(entries=entries, status=each.status)
