"""From a request to cells: the matrix laid out, everybody asked whether it works, each refusal kept with its reason."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from rigdyno import catalogue
from rigdyno.contracts import Suite, SuiteRequest, Wanted, Workload
from rigdyno.errors import BadValue, MissingExtra, UnknownName, UsageError
from rigdyno.plan.budget import fitted
from rigdyno.plan.build import arrangement_of, converted, is_function, option_types, update_of, workload_of
from rigdyno.plan.load import Request
from rigdyno.plan.preflight import Resources, what_would_fit
from rigdyno.plan.user_file import require_function
from rigdyno.schema.spec import Budget, Cell, Plan, RunSpec, Value
from rigdyno.schema.system import System

DEFAULT_SECONDS = 10.0


def expand(request: Request, system: System, device: str, resources: Resources) -> Plan:
    """`device`: what to use where the request doesn't say."""
    with _placed(request):
        return _expanded(request, system, device, resources)


def require_sense(request: Request) -> None:
    """What can be said without a look at the machine, which takes seconds: a slip of the finger is answered at once."""
    with _placed(request):
        _require_parts(request)
        if request.target not in catalogue.names("suite"):
            for wanted in _of_workload(request, request.device or "cpu"):
                with suppress(MissingExtra):  # that is a reason to skip a cell, not a mistake
                    workload_of(wanted.spec)


@contextmanager
def _placed(request: Request) -> Iterator[None]:
    """Says where in a plan file it stands, if something in it is wrong."""
    try:
        yield
    except UsageError as error:
        place = _place(error, request)
        if not place:
            raise
        raise BadValue(f"{place}: {error}") from None


def _place(error: UsageError, request: Request) -> str:
    """Where in a plan file the option stands that the message speaks of; else the file, if there is one."""
    spoken_of = [key for key in request.places if key and re.search(rf"(^|'){re.escape(key)}('| )", str(error))]
    return request.places.get(spoken_of[0] if spoken_of else "", "")


def _expanded(request: Request, system: System, device: str, resources: Resources) -> Plan:
    chosen = request.device or device
    _require_parts(request)
    suite = request.target if request.target in catalogue.names("suite") else None
    wanted = _of_suite(request, system, chosen) if suite else _of_workload(request, chosen)
    if request.budget_seconds is not None:
        wanted = fitted(wanted, request.budget_seconds)
    cells = tuple(_cells(wanted, system, resources))
    if suite is None:
        _complain_if_nothing_fits(cells)
    return Plan(name=_plan_name(request.target), suite=suite, label=request.label, cells=cells)


def _require_parts(request: Request) -> None:
    wanted = {"update": request.update, "arrangement": request.arrangement, "launcher": request.launcher or "process"}
    for kind, name in wanted.items():
        if name not in catalogue.names(kind):
            raise UnknownName(kind, name, catalogue.names(kind))


def _of_suite(request: Request, system: System, device: str) -> Sequence[Wanted]:
    suite: Suite = catalogue.load("suite", request.target)()
    wanted = suite.cells(
        SuiteRequest(
            system=system,
            device=device,
            full=request.full,
            soak_seconds=request.soak_seconds,
            repeat=request.repeat,
        )
    )
    _require_known([cell.spec for cell in wanted], request)
    return [
        Wanted(_adapted(spec, request), cell.repeat)
        for cell in wanted
        for spec in _varied(cell.spec, request, only_known=True)
    ]


def _require_known(specs: Sequence[RunSpec], request: Request) -> None:
    """An option that no workload of the suite has is a mistake, not a wish."""
    known = {key for spec in specs for key in option_types(catalogue.load("workload", spec.workload))}
    for key in (*request.options, *request.sweep):
        if key not in known:
            raise UnknownName(f"option in suite {request.target}", key, known)


def _adapted(spec: RunSpec, request: Request) -> RunSpec:
    changes: dict[str, Any] = {"seed": request.seed, "threads": request.threads or spec.threads}
    if request.launcher:
        changes["launcher"] = request.launcher
    return msgspec.structs.replace(spec, **changes)


def _of_workload(request: Request, device: str) -> Sequence[Wanted]:
    _require_target(request.target)
    budget = Budget(seconds=DEFAULT_SECONDS)
    if request.soak_seconds is not None:
        budget = Budget(seconds=request.soak_seconds, stop="clock")
    base = RunSpec(
        workload=request.target,
        update=request.update,
        arrangement=request.arrangement,
        launcher=request.launcher or "process",
        device=device,
        threads=request.threads,
        seed=request.seed,
        budget=budget,
    )
    return [Wanted(spec, request.repeat or 1) for spec in _varied(base, request)]


def _require_target(target: str) -> None:
    if not target:
        raise UsageError("what shall be run? `rigdyno list` shows what there is")
    if is_function(target):
        require_function(target)
    elif target.endswith(".py"):
        raise UsageError(f"which function of {target}? try {target}:step")
    elif target not in catalogue.names("workload"):
        known = (*catalogue.names("suite"), *catalogue.names("workload"))
        raise UnknownName("suite or workload", target, known)


def _varied(base: RunSpec, request: Request, *, only_known: bool = False) -> Iterator[RunSpec]:
    """The base with the set options, once for every combination of the swept ones."""
    types = {} if is_function(base.workload) else option_types(catalogue.load("workload", base.workload))
    mine = [key for key in request.sweep if not only_known or key in types]
    fixed = {key: value for key, value in request.options.items() if not only_known or key in types}
    for values in itertools.product(*(request.sweep[key] for key in mine)):
        given = {**fixed, **dict(zip(mine, values, strict=True))}
        options = {key: _typed(base.workload, key, value, types, request) for key, value in given.items()}
        yield msgspec.structs.replace(base, options={**base.options, **options})


def _typed(workload: str, key: str, value: Value, types: dict[str, Any], request: Request) -> Value:
    text = key in request.text_keys
    if is_function(workload):
        return _storable(key, _literal(value) if text else value)
    if key not in types:
        raise UnknownName(f"option of {workload}", key, types)
    return _storable(key, converted(value, types[key], key, text=text))


def _storable(key: str, value: Value) -> Value:
    """A record is JSON in UTF-8, which has no NaN, no infinity and no stray bytes."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue(f"{key} must be a finite number, not {value!r}")
    if isinstance(value, str) and not value.isascii() and value.encode("utf-8", "replace").decode() != value:
        raise BadValue(f"{key} must be UTF-8 text, not {value!r}")
    return value


def _literal(value: Value) -> Value:
    """For a user's function nobody knows the types: what looks like a number is one."""
    lowered = str(value).lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(str(value))
        except ValueError:
            continue
    return value


def _cells(wanted: Sequence[Wanted], system: System, resources: Resources) -> Iterator[Cell]:
    """Repeats go round by round, so that a drift of the machine hits all configurations alike."""
    rounds = max((cell.repeat for cell in wanted), default=0)
    number = 0
    for repeat in range(1, rounds + 1):
        for cell in wanted:
            if repeat <= cell.repeat:
                number += 1
                yield _cell(number, cell.spec, repeat, system, resources)


def _cell(number: int, spec: RunSpec, repeat: int, system: System, resources: Resources) -> Cell:
    name = f"{number:02d}-{_slug(spec)}" + (f"-r{repeat}" if repeat > 1 else "")
    try:
        workload = workload_of(spec)
        refusal = refusal_of(spec, workload, system, resources)
    except MissingExtra as error:
        return Cell(name=name, spec=spec, repeat=repeat, refusal=str(error))
    seconds = spec.budget.seconds + workload.start_seconds()
    memory = workload.memory_bytes(system)
    return Cell(name=name, spec=spec, repeat=repeat, refusal=refusal, memory_bytes=memory, seconds=seconds)


def refusal_of(spec: RunSpec, workload: Workload, system: System, resources: Resources) -> str | None:
    """The first objection; cheap ones first."""
    update, arrangement = update_of(spec), arrangement_of(spec)
    objection = (
        _no_such_device(spec.device, system)
        or workload.refuses(system, spec.device)
        or update.refuses(workload)
        or arrangement.refuses(workload, update, spec.world_size)
    )
    if objection:
        return objection
    too_large = resources.refusal(workload.memory_bytes(system))
    if too_large is None:
        return None
    fitting = what_would_fit(workload, system, resources)
    return f"{too_large}; {fitting}" if fitting else too_large


def _no_such_device(device: str, system: System) -> str | None:
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return None
    here = [accelerator for accelerator in system.accelerators if _device_kind(accelerator.kind) == kind]
    if not here:
        return f"no {kind} device here; try --device cpu"
    if number and (not number.isdecimal() or int(number) >= len(here)):
        return f"no device {device}: there are {len(here)}, counted from 0"
    return None


def _device_kind(kind: str) -> str:
    """torch calls an AMD card 'cuda' too."""
    return "cuda" if kind == "rocm" else kind


def _complain_if_nothing_fits(cells: Sequence[Cell]) -> None:
    """Somebody who asks for one thing wants an answer, not a table with one skipped row."""
    if cells and all(cell.refusal is not None for cell in cells):
        raise BadValue(f"{cells[0].spec.workload}: {cells[0].refusal}")


def _slug(spec: RunSpec) -> str:
    stem = Path(spec.workload).name.replace(".py:", ".") if is_function(spec.workload) else spec.workload
    options = "-".join(str(value) for value in spec.options.values())
    return re.sub(r"[^A-Za-z0-9._-]+", "_", f"{stem}-{options}" if options else stem)[:80].strip(".-")


def _plan_name(target: str) -> str:
    stem = Path(target).name.replace(".py:", ".")
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem)[:60] or "run"
