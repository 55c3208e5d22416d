"""The figures of a soak in a table, whatever it soaked."""

from __future__ import annotations

from rigdyno.schema.estimate import Number
from rigdyno.schema.measured import Soak
from rigdyno.schema.metric import KEPT_SHARE, THROUGHPUT
from rigdyno.schema.view import Column, Entry, Share, Text

TITLE = "Burst against sustained"


def soak_columns(unit: str | None) -> tuple[Column, ...]:
    """`unit`: of the rates; None: they have several."""
    rate = THROUGHPUT if unit is None else THROUGHPUT.in_unit(unit)
    return (
        Column(key="burst", title="burst", metric=rate),
        Column(key="sustained", title="sustained", metric=rate),
        Column(key="kept", title="kept", metric=KEPT_SHARE),
        Column(key="held", title="held", numeric=False),
    )


def soak_entries(soak: Soak, unit: str) -> dict[str, Entry]:
    kept: dict[str, Entry] = {"kept": Share(value=soak.sustained / soak.burst, of="burst")} if soak.burst else {}
    return {
        "burst": Number(value=soak.burst, unit=unit),
        "sustained": Number(value=soak.sustained, unit=unit),
        **kept,
        "held": Text(text="THROTTLED" if soak.throttled else "no" if soak.fell else "yes"),
    }
