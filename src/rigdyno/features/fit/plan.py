"""Plan `fit`: for each update a search for the largest batch, then runs at fractions of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, UnknownName, UsageError
from rigdyno.base.units import show_bytes
from rigdyno.contracts import Wanted
from rigdyno.plan.build import is_function, known_options
from rigdyno.plan.expand import plan_cells, require_parts, workload_cells
from rigdyno.plan.options import LARGEST, takes_whole_numbers
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources
from rigdyno.plan.user_file import number_arguments
from rigdyno.plan.values import PRESETS
from rigdyno.schema.spec import BATCHES, OF_UPDATE, RunPlan
from rigdyno.schema.system import System

SECONDS = 5.0  # per size

USUAL_SIZES, MOST_SIZES = 5, 12  # measured sizes: the largest, half of it, a quarter, ...


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    request: Request  # of a workload; its update is ignored
    updates: tuple[str, ...] = ("plain",)
    option: str | None = None  # None: the one that is the batch size
    sizes: int = USUAL_SIZES

    def each(self) -> list[Request]:
        """Return one request per update."""
        option = self.option or usual_option(self.request.target, self.updates[0])
        if option in {*self.request.options, *self.request.sweep}:
            raise UsageError(f"{option} is what is looked for: leave out its value", key=f"set.{option}")
        options = {**self.request.options, option: LARGEST}
        return [replace(self.request, update=update, options=options) for update in self.updates]


def require_sense_of_fit(fit: FitRequest) -> None:
    """Raise UsageError for a request that is wrong on any machine."""
    if fit.request.target in catalogue.names("suite"):
        raise UsageError(f"{fit.request.target} is a suite; `rigdyno fit` takes a workload", key="target")
    if not 1 <= fit.sizes <= MOST_SIZES:
        raise BadValue(f"sizes must be between 1 and {MOST_SIZES}, not {fit.sizes}")
    for update in fit.updates:
        if update not in catalogue.names("update"):
            raise UnknownName("update", update, catalogue.names("update"), key="update")
    given = replace(fit.request, memory_bytes=fit.request.memory_bytes or 1)
    for each in FitRequest(request=given, updates=fit.updates, option=fit.option).each():
        require_parts(each)
        workload_cells(each, each.device or "cpu", None)


def expand_fit(fit: FitRequest, system: System, device: str, resources: Resources) -> RunPlan:
    """Plan a search and its sizes for each update. `device`: the default if the request names none."""
    chosen = fit.request.device or device
    memory = fit.request.memory_bytes or _preset(chosen, system, resources)
    requests = [replace(each, memory_bytes=memory) for each in fit.each()]
    wanted = [sized for each in requests for one in workload_cells(each, chosen, system) for sized in _sizes(one, fit)]
    plan = plan_cells(wanted, requests[0], system, resources)
    return replace(plan, name=f"fit-{plan.name}")


def _sizes(wanted: Wanted, fit: FitRequest) -> Sequence[Wanted]:
    budget = replace(wanted.spec.budget, seconds=SECONDS)
    return [
        Wanted(replace(wanted.spec, share=1 / 2**halvings, budget=budget), wanted.repeat)
        for halvings in range(fit.sizes)
    ]


def usual_option(target: str, update: str) -> str:
    """Return the name of the option that is the batch size."""
    if is_function(target):
        known = number_arguments(target)
    elif target in catalogue.names("workload"):
        types = known_options(target, update)
        known = [name for name, kind in types.items() if takes_whole_numbers(kind) and not name.startswith(OF_UPDATE)]
    else:
        known = list(BATCHES)  # an unknown target is reported elsewhere
    found = next((name for name in BATCHES if name in known), None)
    if found is None:
        others = f"; it has {', '.join(known)}" if known else ""
        raise UsageError(f"which option of {target} is to be as large as fits? name it with --option{others}")
    return found


def _preset(device: str, system: System, resources: Resources) -> int:
    """Return the largest published memory size that is available here."""
    if device == "cpu":
        room, known = resources.available_bytes, [PRESETS["epyc7763"]]
    else:
        has = [each.memory_bytes for each in system.accelerators_for(device) if each.memory_bytes]
        room, known = min(has, default=0), [PRESETS["v100"], PRESETS["a100"]]
    fitting = [size for size in known if size <= room]
    if not fitting:
        raise UsageError(f"{show_bytes(max(0, room))} are free here: say what may be filled with --memory, e.g. 4GB")
    return max(fitting)
