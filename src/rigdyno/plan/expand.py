"""From a request to a plan: the matrix of a suite or a workload, laid out for this machine."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rigdyno import catalogue
from rigdyno.contracts import Suite, SuiteRequest, Wanted
from rigdyno.errors import BadValue, MissingExtra, UnknownName, UsageError
from rigdyno.plan.budget import fitted, is_too_short, with_needs
from rigdyno.plan.build import (
    arrangement_of_ranks,
    is_function,
    known_options,
    scope_of,
    update_of,
    usual_arrangement,
    workload_of,
)
from rigdyno.plan.cells import cells_of
from rigdyno.plan.idle import idle_seconds, taken_by_idle, with_idle
from rigdyno.plan.load import Request, placed
from rigdyno.plan.noise import NoisePlan, noise_plan
from rigdyno.plan.options import require_searched, varied
from rigdyno.plan.preflight import Resources
from rigdyno.plan.ranks import most_ranks, threads_each
from rigdyno.plan.user_file import require_function
from rigdyno.schema.spec import Budget, Cell, Plan, Reach, RunSpec
from rigdyno.schema.system import System
from rigdyno.units import show_seconds

DEFAULT_SECONDS = 10.0
BUDGET_STEP_SECONDS, MOST_BUDGET_SECONDS = 10.0, 1e6  # of a budget that is recommended
SPARE_SHARE = 0.15  # of the planned time, for more processes where intervals are wide


def expand(request: Request, system: System, device: str, resources: Resources) -> Plan:
    """`device`: what to use where the request doesn't say."""
    with placed(request.places):
        return _expanded(request, system, device, resources)


def require_sense(request: Request) -> None:
    """What can be said without a look at the machine, which takes seconds: a slip of the finger is answered at once."""
    with placed(request.places):
        require_parts(request)
        if request.target not in catalogue.names("suite"):
            for wanted in of_workload(request, request.device or "cpu", None):
                with suppress(MissingExtra):  # that is a reason to skip a cell, not a mistake
                    workload_of(wanted.spec)
                    update_of(wanted.spec)


def _expanded(request: Request, system: System, device: str, resources: Resources) -> Plan:
    chosen = request.device or device
    require_parts(request)
    if chosen == "cpu" and request.threads is None and request.launcher and scope_of(request.launcher) == "elsewhere":
        raise UsageError(
            "this machine doesn't tell how many cores a rank on another has; add --threads, or --device", key="launcher"
        )
    suite = request.target if request.target in catalogue.names("suite") else None
    wanted = _of_suite(request, system, chosen) if suite else of_workload(request, chosen, system)
    return laid_out(wanted, request, system, resources, suite)


def laid_out(
    wanted: Sequence[Wanted], request: Request, system: System, resources: Resources, suite: str | None = None
) -> Plan:
    """What is wanted, in the time that there is."""
    refused = {cell.spec.key() for cell in _cells(wanted, system, resources) if cell.refusal is not None}
    room = Room(wanted, refused, request, system, resources)
    shows_idle = suite is not None and getattr(catalogue.load("suite", suite), "shows_idle", False)
    idle = idle_seconds(request.idle_seconds, resources.has_meter or shows_idle, request.target)
    cells, noise = room.laid_out(_left_by_idle(request.budget_seconds, idle), noisy=suite is not None)
    if suite is None:
        _complain_if_nothing_fits(cells)
    cells = with_idle(cells, idle)
    planned = sum(cell.seconds for cell in cells if _runs(cell)) + noise.seconds
    spare = 0.0
    if any(cell.spare for cell in cells):
        spare = SPARE_SHARE * planned if request.budget_seconds is None else request.budget_seconds - planned
    return Plan(
        name=plan_name(request.target),
        suite=suite,
        label=request.label,
        cells=(*cells, *noise.cells),
        reach=Reach(
            rendezvous=request.rendezvous, hosts=request.hosts, python=request.remote_python, slurm=request.slurm
        ),
        duel=noise.duel,
        noise_missing=noise.missing,
        budget_seconds=request.budget_seconds,
        spare_seconds=max(0.0, spare),
        beside=request.beside,
        foreseen=room.foreseen(cells, noisy=suite is not None),
    )


def _left_by_idle(budget_seconds: float | None, idle: float | None) -> float | None:
    if budget_seconds is None or idle is None:
        return budget_seconds
    left = budget_seconds - taken_by_idle(idle)
    if left <= 0:
        raise BadValue(f"a budget of {show_seconds(budget_seconds)} has no room for the idle rig; try a shorter --idle")
    return left


@dataclass(frozen=True)
class Room:
    """What is wanted, and what becomes of it in a given time."""

    wanted: Sequence[Wanted]
    refused: set[str]  # by their keys; what can't run here takes no time
    request: Request
    system: System
    resources: Resources

    def laid_out(self, seconds: float | None, *, noisy: bool) -> tuple[tuple[Cell, ...], NoisePlan]:
        """`noisy`: with pairs for the machine's own noise, unless they would take what verdicts need."""
        cells = self._cells(seconds)
        if not noisy:
            return cells, NoisePlan()
        noise = noise_plan(cells, seconds or sum(cell.seconds for cell in cells if _runs(cell)), self.resources)
        if seconds is None or not noise.cells:
            return cells, noise
        without = NoisePlan(missing="the budget has room for the suite's cells alone")
        try:
            beside = self._cells(seconds - noise.seconds)
        except BadValue:  # without the pairs they just fit
            return cells, without
        return (cells, without) if len(_too_short(beside)) > len(_too_short(cells)) else (beside, noise)

    def _cells(self, seconds: float | None) -> tuple[Cell, ...]:
        return _cells(self._fitted(seconds), self.system, self.resources)

    def _fitted(self, seconds: float | None) -> list[Wanted]:
        """What a budget leaves over goes to spare processes, where there are any, and else to longer ones."""
        if all(cell.spec.budget.is_job for cell in self.wanted):
            return list(self.wanted)  # jobs end with their steps: the suite has chosen how many there is time for
        if seconds is None:
            return with_needs(self.wanted)
        running = [cell for cell in self.wanted if cell.spec.key() not in self.refused]
        has_spare = any(cell.most > cell.repeat for cell in running)
        keep = self.request.repeat is not None
        found = iter(fitted(running, seconds, keep_repeats=keep, at_most=1.0 if has_spare else math.inf))
        return [cell if cell.spec.key() in self.refused else next(found) for cell in self.wanted]

    def foreseen(self, cells: Sequence[Cell], *, noisy: bool) -> str | None:
        """What can be said before anything has run: steps that are known to be long, and a time that is too short."""
        short = _too_short(cells)
        if not short or self.request.budget_seconds is None:
            return None
        names = ", ".join(dict.fromkeys(_name(cell.spec) for cell in short))
        foreseen = f"too short for a verdict, these will be SUSPECT: {names}"
        if self.request.cheap:  # the budget is one for several suites
            return foreseen
        seconds = self.request.budget_seconds
        while seconds < MOST_BUDGET_SECONDS:
            seconds = BUDGET_STEP_SECONDS * math.ceil(1.05 * seconds / BUDGET_STEP_SECONDS)
            if not _too_short(self.laid_out(seconds, noisy=noisy)[0]):
                break
        return f"{foreseen}; --budget {seconds:.0f}s would settle them"


def _runs(cell: Cell) -> bool:
    return cell.refusal is None and not cell.spare


def _too_short(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if _runs(cell) and cell.repeat == 1 and is_too_short(cell.spec)]


def _cells(wanted: Sequence[Wanted], system: System, resources: Resources) -> tuple[Cell, ...]:
    return tuple(cells_of(wanted, system, resources))


def _name(spec: RunSpec) -> str:
    return " ".join([spec.workload, *spec.named_options().values()])


def require_parts(request: Request) -> None:
    require_searched(request)
    wanted = {"update": request.update, "arrangement": request.arrangement, "launcher": request.launcher}
    for kind, name in wanted.items():
        if name is not None and name not in catalogue.names(kind):
            raise UnknownName(kind, name, catalogue.names(kind), key=kind)
    objection = _objection_to(request.launcher, request) if request.launcher is not None else None
    if objection is not None:
        raise UsageError(objection, key="launcher")


def _objection_to(launcher: str, request: Request) -> str | None:
    scope = scope_of(launcher)
    if scope == "nodes" and request.nodes == 1:
        return f"the launcher '{launcher}' is for several nodes; add --hosts, or --nodes and --rendezvous"
    if launcher == "ssh" and not request.hosts:
        return "the launcher 'ssh' needs to know where; add --hosts"
    if launcher == "by_hand" and request.hosts:
        return "--hosts are reached over ssh; leave out --launcher by_hand"
    if scope in ("process", "machine") and request.nodes > 1:
        return f"the launcher '{launcher}' starts ranks on this machine alone; leave out --launcher"
    if scope == "process" and (request.ranks or 1) > 1 and not _is_one_process(request):
        return f"the launcher '{launcher}' starts one process, not {request.ranks}; leave out --launcher"
    return None


def _is_one_process(request: Request) -> bool:
    """Whatever the number of its devices."""
    return request.arrangement is not None and catalogue.load("arrangement", request.arrangement).world == "devices"


def _of_suite(request: Request, system: System, device: str) -> Sequence[Wanted]:
    suite: Suite = catalogue.load("suite", request.target)()
    if request.update != "plain":
        raise UsageError(f"suite {request.target} chooses its own update; leave out --update", key="update")
    _require_taken(request, getattr(suite, "takes", ()))
    wanted = suite.cells(
        SuiteRequest(
            system=system,
            device=device,
            full=request.full,
            soak_seconds=request.soak_seconds,
            repeat=request.repeat,
            ranks=request.ranks,
            most_ranks=most_ranks(system, device),
            nodes=request.nodes,
            threads=request.threads,
            arrangement=request.arrangement,
            steps=request.steps,
            budget_seconds=request.budget_seconds,
            cards=request.cards,
            frameworks=request.frameworks,
            memory_bytes=request.memory_bytes,
            workload=request.workload,
            audit=request.audit,
            until=request.until,
            data=str(request.options["data"]) if request.options.get("data") else None,
            cheap=request.cheap,
        )
    )
    if request.arrangement not in (None, *(cell.spec.arrangement for cell in wanted)):
        raise UsageError(
            f"suite {request.target} chooses its own arrangement; leave out --arrangement", key="arrangement"
        )
    _require_known([cell.spec for cell in wanted], request)
    if SAVE in request.options:
        raise UsageError(
            "--save keeps what one run has trained; try `rigdyno run unet3d --save FILE`", key=f"set.{SAVE}"
        )
    return [
        Wanted(_adapted(spec, request), cell.repeat, cell.repeat if request.repeat is not None else cell.most)
        for cell in wanted
        for spec in varied(cell.spec, request, only_known=True)
    ]


SAVE = "save"  # the option of a workload that keeps what it has trained
OF_SOME_SUITES = {
    "cards": "cluster", "framework": "cluster", "beside": "cluster", "workload": "privacy", "audit": "privacy",
    "until": "privacy",
}  # fmt: skip


def _require_taken(request: Request, taken: Sequence[str]) -> None:
    """What only some suites can be asked."""
    fields = {"framework": "frameworks"}
    given = {name: getattr(request, fields.get(name, name)) for name in OF_SOME_SUITES}
    wrong = next((name for name, value in given.items() if value and name not in taken), None)
    if wrong is not None:
        raise UsageError(f"--{wrong} is for the suite {OF_SOME_SUITES[wrong]}; leave it out", key=wrong)


def _require_known(specs: Sequence[RunSpec], request: Request) -> None:
    """An option that no workload of the suite has is a mistake, not a wish."""
    known = {key for spec in specs for key in known_options(spec.workload, spec.update)}
    for key in (*request.options, *request.sweep):
        if key not in known:
            raise UnknownName(f"option in suite {request.target}", key, known, key=f"set.{key}")


def _adapted(spec: RunSpec, request: Request) -> RunSpec:
    changes: dict[str, Any] = {"seed": request.seed + spec.seed, "threads": request.threads or spec.threads}
    changes["launcher"] = _launcher(request, spec.launcher, spec.nodes)
    if request.steps is not None and not spec.budget.is_job:
        changes["budget"] = msgspec.structs.replace(spec.budget, max_steps=request.steps)
    return msgspec.structs.replace(spec, **changes)


def _launcher(request: Request, usual: str, nodes: int) -> str:
    """Over ssh or by hand, this machine is the first node: what has one node only runs on it as it always does."""
    if nodes > 1 and request.launcher is None:
        return "ssh" if request.hosts else "by_hand"
    return request.launcher or usual


def of_workload(request: Request, device: str, system: System | None) -> Sequence[Wanted]:
    """`system`: None where nobody has looked yet."""
    _require_target(request.target, {*request.options, *request.sweep})
    _require_taken(request, ())
    if request.full:
        raise UsageError("--full is for suites; a workload takes --set, --budget and --steps", key="full")
    budget = Budget(seconds=DEFAULT_SECONDS, max_steps=request.steps)
    if request.soak_seconds is not None:
        budget = Budget(seconds=request.soak_seconds, stop="clock")
    arrangement = request.arrangement or usual_arrangement(request.target)
    if request.arrangement is None and ((request.ranks or 1) > 1 or request.nodes > 1):
        arrangement = arrangement_of_ranks(request.target)
    kind = catalogue.load("arrangement", arrangement)
    launcher, several = kind.launcher, kind.world != "one"
    elsewhere = request.launcher is not None and scope_of(request.launcher) == "elsewhere"
    known = system if not elsewhere else None  # nothing of this machine tells of those
    ranks = request.ranks or (most_ranks(known, device) if several and known is not None else 1)
    base = RunSpec(
        workload=request.target,
        update=request.update,
        arrangement=arrangement,
        launcher=_launcher(request, launcher, request.nodes),
        world_size=ranks * request.nodes,
        nodes=request.nodes,
        device=device,
        threads=request.threads or (threads_each(known, device, ranks) if several and known is not None else None),
        pinned=several and device == "cpu",
        seed=request.seed,
        python=request.python,
        budget=budget,
    )
    specs = list(varied(base, request))
    if request.options.get(SAVE) and (len(specs) > 1 or (request.repeat or 1) > 1):
        raise UsageError("--save keeps the weights of one process: leave out --sweep and --repeat", key=f"set.{SAVE}")
    return [Wanted(spec, request.repeat or 1) for spec in specs]


def _require_target(target: str, options: set[str]) -> None:
    if not target:
        raise UsageError("what shall be run? `rigdyno list` shows what there is", key="target")
    if is_function(target):
        require_function(target, options - {"unit"})
    elif target.endswith(".py"):
        raise UsageError(f"which function of {target}? try {target}:step", key="target")
    elif target not in catalogue.names("workload"):
        known = (*catalogue.names("suite"), *catalogue.names("workload"))
        raise UnknownName("suite or workload", target, known, key="target")


def _complain_if_nothing_fits(cells: Sequence[Cell]) -> None:
    """Somebody who asks for one thing wants an answer, not a table with one skipped row."""
    if cells and all(cell.refusal is not None for cell in cells):
        raise BadValue(f"{cells[0].spec.workload}: {cells[0].refusal}")


def plan_name(target: str) -> str:
    stem = Path(target).name.replace(".py:", ".")
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem)[:60] or "run"
