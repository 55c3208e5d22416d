"""Find suites, workloads and other entries by file name, and import them only when they are needed.

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

from rigdyno import contracts
from rigdyno.base.errors import CatalogueError, MissingExtra, UnknownName
from rigdyno.contracts import Requirement, Unavailable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Kind:
    folder: str
    base: type | None = None  # the entry is the only public subclass of this class in the module
    attribute: str | None = None  # alternatively, the entry is this attribute of the module


KINDS = {
    "suite": Kind("suites", contracts.Suite),
    "workload": Kind("workloads", contracts.Workload),
    "update": Kind("updates", contracts.Update),
    "arrangement": Kind("arrangements", contracts.Arrangement),
    "framework": Kind("frameworks", contracts.Framework),
    "probe": Kind("probes", contracts.Probe),
    "launcher": Kind("launchers", contracts.Launcher),
    "command": Kind("commands", attribute="command"),
    "format": Kind("report.formats", attribute="render"),
    "export": Kind("report.exports", attribute="write"),
    "figure": Kind("report.figures", attribute="chart"),
}


@cache
def names(kind: str) -> tuple[str, ...]:
    """Return the names of all entries of a kind, built-in and installed, without importing them."""
    return tuple(sorted({*_own_names(kind), *_installed(kind)}))


def load(kind: str, name: str) -> Any:
    """Return an entry: a class, a click command or a render function."""
    if name in _own_names(kind):
        return _find_entry(kind, importlib.import_module(f"rigdyno.{KINDS[kind].folder}.{name}"))
    installed = _installed(kind)
    if name not in installed:
        raise UnknownName(kind, name, names(kind))
    return _load_installed(kind, installed[name])


def summary(entry: Any) -> str:
    """Return the first line of the entry's docstring without the full stop, as a title."""
    return (entry.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def defaults(kind: str, name: str) -> dict[str, Any]:
    """Return the default options of an entry; empty for names that aren't in the catalogue."""
    if name not in names(kind):
        return {}
    fields = dataclasses.fields(load(kind, name))
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def find_missing(requirements: Iterable[Requirement]) -> Unavailable | None:
    """Return the first requirement that isn't installed, with the command that installs it."""
    for requirement in requirements:
        if importlib.util.find_spec(requirement.module) is None:
            return Unavailable(f"{requirement.module} is not installed", _install_command(requirement))
    return None


def require_installed(requirements: Iterable[Requirement], what: str) -> None:
    lacking = find_missing(requirements)
    if lacking is not None:
        raise MissingExtra(f"{what} can't run: {lacking.reason}; try {lacking.fix}")


def _install_command(requirement: Requirement) -> str:
    if requirement.command is not None:
        return requirement.command
    if requirement.extra is None:
        return f"pip install {requirement.module}"
    return f"pip install 'rigdyno[{requirement.extra}]'"


@cache
def _own_names(kind: str) -> frozenset[str]:
    """Return the names of the built-in entries.

    Each is a file, or a folder if it is a suite. Other folders contain code that several entries share.
    """
    package = importlib.import_module(f"rigdyno.{KINDS[kind].folder}")
    found = [module for module in pkgutil.iter_modules(package.__path__) if kind == "suite" or not module.ispkg]
    return frozenset(module.name for module in found if not module.name.startswith("_"))


@cache
def _may_have_plugins() -> bool:
    """Return whether an installed package may have entry points for Rigdyno.

    Importing importlib.metadata takes a fifth of the time that `list` may take. So it is imported only if this quick
    look finds an entry point, or can't exclude one.
    """
    return any(_has_entry_points(Path(entry or ".")) for entry in sys.path)


def _has_entry_points(folder: Path) -> bool:
    if not folder.is_dir():
        return folder.exists()  # a zip file: importlib.metadata must look into it
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
    base = KINDS[kind].base
    if base is not None and not (isinstance(entry, type) and issubclass(entry, base)):
        raise CatalogueError(f"the {kind} '{point.name}' ({point.value}) is not a subclass of {_path(base)}")
    missing = sorted(getattr(entry, "__abstractmethods__", ()))
    if missing:
        raise CatalogueError(f"the {kind} '{point.name}' ({point.value}) has no {', '.join(missing)}")
    return entry


def _find_entry(kind: str, module: Any) -> Any:
    wanted = KINDS[kind]
    if wanted.attribute is not None:
        if not hasattr(module, wanted.attribute):
            raise CatalogueError(f"{module.__name__} must have '{wanted.attribute}'")
        return getattr(module, wanted.attribute)
    base = wanted.base
    assert base is not None
    fitting = [
        thing
        for name, thing in vars(module).items()
        if isinstance(thing, type) and not name.startswith("_") and thing.__module__ == module.__name__
        if issubclass(thing, base)
    ]
    if len(fitting) != 1:
        raise CatalogueError(f"{module.__name__} must have one public subclass of {_path(base)}; it has {len(fitting)}")
    return fitting[0]


def _path(base: type) -> str:
    return f"rigdyno.contracts.{base.__name__}"
