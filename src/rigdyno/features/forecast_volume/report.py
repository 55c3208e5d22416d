"""The view of a volume forecast: times of famous volumes on this machine and on the published GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rigdyno.base.units import JOULES_PER_KWH, show_percent, show_scaled
from rigdyno.features.forecast_volume.forecast import Sharing
from rigdyno.reference.volumes import FamousVolume, PublishedUnet, compute_written_share, load_unet3d
from rigdyno.schema.estimate import Estimate, Missing, Number
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum, datum_of, figure_key
from rigdyno.schema.metric import COUNT, JOB_ENERGY, JOB_PRICE, JOB_TIME
from rigdyno.schema.view import Column, Entry, Row, Table, Text, View

SECONDS_PER_HOUR = 3600.0

OWN = "own"

REACH = 4  # times the largest measured number of devices: beyond that, a forecast is a guess


@dataclass(frozen=True, kw_only=True)
class VolumeForecast:
    volumes: Sequence[FamousVolume]
    own: Sharing | None  # None: nothing was measured here
    devices: Sequence[int]
    price_per_hour: float | None = None  # of one device
    watts: float | None = None  # of one device


def gpus() -> list[PublishedUnet]:
    """Return, for each published GPU, the system that wrote most voxels per second."""
    best: dict[str, PublishedUnet] = {}
    for row in load_unet3d():
        known = best.get(row.device)
        if row.written_per_s is not None and (known is None or row.written_per_s > (known.written_per_s or 0)):
            best[row.device] = row
    return list(best.values())


def volume_forecast_view(forecast: VolumeForecast, remarks: Sequence[str] = ()) -> View:
    tables = [_volumes_table(forecast)]
    for devices in forecast.devices:
        tables.append(_hours_table(forecast, devices))
        if forecast.price_per_hour is not None:
            tables.append(_prices_table(forecast, devices, forecast.price_per_hour))
    return View(
        title="How long these volumes would take",
        rigs=(_source_line(forecast.own),),
        tables=tuple(tables),
        figures=(_hours_figure(forecast, forecast.devices[0]),),
        closing=_closing(forecast),
        warnings=(*remarks, *_reach_warnings(forecast)),
    )


def _source_line(own: Sharing | None) -> str:
    return "no run of this machine" if own is None else f"this machine: {own.name}"


def _volumes_table(forecast: VolumeForecast) -> Table:
    told = ((each.name, "; ".join(part for part in (each.note, each.source) if part)) for each in forecast.volumes)
    return Table(
        title="The volumes",
        columns=(
            Column(key="volume", title="volume", numeric=False),
            Column(key="voxels", title="voxels", metric=COUNT.in_unit("voxel")),
            Column(key="resolution", title="voxel, nm", numeric=False),
            Column(key="certainty", title="size is", numeric=False),
        ),
        rows=tuple(
            Row(
                entries={
                    "volume": Text(text=each.name),
                    "voxels": Number(value=each.voxels, unit="voxel"),
                    "resolution": Text(text=each.resolution or "-"),
                    "certainty": Text(text=each.certainty),
                },
                origin="published" if each.source else "measured",
            )
            for each in forecast.volumes
        ),
        notes=(
            "stated: by its authors; derived: from its edges; uncertain: only roughly known",
            *(f"{name}: {words}" for name, words in told),
        ),
    )


def _columns(forecast: VolumeForecast) -> list[Column]:
    hours = JOB_TIME.in_unit("h")
    own = [Column(key=OWN, title="this machine", metric=hours)] if forecast.own is not None else []
    return [*own, *(Column(key=_column_key(row), title=_short_name(row), metric=hours) for row in gpus())]


def _column_key(row: PublishedUnet) -> str:
    return figure_key(row.device)


def _short_name(row: PublishedUnet) -> str:
    return row.device.removeprefix("NVIDIA ").removeprefix("GTX ")


def _hours_table(forecast: VolumeForecast, devices: int) -> Table:
    energy = _has_energy(forecast)
    columns = (
        Column(key="volume", title="volume", numeric=False),
        *_columns(forecast),
        *((Column(key="energy", title="energy", metric=JOB_ENERGY),) if energy else ()),
    )
    return Table(
        title=f"Hours on {devices} device{'s' if devices != 1 else ''}",
        columns=columns,
        rows=tuple(_row(forecast, each, _hours_entries(forecast, each, devices)) for each in forecast.volumes),
        notes=(
            *((forecast.own.method(devices),) if forecast.own is not None else ()),
            f"GPUs: what one wrote in the published benchmark of 2018, "
            f"{show_percent(compute_written_share())} of what it "
            "printed, times their number: none of them shared a volume",
            *(("energy: of this machine",) if energy else ()),
        ),
    )


def _has_energy(forecast: VolumeForecast) -> bool:
    return forecast.own is not None and (forecast.watts is not None or forecast.own.joules_per_voxel is not None)


def _row(forecast: VolumeForecast, volume: FamousVolume, entries: dict[str, Entry]) -> Row:
    runs = forecast.own.runs if forecast.own is not None else ()
    return Row(entries={"volume": Text(text=volume.name), **entries}, origin="forecast", runs=runs)


def own_hours(own: Sharing, voxels: float, devices: int) -> Estimate:
    return own.at(devices).mapped(lambda rate: voxels / rate / SECONDS_PER_HOUR, "h")


def _hours_entries(forecast: VolumeForecast, volume: FamousVolume, devices: int) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    if forecast.own is not None:
        hours = own_hours(forecast.own, volume.voxels, devices)
        found[OWN] = _scaled_number(hours, 1.0, "h")
        found |= _energy_entries(forecast, forecast.own, volume.voxels, hours, devices)
    for row in gpus():
        found[_column_key(row)] = Number(value=_gpu_hours(row, volume.voxels, devices), unit="h")
    return found


def _gpu_hours(row: PublishedUnet, voxels: float, devices: int) -> float:
    return voxels / ((row.written_per_s or 1.0) * devices) / SECONDS_PER_HOUR


def _energy_entries(
    forecast: VolumeForecast, own: Sharing, voxels: float, hours: Estimate, devices: int
) -> dict[str, Entry]:
    if forecast.watts is not None:
        return {"energy": _scaled_number(hours, forecast.watts * devices / 1000, "kWh")}
    if own.joules_per_voxel is None:
        return {}
    if devices != own.smallest:
        return {"energy": Missing(reason=f"the meter was read with {own.smallest} device alone; --watts says more")}
    return {"energy": _scaled_number(own.joules_per_voxel, voxels / JOULES_PER_KWH, "kWh")}


def _prices_table(forecast: VolumeForecast, devices: int, each_hour: float) -> Table:
    price = JOB_PRICE
    columns = [Column(key=column.key, title=column.title, metric=price) for column in _columns(forecast)]
    rows = []
    for volume in forecast.volumes:
        entries: dict[str, Entry] = {}
        if forecast.own is not None:
            hours = own_hours(forecast.own, volume.voxels, devices)
            entries[OWN] = _scaled_number(hours, devices * each_hour, "")
        for row in gpus():
            entries[_column_key(row)] = Number(value=devices * each_hour * _gpu_hours(row, volume.voxels, devices))
        rows.append(_row(forecast, volume, entries))
    return Table(
        title=f"Price on {devices} device{'s' if devices != 1 else ''}, at {each_hour:g} an hour for each",
        columns=(Column(key="volume", title="volume", numeric=False), *columns),
        rows=tuple(rows),
        notes=("in the money that --price-per-hour is in; the same price for every kind of device",),
    )


def _scaled_number(figure: Estimate, factor: float, unit: str) -> Number:
    whole = figure.scaled(factor, unit)
    return Number(value=whole.value, low=whole.low, high=whole.high, unit=unit)


def _hours_figure(forecast: VolumeForecast, devices: int) -> Figure:
    series = []
    if forecast.own is not None:
        own = [(each.name, own_hours(forecast.own, each.voxels, devices)) for each in forecast.volumes]
        data = tuple(datum_of(name, hours) for name, hours in own)
        series.append(Series(name="this machine", role="predicted", data=data))
    for row in gpus():
        data = tuple(datum(each.name, _gpu_hours(row, each.voxels, devices)) for each in forecast.volumes)
        series.append(Series(name=_short_name(row), role="published", data=data, source=row.source))
    return Figure(
        key="volumes",
        kind="bars",
        title=f"Hours on {devices} device{'s' if devices != 1 else ''}",
        x=Axis(quantity="volume", along="category"),
        panels=(Panel(y=Axis(quantity="time", unit="h", scale="log"), series=tuple(series)),),
        caption="Voxels of each volume over the voxels that are written in an hour",
    )


def _closing(forecast: VolumeForecast) -> tuple[str, ...]:
    own = forecast.own
    if own is None:
        return ("`rigdyno run volume` measures this machine; then its hours stand beside the GPUs'.",)
    rate = own.at(own.smallest)
    shared = (
        f"every doubling of the devices keeps {show_percent(own.kept)} of the rate of each"
        if own.is_measured
        else "how several devices share a volume was not measured: `rigdyno run volume --ranks 2`"
    )
    largest = max(forecast.volumes, key=lambda each: each.voxels)
    needs = largest.voxels / (30 * 24 * SECONDS_PER_HOUR) / (rate.value / own.smallest)
    return (
        f"This machine writes {show_scaled(rate.value, 'voxel/s')} on {own.smallest}; {shared}. {largest.name} "
        f"in 30 days would take {needs:,.0f} such devices without any loss between them.",
    )


def _reach_warnings(forecast: VolumeForecast) -> list[str]:
    own = forecast.own
    if own is None or not own.is_measured:
        return []
    far = [count for count in forecast.devices if count > REACH * own.largest]
    if not far:
        return []
    return [f"{', '.join(map(str, far))} devices are more than {REACH} times the {own.largest} that were measured"]
