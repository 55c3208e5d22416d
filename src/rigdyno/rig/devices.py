"""Finds the accelerators that frameworks can use, in a child process: a broken driver may crash or hang it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import CatalogueError
from rigdyno.contracts import DEFAULT_FRAMEWORK, Framework
from rigdyno.rig.child import run_python
from rigdyno.rig.system import describe_system
from rigdyno.schema.system import Accelerator, System

ASK_SECONDS = 60.0

BY_PREFERENCE = ("cuda", "rocm", "xpu", "mps")


@dataclass(frozen=True)
class FoundDevices:
    accelerators: tuple[Accelerator, ...] = ()
    reason: str | None = None  # why the search failed
    threads: int | None = None  # the framework's default on this machine
    versions: dict[str, str] = field(default_factory=dict)


def find_accelerators(seconds: float = ASK_SECONDS) -> FoundDevices:
    """Ask every installed framework."""
    return merge_devices(_ask(name, seconds) for name in _installed())


def find_accelerators_here() -> tuple[Accelerator, ...]:
    """Ask every installed framework except those built for CPUs only: loading one takes seconds."""
    asked = [name for name, framework in _installed().items() if not framework.has_no_accelerator()]
    return merge_devices(_ask(name, ASK_SECONDS) for name in asked).accelerators


def choose_best_device(accelerators: Sequence[Accelerator]) -> str:
    by_kind = {accelerator.kind: accelerator.device_kind for accelerator in accelerators}
    return next((by_kind[kind] for kind in BY_PREFERENCE if kind in by_kind), "cpu")


def find_devices_here(framework: Framework) -> FoundDevices:
    """Ask the framework in this process, which a broken driver may crash."""
    try:
        return FoundDevices(
            accelerators=framework.accelerators(), threads=framework.threads(), versions=framework.versions()
        )
    except (ImportError, OSError) as error:  # OSError: one of its libraries doesn't load
        return FoundDevices(reason=f"{framework.module} can't be imported: {error}")


def find_loaded_frameworks() -> list[Framework]:
    """Return the frameworks that this process has imported."""
    return [framework for framework in _frameworks().values() if framework.module in sys.modules]


def merge_devices(found: Iterable[FoundDevices]) -> FoundDevices:
    """Merge the answers of several frameworks. If two report the same kind of accelerator, the first answer counts."""
    answers = list(found)
    accelerators: list[Accelerator] = []
    versions: dict[str, str] = {}
    for each in answers:
        seen = {accelerator.kind for accelerator in accelerators}
        accelerators += [accelerator for accelerator in each.accelerators if accelerator.kind not in seen]
        versions = {**each.versions, **versions}
    return FoundDevices(
        accelerators=tuple(accelerators),
        reason=next((each.reason for each in answers if each.reason is not None), None),
        threads=next((each.threads for each in answers if each.threads is not None), None),
        versions=versions,
    )


def _frameworks() -> dict[str, Framework]:
    """Return all frameworks, the default first."""
    return _make_frameworks(catalogue.names("framework"))


@cache  # called at every row of a user's own loop
def _make_frameworks(names: tuple[str, ...]) -> dict[str, Framework]:
    """Make the frameworks, and skip those whose package is broken; `rigdyno list` reports them."""
    frameworks: dict[str, Framework] = {}
    for name in sorted(names, key=lambda name: name != DEFAULT_FRAMEWORK):
        with suppress(CatalogueError):
            frameworks[name] = catalogue.load("framework", name)()
    return frameworks


def _installed() -> dict[str, Framework]:
    """Return the installed frameworks, and always the default, so that its absence is reported."""
    return {
        name: framework
        for name, framework in _frameworks().items()
        if name == DEFAULT_FRAMEWORK or catalogue.find_missing(framework.requires) is None
    }


def _ask(name: str, seconds: float) -> FoundDevices:
    end = run_python(["-m", "rigdyno.rig.devices", name], seconds)
    if not end.succeeded:
        return FoundDevices(reason=f"asking {name} for its devices {end.describe()}")
    try:
        return msgspec.json.decode(end.output.strip().rpartition("\n")[2], type=FoundDevices)
    except msgspec.DecodeError as error:
        return FoundDevices(reason=f"asking {name} for its devices gave no readable answer ({error})")


@dataclass(frozen=True)
class Rig:
    """This machine."""

    system: System
    device: str  # the best one


def describe_rig() -> Rig:
    accelerators = find_accelerators_here()
    return Rig(describe_system(accelerators), choose_best_device(accelerators))


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(find_devices_here(catalogue.load("framework", sys.argv[1])())).decode() + "\n")
