"""Build workloads, updates, arrangements and suites from their names and options, for planning and in the worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast, get_origin

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import UnknownName
from rigdyno.contracts import (
    ANY_FRAMEWORK,
    DEFAULT_FRAMEWORK,
    Arrangement,
    Finds,
    Framework,
    Launcher,
    Suite,
    Update,
    Workload,
)
from rigdyno.contracts.options import convert_finite, option_types, wrong_value
from rigdyno.plan.request import Request
from rigdyno.schema.record import UNNAMED
from rigdyno.schema.spec import INFER, OF_UPDATE, OWN_LOOP, Cell, Reach, RunSpec, Value, is_endpoint


def workload_of(spec: RunSpec) -> Workload:
    """Build the workload of a configuration."""
    if is_function(spec.workload):
        return function_workload(spec.workload, spec.options)
    kind = catalogue.load("workload", spec.workload)
    catalogue.require_installed(kind.requires, f"workload {spec.workload}")
    own = {name: value for name, value in spec.resolved.items() if not name.startswith(OF_UPDATE)}
    return cast(Workload, build_entry(kind, spec.workload, own))


def benchmark_version(spec: RunSpec) -> int:
    """Return the workload's version. It is read from the class: a record is written even if an extra is missing."""
    if is_function(spec.workload):
        return function_workload(spec.workload, {}).version
    return int(catalogue.load("workload", spec.workload).version)


def suite_of(request: Request) -> Suite:
    """Build a suite from those of the request's options that the suite itself has."""
    kind = catalogue.load("suite", request.target)
    known = option_types(kind)
    options = {
        key: convert_option(value, known[key], key, text=key in request.text_keys)
        for key, value in request.options.items()
        if key in known
    }
    return cast(Suite, kind(**options))


def update_of(spec: RunSpec) -> Update:
    kind = catalogue.load("update", spec.update)
    catalogue.require_installed(kind.requires, f"update {spec.update}")
    own = {n.removeprefix(OF_UPDATE): value for n, value in spec.resolved.items() if n.startswith(OF_UPDATE)}
    return cast(Update, build_entry(kind, spec.update, own))


def arrangement_of(spec: RunSpec) -> Arrangement:
    kind = catalogue.load("arrangement", spec.arrangement)
    catalogue.require_installed(kind.requires, f"arrangement {spec.arrangement}")
    return cast(Arrangement, kind())


def count_ranks(spec: RunSpec) -> int:
    """Return the number of processes that run steps."""
    return 1 if catalogue.load("arrangement", spec.arrangement).world == "devices" else spec.world_size


def framework_of(workload: Workload) -> Framework:
    name = DEFAULT_FRAMEWORK if workload.framework == ANY_FRAMEWORK else workload.framework
    kind = catalogue.load("framework", name)
    catalogue.require_installed(kind.requires, f"framework {name}")
    return cast(Framework, kind())


def launcher_of(name: str) -> type[Launcher]:
    kind: type[Launcher] = catalogue.load("launcher", name)
    return kind


def can_reach_nodes(reach: Reach, cells: Iterable[Cell]) -> bool:
    """Return whether a stored plan still says how to reach the nodes of these cells."""
    hosts, endpoint = len(reach.hosts), is_endpoint(reach.rendezvous)
    needs = (
        (launcher_of(cell.spec.launcher).finds_nodes_by, cell.spec.nodes) for cell in cells if cell.spec.has_budget
    )
    return all((way != "hosts" or hosts >= max(1, nodes)) and (way != "rendezvous" or endpoint) for way, nodes in needs)


def launcher_finding_nodes_by(way: Finds) -> str:
    """Return the name of the launcher that finds other nodes in this way."""
    return next(name for name in catalogue.names("launcher") if launcher_of(name).finds_nodes_by == way)


def usual_arrangement(target: str) -> str:
    if is_function(target):
        return function_workload(target, {}).arrangement
    return str(catalogue.load("workload", target).arrangement)


def arrangement_of_ranks(target: str) -> str:
    """Return the default arrangement for several ranks: the first one made for the workload's framework alone, or ddp.

    An arrangement that supports several frameworks is never a default: the user must choose it."""
    framework = "" if is_function(target) else str(catalogue.load("workload", target).framework)
    known = {name: catalogue.load("arrangement", name) for name in catalogue.names("arrangement")}
    fitting = [name for name, kind in known.items() if kind.world == "ranks" and kind.frameworks == (framework,)]
    return fitting[0] if fitting else "ddp"


def is_function(target: str) -> bool:
    """Return whether the target is a user's own step, written as FILE.py:FUNCTION."""
    return ".py:" in target


def is_own_loop(spec: RunSpec) -> bool:
    """Return whether the cell was measured from inside a user's script: Rigdyno can't run it again."""
    return spec.launcher == OWN_LOOP


def is_inference(spec: RunSpec) -> bool:
    """Return whether the cell belongs to `rigdyno infer`, which itself keeps track of what is left of a volume."""
    return spec.launcher == INFER


def function_workload(target: str, options: Mapping[str, Value]) -> Workload:
    from rigdyno.workloads.common.user_function import Function

    file, _, function = target.rpartition(":")
    arguments = dict(options)
    unit = str(arguments.pop("unit", UNNAMED))
    return Function(file=file, function=function, unit=unit, arguments=arguments)


def build_entry(kind: type, name: str, options: Mapping[str, Value]) -> Any:
    """Build an entry from its options. An unknown key or a wrong type is an error before anything runs.

    Entries are immutable, so equal options give the same object: planning builds each configuration once."""
    known = option_types(kind)
    for key in options:
        if key not in known:
            raise UnknownName(f"option of {name}", key, known, key=f"set.{key}")
    return _build_once(kind, tuple((key, type(value), value) for key, value in sorted(options.items())))


@lru_cache(maxsize=1024)
def _build_once(kind: type, options: tuple[tuple[str, type, Value], ...]) -> Any:
    known = option_types(kind)
    return kind(**{key: convert_option(value, known[key], key) for key, _, value in options})


def known_options(workload: str, update: str) -> dict[str, Any]:
    """Return the options of a workload and of its update, with their types."""
    update_types = option_types(catalogue.load("update", update))
    return {
        **option_types(catalogue.load("workload", workload)),
        **{OF_UPDATE + name: wanted for name, wanted in update_types.items()},
    }


def unknown_option(key: str, workload: str, update: str, beside: Iterable[str] = ()) -> UnknownName:
    """Return the error for an unknown option. `beside`: further valid names to suggest."""
    known = known_options(workload, update)
    if key.startswith(OF_UPDATE):
        update_types = [name for name in known if name.startswith(OF_UPDATE)]
        return UnknownName(f"option of the update {update}", key, update_types, key=f"set.{key}")
    return UnknownName(f"option of {workload}", key, (*known, *beside), key=f"set.{key}")


SWITCH_WORDS = {"yes": True, "on": True, "no": False, "off": False}


def convert_option(value: Any, wanted: Any, key: str, *, text: bool = False) -> Any:
    """Convert a value to the type of an option. `text`: it comes from a command line, where "12" may be a number, "yes"
    a switch and "1,2" a list."""
    given = value
    if text and isinstance(value, str):
        if get_origin(wanted) is tuple:
            given = [part.strip() for part in value.split(",") if part.strip()]
        elif wanted is bool:
            given = SWITCH_WORDS.get(value.lower(), value)
    try:
        return convert_finite(given, wanted, strict=not text)
    except msgspec.ValidationError:
        raise wrong_value(key, _as_number(value) if text else value, wanted) from None


def _as_number(value: Any) -> Any:
    """Return the number that a text stands for, or the value itself, to quote it in a message."""
    for kind in (int, float):
        try:
            return kind(value)
        except (TypeError, ValueError):
            continue
    return value
