"""The figures of the privacy suite: an epoch of each system here, and on the document's three machines."""

from __future__ import annotations

from rigdyno.reference.published import load_private_training
from rigdyno.report.sections import find_verdict
from rigdyno.schema.figure import Axis, Figure, Panel, Series, datum, datum_of, figure_key
from rigdyno.suites.privacy import tables
from rigdyno.suites.privacy.systems import BATCH
from rigdyno.suites.privacy.tables import NAMES, PrivacyResults


def make_figures(results: PrivacyResults) -> tuple[Figure, ...]:
    own = _epoch_figure(results)
    return (*(() if own is None else (own, _batch_figure(results))), *_published_figures())


def _epoch_figure(results: PrivacyResults) -> Figure | None:
    if not results.with_times():
        return None
    data = tuple(
        datum_of(results.name_of(system, each), tables.epoch_seconds(each), verdict=find_verdict(each))
        for system, each in results.rows
    )
    return Figure(
        key="epoch-time",
        kind="bars",
        title="Time of an epoch, by what protects the data",
        x=Axis(quantity="system", along="category"),
        panels=(
            Panel(
                y=Axis(quantity="time of an epoch", unit="s"),
                series=(Series(name="this machine", role="measured", data=data),),
            ),
        ),
        caption=tables.settings(results),
        counted="steps",
    )


def _batch_figure(results: PrivacyResults) -> Figure:
    data = tuple(
        datum(results.name_of(system, each), float(batch))
        for system, each in results.rows
        if isinstance(batch := each.spec.options.get(BATCH), int)
    )
    return Figure(
        key="largest-batch",
        kind="bars",
        title="The largest batch that fits",
        x=Axis(quantity="system", along="category"),
        panels=(Panel(y=Axis(quantity="batch"), series=(Series(name="this machine", role="measured", data=data),)),),
        caption=f"{tables.settings(results)}; what an engine keeps for each sample decides it",
    )


def _published_figures() -> list[Figure]:
    found = load_private_training()
    machines = list(dict.fromkeys(row.device.removesuffix(" (SEV)") for row in found))
    return [_machine_figure(device) for device in machines]


def _machine_figure(device: str) -> Figure:
    rows = [row for row in load_private_training() if row.device.startswith(device)]
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
