"""From names and options to the things themselves: in the plan to ask them, in the worker to use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast, get_type_hints

import msgspec

from rigdyno import catalogue
from rigdyno.contracts import ANY_FRAMEWORK, DEFAULT_FRAMEWORK, Arrangement, Framework, Scope, Update, Workload
from rigdyno.errors import BadValue, UnknownName
from rigdyno.schema.record import UNNAMED
from rigdyno.schema.spec import INFER, OF_UPDATE, OWN_LOOP, RunSpec, Value


def workload_of(spec: RunSpec) -> Workload:
    if is_function(spec.workload):
        return function_workload(spec.workload, spec.options)
    kind = catalogue.load("workload", spec.workload)
    catalogue.demand(kind.requires, f"workload {spec.workload}")
    own = {name: value for name, value in spec.resolved.items() if not name.startswith(OF_UPDATE)}
    return cast(Workload, configured(kind, spec.workload, own))


def benchmark_version(spec: RunSpec) -> int:
    """Asked of the workload's class: a record is written even where its extra is missing."""
    if is_function(spec.workload):
        return function_workload(spec.workload, {}).version
    return int(catalogue.load("workload", spec.workload).version)


def update_of(spec: RunSpec) -> Update:
    kind = catalogue.load("update", spec.update)
    catalogue.demand(kind.requires, f"update {spec.update}")
    own = {n.removeprefix(OF_UPDATE): value for n, value in spec.resolved.items() if n.startswith(OF_UPDATE)}
    return cast(Update, configured(kind, spec.update, own))


def arrangement_of(spec: RunSpec) -> Arrangement:
    kind = catalogue.load("arrangement", spec.arrangement)
    catalogue.demand(kind.requires, f"arrangement {spec.arrangement}")
    return cast(Arrangement, kind())


def ranks_of(spec: RunSpec) -> int:
    """How many processes step."""
    return 1 if catalogue.load("arrangement", spec.arrangement).world == "devices" else spec.world_size


def framework_of(workload: Workload) -> Framework:
    name = DEFAULT_FRAMEWORK if workload.framework == ANY_FRAMEWORK else workload.framework
    kind = catalogue.load("framework", name)
    catalogue.demand(kind.requires, f"framework {name}")
    return cast(Framework, kind())


def scope_of(launcher: str) -> Scope:
    scope: Scope = catalogue.load("launcher", launcher).scope
    return scope


def usual_arrangement(target: str) -> str:
    if is_function(target):
        return function_workload(target, {}).arrangement
    return str(catalogue.load("workload", target).arrangement)


def arrangement_of_ranks(target: str) -> str:
    """For several ranks where nobody chooses one: the first of the workload's framework; one for any is a choice."""
    framework = "" if is_function(target) else str(catalogue.load("workload", target).framework)
    known = {name: catalogue.load("arrangement", name) for name in catalogue.names("arrangement")}
    fitting = [
        name for name, kind in known.items() if kind.world == "ranks" and kind.framework == framework != ANY_FRAMEWORK
    ]
    return fitting[0] if fitting else "ddp"


def is_function(target: str) -> bool:
    """FILE.py:FUNCTION, a user's own step."""
    return ".py:" in target


def is_own_loop(spec: RunSpec) -> bool:
    """Measured from inside a user's script: nobody else can run it again."""
    return spec.launcher == OWN_LOOP


def is_inference(spec: RunSpec) -> bool:
    """Done by `rigdyno infer`, which knows itself what is left of a volume."""
    return spec.launcher == INFER


def function_workload(target: str, options: Mapping[str, Value]) -> Workload:
    from rigdyno.workloads._function import Function

    file, _, function = target.rpartition(":")
    arguments = dict(options)
    unit = str(arguments.pop("unit", UNNAMED))
    return Function(file=file, function=function, unit=unit, arguments=arguments)


def configured(kind: type, name: str, options: Mapping[str, Value]) -> Any:
    """The constructor is the configuration: an unknown key or a wrong type is an error before anything runs."""
    known = option_types(kind)
    for key in options:
        if key not in known:
            raise UnknownName(f"option of {name}", key, known, key=f"set.{key}")
    return kind(**{key: converted(value, known[key], key) for key, value in options.items()})


@cache
def option_types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def known_options(workload: str, update: str) -> dict[str, Any]:
    """All that can be set where this workload is trained by this update, with the types."""
    of_update = option_types(catalogue.load("update", update))
    return {
        **option_types(catalogue.load("workload", workload)),
        **{OF_UPDATE + name: wanted for name, wanted in of_update.items()},
    }


def unknown_option(key: str, workload: str, update: str, beside: Iterable[str] = ()) -> UnknownName:
    """`beside`: what else can be set where options of the workload can."""
    known = known_options(workload, update)
    if key.startswith(OF_UPDATE):
        of_update = [name for name in known if name.startswith(OF_UPDATE)]
        return UnknownName(f"option of the update {update}", key, of_update, key=f"set.{key}")
    return UnknownName(f"option of {workload}", key, (*known, *beside), key=f"set.{key}")


def converted(value: Value, wanted: Any, key: str, *, text: bool = False) -> Value:
    """The value as the option's type; `text` admits a number written as text, as on a command line."""
    try:
        return cast(Value, msgspec.convert(value, wanted, strict=not text))
    except msgspec.ValidationError:
        raise BadValue(f"{key} must be {_named(wanted)}, not {value!r}", key=f"set.{key}") from None


def _named(wanted: Any) -> str:
    choices = getattr(wanted, "__args__", None)
    if choices and all(isinstance(choice, str) for choice in choices):
        return f"one of {', '.join(choices)}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(wanted, str(wanted))
