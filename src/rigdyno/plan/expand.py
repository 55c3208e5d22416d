"""Turn a request into a plan: list the cells of a suite or a workload, and fit them to this machine and its budget."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, MissingExtra, UnknownName, UsageError
from rigdyno.base.units import show_seconds
from rigdyno.contracts import Machine, Wanted
from rigdyno.contracts.options import option_types
from rigdyno.plan.baselines import NoisePlan, idle_seconds, noise_plan, taken_by_idle, with_idle
from rigdyno.plan.budget import fit_into_budget, is_too_short, with_needs
from rigdyno.plan.build import (
    arrangement_of_ranks,
    is_function,
    known_options,
    launcher_finding_nodes_by,
    launcher_of,
    suite_of,
    update_of,
    usual_arrangement,
    workload_of,
)
from rigdyno.plan.cells import cells_of
from rigdyno.plan.options import expand_sweep, require_searched
from rigdyno.plan.request import Request, locate_errors
from rigdyno.plan.resources import Resources, most_ranks, threads_each
from rigdyno.plan.user_file import require_function
from rigdyno.schema.spec import Budget, Cell, Reach, RunPlan, RunSpec
from rigdyno.schema.system import System

DEFAULT_SECONDS = 10.0

BUDGET_STEP_SECONDS, MOST_BUDGET_SECONDS = 10.0, 1e6  # step and maximum of a recommended budget

SPARE_SHARE = 0.15  # of the planned time, for additional processes where intervals are wide

SAVE = "save"  # the workload option that names the file for the trained weights


def expand(request: Request, system: System, device: str, resources: Resources) -> RunPlan:
    """Return the plan of a request. `device`: the device to use if the request names none."""
    with locate_errors(request.places):
        return _expand(request, system, device, resources)


def require_sense(request: Request) -> None:
    """Refuse what is wrong on any machine. Inspecting the machine takes seconds; a typing error is reported at once."""
    with locate_errors(request.places):
        require_parts(request)
        if request.target not in catalogue.names("suite"):
            for wanted in workload_cells(request, request.device or "cpu", None):
                with suppress(MissingExtra):  # a reason to skip a cell, not a mistake in the request
                    workload_of(wanted.spec)
                    update_of(wanted.spec)


def _expand(request: Request, system: System, device: str, resources: Resources) -> RunPlan:
    chosen = request.device or device
    require_parts(request)
    if (
        chosen == "cpu"
        and request.threads is None
        and request.launcher
        and launcher_of(request.launcher).scope == "elsewhere"
    ):
        raise UsageError(
            "the number of cores of a rank on another machine is unknown; add --threads, or --device", key="launcher"
        )
    suite = request.target if request.target in catalogue.names("suite") else None
    wanted = _list_suite_cells(request, system, chosen) if suite else workload_cells(request, chosen, system)
    return plan_cells(wanted, request, system, resources, suite)


def plan_cells(
    wanted: Sequence[Wanted], request: Request, system: System, resources: Resources, suite: str | None = None
) -> RunPlan:
    """Return the plan of the wanted configurations, fitted into the request's budget."""
    refused = {cell.spec.key() for cell in _make_cells(wanted, system, resources) if cell.refusal is not None}
    fitter = CellFitter(wanted, refused, request, system, resources)
    chosen = suite_of(request) if suite is not None else None
    shows_idle = chosen is not None and chosen.shows_idle
    idle = idle_seconds(request.idle_seconds, resources.has_meter or shows_idle, request.target)
    cells, noise = fitter.fit_cells(_subtract_idle(request.budget_seconds, idle), noisy=suite is not None)
    if suite is None:
        _require_runnable(cells)
    cells = with_idle(cells, idle)
    planned = sum(cell.seconds for cell in cells if _will_run(cell)) + noise.seconds
    spare = 0.0
    if any(cell.spare for cell in cells):
        spare = SPARE_SHARE * planned if request.budget_seconds is None else request.budget_seconds - planned
    return RunPlan(
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
        beside=None if chosen is None else chosen.earlier_run,
        foreseen=fitter.warn_of_short_cells(cells, noisy=suite is not None),
    )


def _subtract_idle(budget_seconds: float | None, idle: float | None) -> float | None:
    if budget_seconds is None or idle is None:
        return budget_seconds
    left = budget_seconds - taken_by_idle(idle)
    if left <= 0:
        raise BadValue(
            f"a budget of {show_seconds(budget_seconds)} is too short to measure the idle machine; try a shorter --idle"
        )
    return left


@dataclass(frozen=True)
class CellFitter:
    """Fits the wanted configurations into a given time."""

    wanted: Sequence[Wanted]
    refused: set[str]  # keys of the configurations that can't run here; they take no time
    request: Request
    system: System
    resources: Resources

    def fit_cells(self, seconds: float | None, *, noisy: bool) -> tuple[tuple[Cell, ...], NoisePlan]:
        """Return the cells for a budget, and with `noisy` the pairs that measure the noise floor.

        The pairs are left out if they would take time that verdicts need."""
        cells = self._make_cells(seconds)
        if not noisy:
            return cells, NoisePlan()
        noise = noise_plan(cells, seconds or sum(cell.seconds for cell in cells if _will_run(cell)), self.resources)
        if seconds is None or not noise.cells:
            return cells, noise
        without = NoisePlan(missing="the budget has room for the suite's cells alone")
        try:
            shortened = self._make_cells(seconds - noise.seconds)
        except BadValue:  # the cells fit only without the pairs
            return cells, without
        return (cells, without) if len(_find_too_short(shortened)) > len(_find_too_short(cells)) else (shortened, noise)

    def _make_cells(self, seconds: float | None) -> tuple[Cell, ...]:
        return _make_cells(self._fit_wanted(seconds), self.system, self.resources)

    def _fit_wanted(self, seconds: float | None) -> list[Wanted]:
        """Give the configurations their times. Time left over is kept for spare processes; without any, cells are
        longer than asked for."""
        if all(cell.spec.budget.is_job for cell in self.wanted):
            return list(self.wanted)  # a job ends with its last step; the suite has chosen a number that fits
        if seconds is None:
            return with_needs(self.wanted)
        running = [cell for cell in self.wanted if cell.spec.key() not in self.refused]
        has_spare = any(cell.most > cell.repeat for cell in running)
        keep = self.request.repeat is not None
        found = iter(fit_into_budget(running, seconds, keep_repeats=keep, at_most=1.0 if has_spare else math.inf))
        return [cell if cell.spec.key() in self.refused else next(found) for cell in self.wanted]

    def warn_of_short_cells(self, cells: Sequence[Cell], *, noisy: bool) -> str | None:
        """Return a warning about cells that are too short for a verdict, with a sufficient budget; None if none is."""
        short = _find_too_short(cells)
        if not short or self.request.budget_seconds is None:
            return None
        names = ", ".join(dict.fromkeys(_describe_spec(cell.spec) for cell in short))
        warning = f"too short for a verdict, these will be SUSPECT: {names}"
        if self.request.cheap:  # several suites share the budget
            return warning
        seconds = self.request.budget_seconds
        while seconds < MOST_BUDGET_SECONDS:
            seconds = BUDGET_STEP_SECONDS * math.ceil(1.05 * seconds / BUDGET_STEP_SECONDS)
            if not _find_too_short(self.fit_cells(seconds, noisy=noisy)[0]):
                break
        return f"{warning}; --budget {seconds:.0f}s would settle them"


def _will_run(cell: Cell) -> bool:
    return cell.refusal is None and not cell.spare


def _find_too_short(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if _will_run(cell) and cell.repeat == 1 and is_too_short(cell.spec)]


def _make_cells(wanted: Sequence[Wanted], system: System, resources: Resources) -> tuple[Cell, ...]:
    return tuple(cells_of(wanted, system, resources))


def _describe_spec(spec: RunSpec) -> str:
    return " ".join([spec.workload, *spec.named_options().values()])


def require_parts(request: Request) -> None:
    """Refuse an unknown update, arrangement or launcher, and a launcher that doesn't suit the request."""
    require_searched(request)
    wanted = {"update": request.update, "arrangement": request.arrangement, "launcher": request.launcher}
    for kind, name in wanted.items():
        if name is not None and name not in catalogue.names(kind):
            raise UnknownName(kind, name, catalogue.names(kind), key=kind)
    objection = _find_launcher_objection(request.launcher, request) if request.launcher is not None else None
    if objection is not None:
        raise UsageError(objection, key="launcher")


def _find_launcher_objection(launcher: str, request: Request) -> str | None:
    scope, finds_by = launcher_of(launcher).scope, launcher_of(launcher).finds_nodes_by
    if scope == "nodes" and request.nodes == 1:
        return f"the launcher '{launcher}' is for several nodes; add --hosts, or --nodes and --rendezvous"
    if finds_by == "hosts" and not request.hosts:
        return f"the launcher '{launcher}' needs a list of machines; add --hosts"
    if finds_by == "rendezvous" and request.hosts:
        return f"--hosts are reached over ssh; leave out --launcher {launcher}"
    if scope in ("process", "machine") and request.nodes > 1:
        return f"the launcher '{launcher}' starts ranks on this machine alone; leave out --launcher"
    if scope == "process" and (request.ranks or 1) > 1 and not _is_one_process(request):
        return f"the launcher '{launcher}' starts one process, not {request.ranks}; leave out --launcher"
    return None


def _is_one_process(request: Request) -> bool:
    """Return whether the arrangement has a single process, whatever the number of its devices."""
    return request.arrangement is not None and catalogue.load("arrangement", request.arrangement).world == "devices"


def _list_suite_cells(request: Request, system: System, device: str) -> Sequence[Wanted]:
    suite = suite_of(request)
    if request.update != "plain":
        raise UsageError(f"suite {request.target} chooses its own update; leave out --update", key="update")
    wanted = suite.cells(request, Machine(system, device, most_ranks(system, device)))
    if request.arrangement not in (None, *(cell.spec.arrangement for cell in wanted)):
        raise UsageError(
            f"suite {request.target} chooses its own arrangement; leave out --arrangement", key="arrangement"
        )
    _require_known([cell.spec for cell in wanted], option_types(type(suite)), request)
    if SAVE in request.options:
        raise UsageError(
            "--save keeps the weights of one workload; try `rigdyno run unet3d --save FILE`", key=f"set.{SAVE}"
        )
    return [
        Wanted(_adapt(spec, request), cell.repeat, cell.repeat if request.repeat is not None else cell.most)
        for cell in wanted
        for spec in expand_sweep(cell.spec, request, only_known=True, except_for=option_types(type(suite)))
    ]


def _require_known(specs: Sequence[RunSpec], own: Mapping[str, Any], request: Request) -> None:
    """Refuse an option that neither the suite nor any of its workloads has. `own`: options of the suite."""
    for key in request.sweep:
        if key in own:
            raise UsageError(
                f"{key} is an option of the suite {request.target}: set it, don't sweep it", key=f"sweep.{key}"
            )
    known = {*own, *(key for spec in specs for key in known_options(spec.workload, spec.update))}
    for key in (*request.options, *request.sweep):
        if key not in known:
            raise UnknownName(f"option in suite {request.target}", key, known, key=f"set.{key}")


def _adapt(spec: RunSpec, request: Request) -> RunSpec:
    changes: dict[str, Any] = {"seed": request.seed + spec.seed, "threads": request.threads or spec.threads}
    changes["launcher"] = _choose_launcher(request, spec.launcher, spec.nodes)
    if request.steps is not None and not spec.budget.is_job:
        changes["budget"] = msgspec.structs.replace(spec.budget, max_steps=request.steps)
    return msgspec.structs.replace(spec, **changes)


def _choose_launcher(request: Request, usual: str, nodes: int) -> str:
    """Return the launcher of a cell. With ssh or by hand this machine is node 0: a cell of one node runs on it as
    usual."""
    if nodes > 1 and request.launcher is None:
        return launcher_finding_nodes_by("hosts" if request.hosts else "rendezvous")
    return request.launcher or usual


def workload_cells(request: Request, device: str, system: System | None) -> Sequence[Wanted]:
    """Return the configurations of a single workload. `system`: None if the machine has not been inspected yet."""
    _require_target(request.target, {*request.options, *request.sweep})
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
    elsewhere = request.launcher is not None and launcher_of(request.launcher).scope == "elsewhere"
    known = system if not elsewhere else None  # this machine says nothing about the remote ones
    ranks = request.ranks or (most_ranks(known, device) if several and known is not None else 1)
    base = RunSpec(
        workload=request.target,
        update=request.update,
        arrangement=arrangement,
        launcher=_choose_launcher(request, launcher, request.nodes),
        world_size=ranks * request.nodes,
        nodes=request.nodes,
        device=device,
        threads=request.threads or (threads_each(known, device, ranks) if several and known is not None else None),
        pinned=several and device == "cpu",
        seed=request.seed,
        python=request.python,
        budget=budget,
    )
    specs = list(expand_sweep(base, request))
    if request.options.get(SAVE) and (len(specs) > 1 or (request.repeat or 1) > 1):
        raise UsageError("--save keeps the weights of one process: leave out --sweep and --repeat", key=f"set.{SAVE}")
    return [Wanted(spec, request.repeat or 1) for spec in specs]


def _require_target(target: str, options: set[str]) -> None:
    if not target:
        raise UsageError("name what to run; `rigdyno list` shows what there is", key="target")
    if is_function(target):
        require_function(target, options - {"unit"})
    elif target.endswith(".py"):
        raise UsageError(f"which function of {target}? try {target}:step", key="target")
    elif target not in catalogue.names("workload"):
        known = (*catalogue.names("suite"), *catalogue.names("workload"))
        raise UnknownName("suite or workload", target, known, key="target")


def _require_runnable(cells: Sequence[Cell]) -> None:
    """Raise if every cell is refused: for a single workload, an error is clearer than a table of skipped rows."""
    if cells and all(cell.refusal is not None for cell in cells):
        raise BadValue(f"{cells[0].spec.workload}: {cells[0].refusal}")


def plan_name(target: str) -> str:
    """Return the target as a name for a folder."""
    stem = Path(target).name.replace(".py:", ".")
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem)[:60] or "run"
