"""How many ranks this machine has room for, and what each of them gets."""

from __future__ import annotations

from rigdyno.schema.system import System


def most_ranks(system: System, device: str) -> int:
    """One a card; without cards one a core."""
    if device.partition(":")[0] == "cpu":
        return system.cpu.usable_cores
    return max(1, len(system.accelerators_for(device)))


def threads_each(system: System, device: str, ranks: int) -> int | None:
    """Cores are shared out; beside cards they are left to the framework."""
    return max(1, system.cpu.usable_cores // ranks) if device == "cpu" else None
