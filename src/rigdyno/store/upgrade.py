"""Old records are upgraded on reading, one version at a time; the files themselves are never rewritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rigdyno.errors import DamagedRun, NewerStore
from rigdyno.schema.record import SCHEMA_VERSION

Raw = dict[str, Any]
Upgrade = Callable[[Raw], Raw]

UPGRADES: dict[int, Upgrade] = {}  # from this version to the next; version 1 is the first


def upgraded(raw: Any, where: str, upgrades: Mapping[int, Upgrade] = UPGRADES, current: int = SCHEMA_VERSION) -> Raw:
    """The record in today's form."""
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedRun(f"{where} has no schema_version")
    if version > current:
        raise NewerStore(
            f"{where} was written by a newer Rigdyno (schema {version}, this one reads {current}); upgrade it"
        )
    for step in range(version, current):
        raw = {**upgrades[step](raw), "schema_version": step + 1}
    return raw  # type: ignore[no-any-return]
