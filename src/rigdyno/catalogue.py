"""Finds things by file name, and imports them only when they are asked for.

`workloads/tensor_add.py` is the workload 'tensor_add'. An installed package adds its own through an entry point in the
group `rigdyno.workloads` (`rigdyno.probes`, ...). Files with a leading underscore are helpers, not entries.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rigdyno.contracts import Requirement, Unavailable
from rigdyno.errors import CatalogueError, MissingExtra, UnknownName

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Kind:
    folder: str
    has: tuple[str, ...] = ()  # what the file's one public class must have
    attribute: str | None = None  # or: the module's attribute that is the entry


KINDS = {
    "suite": Kind("suites", has=("cells", "present")),
    "workload": Kind(
        "workloads",
        has=(
            "unit",
            "framework",
            "version",
            "requires",
            "arrangement",
            "trains",
            "small",
            "refuses",
            "traps",
            "memory_bytes",
            "start_seconds",
            "step_seconds",
            "build",
        ),
    ),
    "update": Kind("updates", has=("framework", "requires", "private", "refuses", "prepare")),
    "arrangement": Kind("arrangements", has=("launcher", "world", "framework", "roles", "requires", "refuses", "run")),
    "framework": Kind(
        "frameworks",
        has=(
            "module",
            "requires",
            "has_no_accelerator",
            "accelerators",
            "versions",
            "threads",
            "prepare",
            "waiter",
            "in_use",
            "event",
            "elapsed_ns",
            "forget_peak_memory",
            "memory",
            "is_out_of_memory",
        ),
    ),
    "probe": Kind("probes", has=("hints", "availability", "open", "read", "close")),
    "launcher": Kind("launchers", has=("requires", "scope", "open")),
    "command": Kind("commands", attribute="command"),
    "format": Kind("report.formats", attribute="render"),
    "export": Kind("report.exports", attribute="document"),
    "conversion": Kind("report.conversions", attribute="write"),
    "figure": Kind("report.figures", attribute="chart"),
}


@cache
def names(kind: str) -> tuple[str, ...]:
    """Every entry of a kind, own and installed, without importing any of them."""
    return tuple(sorted({*_own_names(kind), *_installed(kind)}))


def load(kind: str, name: str) -> Any:
    """The entry: a class, a click command or a render function."""
    if name in _own_names(kind):
        return _entry_of(kind, importlib.import_module(f"rigdyno.{KINDS[kind].folder}.{name}"))
    installed = _installed(kind)
    if name not in installed:
        raise UnknownName(kind, name, names(kind))
    return _load_installed(kind, installed[name])


def summary(entry: Any) -> str:
    """The first line of the entry's docstring, as a title: without a full stop."""
    return (entry.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def defaults(kind: str, name: str) -> dict[str, Any]:
    """What an entry's options are where nobody sets them; none for what isn't in here."""
    if name not in names(kind):
        return {}
    fields = dataclasses.fields(load(kind, name))
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def missing(requirements: Iterable[Requirement]) -> Unavailable | None:
    """The first requirement that isn't installed, with the command that adds it."""
    for requirement in requirements:
        if importlib.util.find_spec(requirement.module) is None:
            return Unavailable(f"{requirement.module} is not installed", _command(requirement))
    return None


def demand(requirements: Iterable[Requirement], what: str) -> None:
    lacking = missing(requirements)
    if lacking is not None:
        raise MissingExtra(f"{what} can't run: {lacking.reason}; try {lacking.fix}")


def _command(requirement: Requirement) -> str:
    if requirement.command is not None:
        return requirement.command
    if requirement.extra is None:
        return f"pip install {requirement.module}"
    return f"pip install 'rigdyno[{requirement.extra}]'"


@cache
def _own_names(kind: str) -> frozenset[str]:
    """Each entry is a file, or a folder if it is a suite. Other folders hold what several entries share."""
    package = importlib.import_module(f"rigdyno.{KINDS[kind].folder}")
    found = [module for module in pkgutil.iter_modules(package.__path__) if kind == "suite" or not module.ispkg]
    return frozenset(module.name for module in found if not module.name.startswith("_"))


@cache
def _may_have_plugins() -> bool:
    """Whether some installed package names us. importlib.metadata takes a fifth of the time that `list` may take to be
    imported alone: it is asked only where there is something to find, or where that can't be told so simply."""
    return any(_names_us(Path(entry or ".")) for entry in sys.path)


def _names_us(folder: Path) -> bool:
    if not folder.is_dir():
        return folder.exists()  # a zip file: let importlib.metadata look into it
    with os.scandir(folder) as items:
        for item in items:
            if item.name.endswith((".dist-info", ".egg-info", ".egg")):
                points = Path(item.path, "entry_points.txt")
                if item.name.endswith(".egg") or (points.is_file() and b"[rigdyno." in points.read_bytes()):
                    return True
    return False


@cache
def _installed(kind: str) -> dict[str, EntryPoint]:
    if not _may_have_plugins():
        return {}
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=f"rigdyno.{KINDS[kind].folder}")}


def _load_installed(kind: str, point: EntryPoint) -> Any:
    try:
        entry = point.load()
    except (ImportError, AttributeError, NameError, SyntaxError, TypeError, ValueError) as error:
        raise CatalogueError(f"the {kind} '{point.name}' ({point.value}) can't be loaded: {error}") from error
    lacking = [name for name in KINDS[kind].has if not hasattr(entry, name)]
    if lacking:
        raise CatalogueError(f"the {kind} '{point.name}' ({point.value}) has no {', '.join(lacking)}")
    return entry


def _entry_of(kind: str, module: Any) -> Any:
    wanted = KINDS[kind]
    if wanted.attribute is not None:
        if not hasattr(module, wanted.attribute):
            raise CatalogueError(f"{module.__name__} must have '{wanted.attribute}'")
        return getattr(module, wanted.attribute)
    fitting = [
        thing
        for name, thing in vars(module).items()
        if isinstance(thing, type) and not name.startswith("_") and thing.__module__ == module.__name__
        if all(hasattr(thing, attribute) for attribute in wanted.has)
    ]
    if len(fitting) != 1:
        need = ", ".join(wanted.has)
        raise CatalogueError(f"{module.__name__} must have one public class with {need}; it has {len(fitting)}")
    return fitting[0]
