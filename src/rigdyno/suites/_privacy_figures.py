"""The figures of the privacy suite: an epoch of each system here, and of the document's three machines."""

from __future__ import annotations

from rigdyno.reference.published import private_training
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum, datum_of, figure_key
from rigdyno.suites import _privacy_tables as tables
from rigdyno.suites._privacy_systems import BATCH
from rigdyno.suites._privacy_tables import NAMES, Shown
from rigdyno.suites._soak import verdict_of


def all_of(shown: Shown) -> tuple[Figure, ...]:
    own = _measured(shown)
    return (*(() if own is None else (own, _batches(shown))), *_published())


def _measured(shown: Shown) -> Figure | None:
    if not shown.timed():
        return None
    data = tuple(
        datum_of(shown.name_of(system, each), tables.epoch_seconds(each), verdict=verdict_of(each))
        for system, each in shown.rows
    )
    return Figure(
        key="epoch-time",
        kind="bars",
        title="Time of an epoch, by what protects the data",
        x=Axis(quantity="system", along="category"),
        panels=(
            Panel(
                y=Axis(quantity="time of an epoch", unit="s"),
                series=(Series(name="this rig", role="measured", data=data),),
            ),
        ),
        caption=tables.settings(shown),
        counted="steps",
    )


def _batches(shown: Shown) -> Figure:
    data = tuple(
        datum(shown.name_of(system, each), float(batch))
        for system, each in shown.rows
        if isinstance(batch := each.spec.options.get(BATCH), int)
    )
    return Figure(
        key="largest-batch",
        kind="bars",
        title="The largest batch that fits",
        x=Axis(quantity="system", along="category"),
        panels=(Panel(y=Axis(quantity="batch"), series=(Series(name="this rig", role="measured", data=data),)),),
        caption=f"{tables.settings(shown)}; what an engine keeps for each sample decides it",
    )


def _published() -> list[Figure]:
    found = private_training()
    machines = list(dict.fromkeys(row.device.removesuffix(" (SEV)") for row in found))
    return [_machine(device) for device in machines]


def _machine(device: str) -> Figure:
    rows = [row for row in private_training() if row.device.startswith(device)]
    data = tuple(datum(NAMES[row.system], row.seconds) for row in rows if row.seconds is not None)
    return Figure(
        key=figure_key("published", device),
        kind="bars",
        title=f"Published: {device}",
        x=Axis(quantity="system", along="category"),
        panels=(
            Panel(
                y=Axis(quantity="time of an epoch", unit="s"),
                series=(Series(name=device, role="published", data=data, source=rows[0].source),),
            ),
        ),
        caption="EfficientNet-B0 on CIFAR-100, the largest batch that fitted",
    )
