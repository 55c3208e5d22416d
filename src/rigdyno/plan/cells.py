"""Turn wanted configurations into cells. What can't run on this machine is kept as a refused cell with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import MissingExtra
from rigdyno.base.units import show_bytes
from rigdyno.contracts import ANY_FRAMEWORK, Arrangement, Wanted, Workload
from rigdyno.plan.budget import search_seconds, start_of_update
from rigdyno.plan.build import (
    arrangement_of,
    arrangement_of_ranks,
    count_ranks,
    is_function,
    launcher_of,
    update_of,
    workload_of,
)
from rigdyno.plan.resources import Resources, what_would_fit
from rigdyno.schema.spec import Cell, RunSpec, assign_participants
from rigdyno.schema.system import System


def cells_of(wanted: Sequence[Wanted], system: System, resources: Resources) -> Iterator[Cell]:
    """Yield the cells in the order in which they run.

    Repeats are interleaved: a drift of the machine affects all configurations alike. Spare repeats come last."""
    asked = [(each, _make_cell(each.spec, system, resources)) for each in wanted]  # built once, whatever the repeats
    rounds = range(1, max((max(each.repeat, each.most) for each in wanted), default=0) + 1)
    order = [(cell, repeat, False) for repeat in rounds for each, cell in asked if repeat <= each.repeat]
    order += [(cell, repeat, True) for repeat in rounds for each, cell in asked if each.repeat < repeat <= each.most]
    digits = max(2, len(str(len(order))))  # names sort in the order that the cells run in
    for number, (cell, repeat, spare) in enumerate(order, start=1):
        if not spare or cell.refusal is None:
            name = f"{number:0{digits}d}-{_make_slug(cell.spec)}" + (f"-r{repeat}" if repeat > 1 else "")
            yield msgspec.structs.replace(cell, name=name, repeat=repeat, spare=spare)


def _make_cell(spec: RunSpec, system: System, resources: Resources) -> Cell:
    """Return an unnamed cell with its refusal, memory and time."""
    cell = Cell(name="", spec=spec, participants=assign_participants(count_ranks(spec), spec.nodes, spec.device))
    try:
        workload = workload_of(_minimise_searched(spec))
        refusal = refusal_of(spec, workload, system, resources)
    except MissingExtra as error:
        return msgspec.structs.replace(cell, refusal=str(error))
    seconds = spec.budget.seconds + workload.start_seconds() + start_of_update(spec) + search_seconds(spec)
    need = memory_of_all(spec, workload, system)
    memory = max(spec.largest.values(), default=need) if spec.device == "cpu" else need
    return msgspec.structs.replace(cell, refusal=refusal, memory_bytes=memory, seconds=seconds)


def _minimise_searched(spec: RunSpec) -> RunSpec:
    """Return the configuration with every searched option set to 1: if that is refused, so is every larger value."""
    return msgspec.structs.replace(spec, options={**spec.options, **dict.fromkeys(spec.largest, 1)})


def refusal_of(spec: RunSpec, workload: Workload, system: System, resources: Resources) -> str | None:
    """Return the first objection, cheap checks first. A cell that only runs elsewhere isn't judged by this machine."""
    update, arrangement = update_of(spec), arrangement_of(spec)
    here = launcher_of(spec.launcher).scope != "elsewhere"
    objection = (
        (here and (_find_device_objection(spec, system) or workload.refuses(system, spec.device)))
        or _find_framework_objection(spec, workload)
        or update.refuses(workload)
        or arrangement.refuses(workload, update, spec)
        or (here and _find_trap(workload, spec.device))
    )
    if objection or not here:
        return objection or None
    return _find_memory_objection(spec, workload, system, resources) or _find_start_objection(
        spec, workload, arrangement
    )


def _find_memory_objection(spec: RunSpec, workload: Workload, system: System, resources: Resources) -> str | None:
    if spec.largest:
        if not launcher_of(spec.launcher).starts_processes:
            return f"a search ends processes that take too much memory: leave out --launcher {spec.launcher}"
        return _find_search_objection(max(spec.largest.values()), spec.device, system, resources)
    too_large = resources.refusal(memory_of_all(spec, workload, system))
    if too_large is None:
        return None
    fitting = what_would_fit(workload, system, resources.shared_by(count_ranks(spec) // spec.nodes))
    return f"{too_large}; {fitting}" if fitting else too_large


def _find_start_objection(spec: RunSpec, workload: Workload, arrangement: Arrangement) -> str | None:
    """Ask the launcher whether it can start the cell. It may take seconds to try, so it is asked last."""
    return launcher_of(arrangement.launcher)().refuses(spec, workload.framework)


def _find_framework_objection(spec: RunSpec, workload: Workload) -> str | None:
    """Refuse parts of different frameworks, and an update for a workload that trains nothing."""
    own = workload.framework
    if own not in (ANY_FRAMEWORK, *catalogue.names("framework")):
        return f"this workload needs the framework '{own}', which is not installed; docs/adding.md tells how to add one"
    if not workload.trains and spec.update != "plain":
        return f"the update '{spec.update}' changes how a model is trained, and this workload trains none"
    kinds = ("arrangement", "update") if workload.trains else ("arrangement",)
    for kind in kinds:
        frameworks = _list_frameworks(kind, getattr(spec, kind))
        if own not in frameworks and ANY_FRAMEWORK not in (*frameworks, own):
            known = " and ".join(frameworks)
            what = f"the {kind} '{getattr(spec, kind)}' is for {known}, and this workload is for {own}"
            return f"{what}; {_suggest_choice(kind, own)}"
    return None


def _list_frameworks(kind: str, name: str) -> tuple[str, ...]:
    """Return the frameworks that an update or an arrangement supports."""
    entry = catalogue.load(kind, name)
    return (entry.framework,) if kind == "update" else entry.frameworks


def _suggest_choice(kind: str, framework: str) -> str:
    choices = {name: _list_frameworks(kind, name) for name in catalogue.names(kind)}
    fitting = [name for name, others in choices.items() if {framework, ANY_FRAMEWORK} & set(others)]
    if fitting:
        return f"try --{kind} {' or '.join(fitting)}"
    return f"no {kind} for {framework} is installed; docs/adding.md tells how to add one"


def _find_search_objection(size: int, device: str, system: System, resources: Resources) -> str | None:
    """Refuse a search that may use more memory than the device has; for a CPU, more than is free on the machine."""
    if device == "cpu":
        return resources.refusal(size)
    has = [each.memory_bytes for each in system.accelerators_for(device) if each.memory_bytes]
    if not has or size <= min(has):
        return None
    return f"{show_bytes(size)} are to be filled, and the device has {show_bytes(min(has))}"


def _find_trap(workload: Workload, device: str) -> str | None:
    """Return the first known trap that affects the workload on this machine; all of them concern the CPU."""
    if device != "cpu":
        return None
    for name in workload.traps():
        found = trap_of(name)
        if found is not None:
            return found
    return None


@cache
def trap_of(name: str) -> str | None:
    from rigdyno.rig.traps import TRAPS

    finding = TRAPS[name]()
    if finding.status != "trap":
        return None
    return f"{finding.sentence}; {finding.fix}" if finding.fix else finding.sentence


def memory_of_all(spec: RunSpec, workload: Workload, system: System) -> int | None:
    """Return the estimated memory of all ranks of a node together; None if unknown."""
    need = workload.memory_bytes(system)
    return None if need is None else need * count_ranks(spec) // spec.nodes


def _find_device_objection(spec: RunSpec, system: System) -> str | None:
    kind, _, number = spec.device.partition(":")
    if kind == "cpu":
        return None
    here = len(system.accelerators_for(kind))
    if not here:
        return f"no {kind} device here; try --device cpu"
    if number and (not number.isdecimal() or int(number) >= here):
        return f"no device {spec.device}: there are {here}, counted from 0"
    wanted = spec.world_size // spec.nodes
    if not number and wanted > here:
        there = "there is one" if here == 1 else f"there are {here}"
        return f"{wanted} {kind} devices are needed on a node, and {there}; try --ranks {here}"
    return None


def _make_slug(spec: RunSpec) -> str:
    stem = Path(spec.workload).name.replace(".py:", ".") if is_function(spec.workload) else spec.workload
    ranks = [f"x{spec.world_size}"] if spec.world_size > 1 else []
    update = [spec.update] if spec.update != "plain" else []
    largest = ["largest" if spec.share == 1.0 else f"{Fraction(spec.share)}-of-largest"] if spec.largest else []
    usual = spec.world_size == 1 or spec.arrangement == arrangement_of_ranks(spec.workload)
    words = "-".join(
        [
            stem,
            *update,
            *ranks,
            *([] if usual else [spec.arrangement]),
            *(str(value) for value in spec.options.values()),
            *largest,
        ]
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "_", words)[:80].strip(".-")
