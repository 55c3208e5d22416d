"""The accelerators of frameworks, asked in a child process: a broken driver may crash or hang whoever asks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import msgspec

from rigdyno import catalogue
from rigdyno.contracts import DEFAULT_FRAMEWORK, Framework
from rigdyno.errors import CatalogueError
from rigdyno.rig.child import run_python
from rigdyno.schema.system import Accelerator

ASK_SECONDS = 60.0
BY_PREFERENCE = ("cuda", "rocm", "xpu", "mps")


@dataclass(frozen=True)
class Found:
    accelerators: tuple[Accelerator, ...] = ()
    reason: str | None = None  # why nothing could be looked for
    threads: int | None = None  # the framework's default on this rig
    versions: dict[str, str] = field(default_factory=dict)


def find_accelerators(seconds: float = ASK_SECONDS) -> Found:
    """Of every framework that is installed."""
    return together(_ask(name, seconds) for name in _installed())


def accelerators_here() -> tuple[Accelerator, ...]:
    """Without asking frameworks that were built for CPUs alone: loading one takes seconds."""
    asked = [name for name, framework in _installed().items() if not framework.has_no_accelerator()]
    return together(_ask(name, ASK_SECONDS) for name in asked).accelerators


def best_device(accelerators: Sequence[Accelerator]) -> str:
    by_kind = {accelerator.kind: accelerator.device_kind for accelerator in accelerators}
    return next((by_kind[kind] for kind in BY_PREFERENCE if kind in by_kind), "cpu")


def look_here(framework: Framework) -> Found:
    """In this very process, which must have a framework that it trusts."""
    try:
        return Found(accelerators=framework.accelerators(), threads=framework.threads(), versions=framework.versions())
    except (ImportError, OSError) as error:  # OSError: one of its libraries doesn't load
        return Found(reason=f"{framework.module} can't be imported: {error}")


def loaded_frameworks() -> list[Framework]:
    """Those that this process has imported by now."""
    return [framework for framework in _frameworks().values() if framework.module in sys.modules]


def together(found: Iterable[Found]) -> Found:
    """A kind of accelerator that two frameworks see is the same one, and the first of them tells of it."""
    everything = list(found)
    accelerators: list[Accelerator] = []
    versions: dict[str, str] = {}
    for each in everything:
        seen = {accelerator.kind for accelerator in accelerators}
        accelerators += [accelerator for accelerator in each.accelerators if accelerator.kind not in seen]
        versions = {**each.versions, **versions}
    return Found(
        accelerators=tuple(accelerators),
        reason=next((each.reason for each in everything if each.reason is not None), None),
        threads=next((each.threads for each in everything if each.threads is not None), None),
        versions=versions,
    )


def _frameworks() -> dict[str, Framework]:
    """The default first."""
    return _made(catalogue.names("framework"))


@cache  # asked at every row of a user's own loop
def _made(names: tuple[str, ...]) -> dict[str, Framework]:
    """Somebody's installed package may be broken, which `list` tells of: the others still answer."""
    found: dict[str, Framework] = {}
    for name in sorted(names, key=lambda name: name != DEFAULT_FRAMEWORK):
        with suppress(CatalogueError):
            found[name] = catalogue.load("framework", name)()
    return found


def _installed() -> dict[str, Framework]:
    """And the default in any case: that it is missing is an answer."""
    return {
        name: framework
        for name, framework in _frameworks().items()
        if name == DEFAULT_FRAMEWORK or catalogue.missing(framework.requires) is None
    }


def _ask(name: str, seconds: float) -> Found:
    end = run_python(["-m", "rigdyno.rig.devices", name], seconds)
    if not end.good:
        return Found(reason=f"asking {name} for its devices {end.how()}")
    try:
        return msgspec.json.decode(end.output.strip().rpartition("\n")[2], type=Found)
    except msgspec.DecodeError as error:
        return Found(reason=f"asking {name} for its devices gave no answer ({error})")


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(look_here(catalogue.load("framework", sys.argv[1])())).decode() + "\n")
