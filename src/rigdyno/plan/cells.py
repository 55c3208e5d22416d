"""From what is wanted to cells: everybody asked whether it works here, each refusal kept with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

from rigdyno.contracts import Wanted, Workload
from rigdyno.errors import MissingExtra
from rigdyno.plan.build import arrangement_of, is_function, scope_of, update_of, workload_of
from rigdyno.plan.preflight import Resources, what_would_fit
from rigdyno.schema.participant import Participant, laid_out
from rigdyno.schema.spec import Cell, RunSpec
from rigdyno.schema.system import System


def cells_of(wanted: Sequence[Wanted], system: System, resources: Resources) -> Iterator[Cell]:
    """Repeats go round by round, so that a drift of the machine hits all configurations alike; spare ones come last."""
    rounds = range(1, max((max(cell.repeat, cell.most) for cell in wanted), default=0) + 1)
    order = [(cell.spec, repeat, False) for repeat in rounds for cell in wanted if repeat <= cell.repeat]
    order += [(cell.spec, repeat, True) for repeat in rounds for cell in wanted if cell.repeat < repeat <= cell.most]
    digits = max(2, len(str(len(order))))  # names sort in the order that the cells run in
    for number, (spec, repeat, spare) in enumerate(order, start=1):
        cell = _cell(f"{number:0{digits}d}-{_slug(spec)}", spec, repeat, system, resources)
        if not spare or cell.refusal is None:
            yield msgspec.structs.replace(cell, spare=spare)


def _cell(stem: str, spec: RunSpec, repeat: int, system: System, resources: Resources) -> Cell:
    name = f"{stem}-r{repeat}" if repeat > 1 else stem
    try:
        workload = workload_of(spec)
        refusal = refusal_of(spec, workload, system, resources)
    except MissingExtra as error:
        return Cell(name=name, spec=spec, repeat=repeat, refusal=str(error), participants=_participants(spec))
    seconds = spec.budget.seconds + workload.start_seconds()
    memory = memory_of_all(spec, workload, system)
    return Cell(
        name=name,
        spec=spec,
        participants=_participants(spec),
        repeat=repeat,
        refusal=refusal,
        memory_bytes=memory,
        seconds=seconds,
    )


def _participants(spec: RunSpec) -> tuple[Participant, ...]:
    return laid_out(spec.world_size, spec.nodes, spec.device)


def refusal_of(spec: RunSpec, workload: Workload, system: System, resources: Resources) -> str | None:
    """The first objection; cheap ones first. What runs on other machines alone isn't judged by this one."""
    update, arrangement = update_of(spec), arrangement_of(spec)
    here = scope_of(spec.launcher) != "elsewhere"
    objection = (
        (here and (_no_such_device(spec.device, system) or workload.refuses(system, spec.device)))
        or update.refuses(workload)
        or arrangement.refuses(workload, update, spec.world_size)
        or (here and _trap(workload, spec.device))
    )
    if objection or not here:
        return objection or None
    too_large = resources.refusal(memory_of_all(spec, workload, system))
    if too_large is None:
        return None
    fitting = what_would_fit(workload, system, resources.shared_by(spec.world_size // spec.nodes))
    return f"{too_large}; {fitting}" if fitting else too_large


def _trap(workload: Workload, device: str) -> str | None:
    """A workload may name traps of `rigdyno doctor` that it would step into; they are about the CPU."""
    if device != "cpu":
        return None
    for name in getattr(workload, "traps", tuple)():
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
    return None if need is None else need * spec.world_size // spec.nodes


def _no_such_device(device: str, system: System) -> str | None:
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return None
    here = [accelerator for accelerator in system.accelerators if accelerator.torch_kind == kind]
    if not here:
        return f"no {kind} device here; try --device cpu"
    if number and (not number.isdecimal() or int(number) >= len(here)):
        return f"no device {device}: there are {len(here)}, counted from 0"
    return None


def _slug(spec: RunSpec) -> str:
    stem = Path(spec.workload).name.replace(".py:", ".") if is_function(spec.workload) else spec.workload
    ranks = [f"x{spec.world_size}"] if spec.world_size > 1 else []
    update = [spec.update] if spec.update != "plain" else []
    words = "-".join([stem, *update, *ranks, *(str(value) for value in spec.options.values())])
    return re.sub(r"[^A-Za-z0-9._-]+", "_", words)[:80].strip(".-")
