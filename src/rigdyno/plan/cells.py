"""From what is wanted to cells: everybody asked whether it works here, each refusal kept with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import msgspec

from rigdyno import catalogue
from rigdyno.contracts import ANY_FRAMEWORK, Arrangement, Update, Wanted, Workload
from rigdyno.errors import MissingExtra
from rigdyno.plan.budget import search_seconds, start_of_update
from rigdyno.plan.build import (
    arrangement_of,
    arrangement_of_ranks,
    is_function,
    ranks_of,
    scope_of,
    update_of,
    workload_of,
)
from rigdyno.plan.preflight import Resources, what_would_fit
from rigdyno.schema.participant import laid_out
from rigdyno.schema.spec import Cell, RunSpec
from rigdyno.schema.system import System
from rigdyno.units import show_bytes


def cells_of(wanted: Sequence[Wanted], system: System, resources: Resources) -> Iterator[Cell]:
    """Repeats go round by round, so that a drift of the machine hits all configurations alike; spare ones come last."""
    asked = [(each, _cell(each.spec, system, resources)) for each in wanted]  # once, however many processes it gets
    rounds = range(1, max((max(each.repeat, each.most) for each in wanted), default=0) + 1)
    order = [(cell, repeat, False) for repeat in rounds for each, cell in asked if repeat <= each.repeat]
    order += [(cell, repeat, True) for repeat in rounds for each, cell in asked if each.repeat < repeat <= each.most]
    digits = max(2, len(str(len(order))))  # names sort in the order that the cells run in
    for number, (cell, repeat, spare) in enumerate(order, start=1):
        if not spare or cell.refusal is None:
            name = f"{number:0{digits}d}-{_slug(cell.spec)}" + (f"-r{repeat}" if repeat > 1 else "")
            yield msgspec.structs.replace(cell, name=name, repeat=repeat, spare=spare)


def _cell(spec: RunSpec, system: System, resources: Resources) -> Cell:
    """Without a name."""
    cell = Cell(name="", spec=spec, participants=laid_out(ranks_of(spec), spec.nodes, spec.device))
    try:
        workload = workload_of(_smallest(spec))
        refusal = refusal_of(spec, workload, system, resources)
    except MissingExtra as error:
        return msgspec.structs.replace(cell, refusal=str(error))
    seconds = spec.budget.seconds + workload.start_seconds() + start_of_update(spec) + search_seconds(spec)
    need = memory_of_all(spec, workload, system)
    memory = max(spec.largest.values(), default=need) if spec.device == "cpu" else need
    return msgspec.structs.replace(cell, refusal=refusal, memory_bytes=memory, seconds=seconds)


def _smallest(spec: RunSpec) -> RunSpec:
    """With every option that is to be as large as fits at its least: what refuses that refuses all of them."""
    return msgspec.structs.replace(spec, options={**spec.options, **dict.fromkeys(spec.largest, 1)})


def refusal_of(spec: RunSpec, workload: Workload, system: System, resources: Resources) -> str | None:
    """The first objection; cheap ones first. What runs on other machines alone isn't judged by this one."""
    update, arrangement = update_of(spec), arrangement_of(spec)
    here = scope_of(spec.launcher) != "elsewhere"
    objection = (
        (here and (_no_such_device(spec, system) or workload.refuses(system, spec.device)))
        or _mixed_frameworks(spec, workload, update, arrangement)
        or update.refuses(workload)
        or arrangement.refuses(workload, update, spec)
        or (here and _trap(workload, spec.device))
    )
    if objection or not here:
        return objection or None
    return _too_large(spec, workload, system, resources) or _not_startable(spec, workload, arrangement)


def _too_large(spec: RunSpec, workload: Workload, system: System, resources: Resources) -> str | None:
    if spec.largest:
        if spec.launcher == "inline":
            return "a search ends processes that take too much memory: leave out --launcher inline"
        return _no_room_for(max(spec.largest.values()), spec.device, system, resources)
    too_large = resources.refusal(memory_of_all(spec, workload, system))
    if too_large is None:
        return None
    fitting = what_would_fit(workload, system, resources.shared_by(ranks_of(spec) // spec.nodes))
    return f"{too_large}; {fitting}" if fitting else too_large


def _not_startable(spec: RunSpec, workload: Workload, arrangement: Arrangement) -> str | None:
    """What only a trial tells, which takes seconds: asked last, of launchers that have a `refuses`."""
    launcher = catalogue.load("launcher", arrangement.launcher)()
    refuses: Callable[[RunSpec, str], str | None] | None = getattr(launcher, "refuses", None)
    return None if refuses is None else refuses(spec, workload.framework)


def _mixed_frameworks(spec: RunSpec, workload: Workload, update: Update, arrangement: Arrangement) -> str | None:
    """All that works together is of one framework. What trains nothing has no use for an update."""
    own = workload.framework
    if own not in (ANY_FRAMEWORK, *catalogue.names("framework")):
        return f"this workload needs the framework '{own}', which is not installed; docs/adding.md tells how to add one"
    if not workload.trains and spec.update != "plain":
        return f"the update '{spec.update}' changes how a model is trained, and this workload trains none"
    parts = {"arrangement": _frameworks(arrangement), **({"update": _frameworks(update)} if workload.trains else {})}
    for kind, frameworks in parts.items():
        if own not in frameworks and ANY_FRAMEWORK not in (*frameworks, own):
            known = " and ".join(frameworks)
            what = f"the {kind} '{getattr(spec, kind)}' is for {known}, and this workload is for {own}"
            return f"{what}; {_other_choice(kind, own)}"
    return None


def _frameworks(part: Update | Arrangement) -> tuple[str, ...]:
    """Of most things one, or any; some are for several."""
    found: tuple[str, ...] = getattr(part, "frameworks", (part.framework,))
    return found


def _other_choice(kind: str, framework: str) -> str:
    choices = {name: _frameworks(catalogue.load(kind, name)) for name in catalogue.names(kind)}
    fitting = [name for name, others in choices.items() if {framework, ANY_FRAMEWORK} & set(others)]
    if fitting:
        return f"try --{kind} {' or '.join(fitting)}"
    return f"no {kind} for {framework} is installed; docs/adding.md tells how to add one"


def _no_room_for(size: int, device: str, system: System, resources: Resources) -> str | None:
    """For what an option may fill: memory of the device, which on a CPU is the machine's."""
    if device == "cpu":
        return resources.refusal(size)
    has = [each.memory_bytes for each in system.accelerators_for(device) if each.memory_bytes]
    if not has or size <= min(has):
        return None
    return f"{show_bytes(size)} are to be filled, and the device has {show_bytes(min(has))}"


def _trap(workload: Workload, device: str) -> str | None:
    """They are about the CPU."""
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
    """Of all ranks of a node together."""
    need = workload.memory_bytes(system)
    return None if need is None else need * ranks_of(spec) // spec.nodes


def _no_such_device(spec: RunSpec, system: System) -> str | None:
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


def _slug(spec: RunSpec) -> str:
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
