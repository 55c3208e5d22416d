"""The tables of the scaling suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rigdyno.analyse.scaling import efficiency, speedup
from rigdyno.base.units import bus_bytes, bytes_from, show_percent
from rigdyno.reference.published import PublishedScaling, load_resnet50_scaling
from rigdyno.report.sections import phase_title
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.measured import KindFigures, Measurement, Phases
from rigdyno.schema.metric import BANDWIDTH, EFFICIENCY, PHASE_TIME, SPEEDUP, THROUGHPUT, TRANSFER_TIME
from rigdyno.schema.samples import PHASES
from rigdyno.schema.view import Column, Entry, Published, RatioEntry, Row, Table, Text

IMAGES = THROUGHPUT.of("image")

# Seven columns have no room for units: that of the rates is in the title of the table.
FIGURES = (
    Column(key="forward", title="fwd", metric=IMAGES, bare=True),
    Column(key="backward", title="bwd", metric=IMAGES, bare=True),
    Column(key="overall", title="overall", metric=IMAGES, bare=True),
    Column(key="speedup", title="speedup", metric=SPEEDUP, bare=True),
    Column(key="efficiency", title="of ideal", metric=EFFICIENCY),
)

_SHOWN = 1e-3  # seconds: a phase that is always shorter has no column

_BY_RANKS = (
    "broadcast: the first rank's buffers, before the forward pass; exposed: waiting for others' gradients that the "
    "backward pass didn't hide"
)

_BY_DEVICES = (
    "scatter: inputs, from the first device to the others; broadcast: all parameters, likewise, before every forward "
    "pass; gather: outputs, back to the first; the backward pass ends when all gradients are there"
)


def curve(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the ResNet-50 measurements by number of ranks."""
    found = [each for each in measurements if each.spec.workload == "resnet50"]
    return sorted(found, key=lambda each: each.spec.world_size)


def results_table(found: Sequence[Measurement]) -> Table:
    if not found:
        return Table(title="", columns=(), rows=())
    return Table(
        title=settings(found[0]),
        columns=(*_sizes(devices_word(found[0])), *FIGURES),
        rows=tuple(_row(each, found[0]) for each in found),
        notes=(
            *_core_note(found),
            f"fwd: {_transfer_words(found)} and forward pass; bwd: backward pass, waiting for gradients, optimizer",
        ),
    )


def _row(each: Measurement, first: Measurement) -> Row:
    entries: dict[str, Entry] = {
        "nodes": Number(value=each.spec.nodes),
        "devices": Number(value=each.spec.world_size),
        "forward": _phase_rate(each, "forward"),
        "backward": _phase_rate(each, "backward"),
        "overall": each.throughput(),
        "speedup": (times := speedup_entry(each, first)),
    }
    if each is not first:
        entries["efficiency"] = efficiency(times, each.spec.world_size) if isinstance(times, Estimate) else times
    return Row(entries=entries, status=each.status, facts=each.records[-1].columns())


def _phase_rate(each: Measurement, name: str) -> Entry:
    if each.phases is None:
        return Missing(reason=each.why_missing() if not each.kinds else "the phases were not timed")
    rate: Estimate = getattr(each.phases, name)
    return rate


def speedup_entry(each: Measurement, first: Measurement) -> Estimate | Missing | Number:
    """Return the speedup over one rank; that of one rank itself is exactly 1."""
    alone = first.throughput() if first.spec.world_size == 1 else None
    found = speedup(each.throughput(), alone, n=len(each.records), reason="one rank alone was not measured")
    return Number(value=1, unit="x") if each is first and isinstance(found, Estimate) else found


def settings(measurement: Measurement) -> str:
    options, spec = measurement.spec.resolved, measurement.spec
    batch, size = options.get("batch_size", "?"), options.get("image_size", "?")
    parts = [f"ResNet-50, image/s; {batch} images of {size} x {size} a rank", str(options.get("precision", "fp32"))]
    if (batch, size) != (32, 224):
        parts.append("smaller than published (32 of 224 x 224: --full)")
    if spec.threads is not None:
        parts.append(f"{spec.threads} thread{'s' if spec.threads != 1 else ''} each")
    return ", ".join(parts)


def _core_note(found: Sequence[Measurement]) -> tuple[str, ...]:
    if found[0].spec.device != "cpu":
        return ()
    cores = found[0].records[0].system.cpu.usable_cores
    counted = f"{cores} core{'s' if cores != 1 else ''}"
    where = (
        f"the cores of their nodes (this one has {counted})"
        if found[-1].spec.nodes > 1
        else f"{counted} of one machine"
    )
    return (f"CPU ranks are processes that share {where}, not cards",)


def devices_word(measurement: Measurement) -> str:
    return "CPU ranks" if measurement.spec.device == "cpu" else "devices"


def _sizes(devices: str) -> tuple[Column, Column]:
    return Column(key="nodes", title="nodes", identifies=True), _devices(devices)


def _devices(title: str) -> Column:
    return Column(key="devices", title=title, identifies=True)


def _is_replicated(found: Sequence[Measurement]) -> bool:
    """Tell whether one process drives several devices, with everything sent from and to the first of them."""
    return any(each.spec.arrangement == "data_parallel" for each in found)


def _transfer_words(found: Sequence[Measurement]) -> str:
    return "scatter, broadcast, gather" if _is_replicated(found) else "broadcast"


def time_table(found: Sequence[Measurement]) -> Table:
    """Return the time of a step by phase, and by rank for the largest number of ranks."""
    timed = [(each, each.phases) for each in found if each.phases is not None]
    if not timed:
        return Table(title="", columns=(), rows=())
    names = [name for name in PHASES if any(mean_seconds(phases, name) >= _SHOWN for _, phases in timed)]
    rows = [_phase_row(each, _means(phases), names) for each, phases in timed]
    largest, spent_there = timed[-1]
    if len(spent_there.by_rank) > 1:
        rows += [_phase_row(largest, seconds, names, rank) for rank, seconds in spent_there.by_rank.items()]
    return Table(
        title="Where the time of a step goes",
        columns=(
            _devices(devices_word(found[0])),
            Column(key="rank", title="rank", numeric=False, identifies=True),
            *(_phase_column(name) for name in names),
        ),
        rows=tuple(rows),
        notes=(_phase_note([phases for _, phases in timed], replicated=_is_replicated(found)),),
    )


def _phase_column(name: str) -> Column:
    return Column(key=name, title=phase_title(name), metric=PHASE_TIME)


def _phase_row(each: Measurement, seconds: Mapping[str, float], names: Sequence[str], rank: int | None = None) -> Row:
    """Return the row of one rank, or of the mean if `rank` is None."""
    entries: dict[str, Entry] = {"devices": Number(value=each.spec.world_size)}
    if each.phases is not None and len(each.phases.by_rank) > 1:  # devices of one process have no ranks
        entries["rank"] = Text(text="mean") if rank is None else Number(value=rank)
    return Row(entries=entries | {name: Number(value=seconds[name], unit="s") for name in names if name in seconds})


def _phase_note(timed: Sequence[Phases], *, replicated: bool) -> str:
    explained = max((phases.explained for phases in timed), key=lambda share: abs(share - 1))
    means = _BY_DEVICES if replicated else _BY_RANKS
    return f"{means}; the phases add up to {show_percent(explained)} of the step"


def _means(phases: Phases) -> dict[str, float]:
    names = dict.fromkeys(name for rank in phases.by_rank.values() for name in rank)
    return {name: mean_seconds(phases, name) for name in names}


def mean_seconds(phases: Phases, name: str) -> float:
    return fmean(rank.get(name, 0.0) for rank in phases.by_rank.values())


def link_table(measurements: Sequence[Measurement]) -> Table:
    """Return the bandwidth of the link between ranks by the size of the all-reduce."""
    found = next((each for each in measurements if each.spec.workload == "allreduce"), None)
    if found is None:
        return Table(title="", columns=(), rows=())
    columns = (
        Column(key="size", title="all-reduce of"),
        Column(key="time", title="takes", metric=TRANSFER_TIME),
        Column(key="bus", title="bus bandwidth", metric=BANDWIDTH),
    )
    return Table(
        title=f"The link between {found.spec.world_size} ranks",
        columns=columns,
        rows=tuple(_link_rows(found)),
        notes=tuple(found.facts.notes),
    )


def _link_rows(found: Measurement) -> list[Row]:
    facts = found.records[-1].columns()
    if not found.kinds:
        reason = found.throughput()
        return [Row(entries={"time": reason, "bus": reason}, status=found.status, facts=facts)]
    return [
        Row(
            entries={
                "size": Number(value=bytes_from(size), unit="B"),
                "time": _transfer_seconds(found, size, figures),
                "bus": figures.throughput,
            },
            status=found.status_of(size),
            facts=facts,
        )
        for size, figures in found.kinds.items()
    ]


def _transfer_seconds(found: Measurement, size: str, figures: KindFigures) -> Estimate:
    """Return the time of one all-reduce, from the bus bandwidth: a step may contain many small ones."""
    moved, rate = bus_bytes(bytes_from(size), found.spec.world_size), figures.throughput
    if rate.ends[0] <= 0:
        rate = rate.without_interval(rate.method)  # an interval down to zero has no inverse
    return rate.mapped(lambda each: moved / each, "s")


def published_table() -> Table:
    found = load_resnet50_scaling()
    return Table(
        title="Published, image/s: K80 GPUs, p2.8xlarge nodes, 32 images of 224 x 224 a GPU",
        columns=(*_sizes("GPUs"), *FIGURES),
        rows=tuple(_published_row(each) for each in found),
        notes=(
            "1 to 8 GPUs are DataParallel in one process, 16 to 128 DistributedDataParallel: two mechanisms in a table",
            "fwd and bwd are means of rates, by timers that didn't wait for the GPU: only overall can be used",
        ),
    )


def _published_row(each: PublishedScaling) -> Row:
    def as_printed(value: float, unit: str = "image/s") -> Published:
        return Published(value=value, unit=unit, source=each.source)

    return Row(
        entries={
            "nodes": Number(value=each.nodes),
            "devices": Number(value=each.devices),
            "forward": as_printed(each.forward),
            "backward": as_printed(each.backward),
            "overall": as_printed(each.overall),
            "speedup": as_printed(each.speedup, "x"),
            "efficiency": RatioEntry(value=each.speedup / each.devices, of="perfect scaling"),
        },
        origin="published",
    )
