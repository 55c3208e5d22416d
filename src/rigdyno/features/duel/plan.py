"""Plan a duel: two configurations, and as many pairs of processes as the budget allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from rigdyno import catalogue
from rigdyno.base.clock import SystemClock
from rigdyno.base.errors import BadValue, UsageError
from rigdyno.base.units import show_seconds
from rigdyno.plan.build import known_options, unknown_option, workload_of
from rigdyno.plan.cells import memory_of_all
from rigdyno.plan.expand import expand, plan_name
from rigdyno.plan.options import searched_options
from rigdyno.plan.pairs import (
    LEAST_MEASURED_SECONDS,
    MOST_MEASURED_SECONDS,
    RANKS_START_TOGETHER,
    START_TOGETHER,
    names_of,
    pair_cells,
)
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources
from rigdyno.plan.run_options import OF_ARM
from rigdyno.probes.common.probe_set import find_update_seconds
from rigdyno.schema.measured import UPDATES_OF_A_TURN
from rigdyno.schema.samples import SAMPLER_SECONDS
from rigdyno.schema.spec import DuelPlan, RunPlan, RunSpec, Value
from rigdyno.schema.system import System

DEFAULT_SECONDS = 120.0

LEAST_PAIRS = 6  # before a duel may end: the spread of fewer is too uncertain

FEWEST_PAIRS = 4  # that must fit into the budget

WANTED_PAIRS = 10  # if the budget allows: 8 to 12 processes show how much memory layout alone changes the rate

MOST_PAIRS = 200

# In duels by joules: how much longer turns are than their readings need, and the turns of a pair (warm-up and two
# rounds in opposite order, for each arm).
LONGER_THAN_NEEDED, TURNS_OF_A_PAIR = 1.25, 6


class DuelRequest(msgspec.Struct, frozen=True, kw_only=True):
    a: Request
    b: Request
    budget_seconds: float = DEFAULT_SECONDS
    margin: float = 0.01
    by: Literal["time", "joules"] = "time"
    label: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise BadValue(f"margin must lie between 0 and 100 %, not at {100 * self.margin:g} %")


def arm_request(common: Request, settings: Mapping[str, Value], flag: str, *, text: bool = False) -> Request:
    """Return the common request with the settings of one arm; `text`: they are strings of a command line."""
    own = {key: OF_ARM[key].read(settings[key], f"{flag} {key}", text=text) for key in OF_ARM if key in settings}
    options = {key: value for key, value in settings.items() if key not in OF_ARM}
    _require_known(common.target, own.get("update", common.update), options)
    return msgspec.structs.replace(
        common,
        **own,
        options={**common.options, **options},
        text_keys=(*common.text_keys, *(options if text else ())),
        places={**common.places, **dict.fromkeys((*own, *(f"set.{key}" for key in options)), "")},
    )


def _require_known(target: str, update: str, options: Iterable[str]) -> None:
    """Raise UsageError for unknown options, and suggest the settings of an arm: 'thread' may mean 'threads'."""
    if target not in catalogue.names("workload"):
        return
    known = known_options(target, update)
    for key in options:
        if key not in known:
            raise unknown_option(key, target, update, beside=OF_ARM)


def expand_duel(request: DuelRequest, system: System, device: str, resources: Resources) -> RunPlan:
    a, b = (_arm_spec(arm, system, device, resources) for arm in (request.a, request.b))
    units = [workload_of(spec).unit for spec in (a, b)]
    if units[0] != units[1]:
        raise UsageError(f"A counts in {units[0]}s and B in {units[1]}s: there is no ratio of the two")
    if a.world_size != b.world_size:
        raise UsageError(
            f"A has {_ranks_words(a)} and B has {_ranks_words(b)}: a duel is between arms of as many", key="ranks"
        )
    memory = _memory(a, b, system)
    refusal = resources.refusal(memory)
    if refusal:
        raise BadValue(f"both arms are in memory at the same time, which {refusal}; try smaller sizes")
    turn_seconds = 0.0 if request.by == "time" else _metered_turn_seconds()
    start, measured, most = _time_of_pairs(a, b, request.budget_seconds, turn_seconds)
    cells = pair_cells(a, b, most, start, measured, memory)
    duel = DuelPlan(
        what=a.workload if a.workload == b.workload else "",
        names=names_of(a, b),
        margin=request.margin,
        least_pairs=min(LEAST_PAIRS, most),
        budget_seconds=request.budget_seconds,
        by=request.by,
        turn_seconds=turn_seconds,
        self_duel=False,
    )
    return RunPlan(name=f"duel-{plan_name(request.a.target)}", label=request.label, cells=cells, duel=duel)


def require_one_configuration(request: Request) -> None:
    if request.target in catalogue.names("suite"):
        raise UsageError(
            f"{request.target} is a suite of several configurations; a duel takes one: a workload, or FILE.py:FUNCTION"
        )
    for key in searched_options(request):
        raise UsageError(
            f"an arm of a duel has a value for {key}; find the largest with `rigdyno run`", key=f"set.{key}"
        )


def _arm_spec(request: Request, system: System, device: str, resources: Resources) -> RunSpec:
    """Return the single configuration of an arm; raise UsageError for several, or for one that can't be in a duel."""
    require_one_configuration(request)
    plan = expand(request, system, device, resources.without_meter)  # ratios need no idle baseline
    specs = list({cell.spec.key(): cell.spec for cell in plan.cells}.values())
    if len(specs) != 1:
        raise UsageError(f"an arm of a duel is one configuration, and {request.target} is swept into {len(specs)}")
    (spec,) = specs
    arrangement = catalogue.load("arrangement", spec.arrangement)
    if arrangement.world == "devices":
        raise UsageError(
            f"an arm of a duel has one device a process, and the arrangement '{spec.arrangement}' has several"
        )
    if spec.launcher != arrangement.launcher:
        raise UsageError(f"a duel starts its own processes; leave out the launcher '{spec.launcher}'")
    return spec


def _ranks_words(spec: RunSpec) -> str:
    return "one rank" if spec.world_size == 1 else f"{spec.world_size} ranks"


def _memory(a: RunSpec, b: RunSpec, system: System) -> int | None:
    needs = [memory_of_all(spec, workload_of(spec), system) for spec in (a, b)]
    known = [need for need in needs if need is not None]
    return sum(known) if known else None


def _metered_turn_seconds() -> float:
    """Return the length of a turn in which the meter here has enough new values."""
    seconds = find_update_seconds(SystemClock())
    if seconds is None:
        raise UsageError(
            "a duel by joules needs a meter, and none can be read; `rigdyno doctor` says what would add one"
        )
    return LONGER_THAN_NEEDED * UPDATES_OF_A_TURN * max(seconds, SAMPLER_SECONDS)


def _time_of_pairs(
    a: RunSpec, b: RunSpec, budget_seconds: float, turn_seconds: float = 0.0
) -> tuple[float, float, int]:
    """Return the seconds to start a pair, the seconds to measure it, and the number of pairs in the budget."""
    together = RANKS_START_TOGETHER if a.world_size > 1 else START_TOGETHER
    start = together * max(workload_of(spec).start_seconds() for spec in (a, b))
    measured = budget_seconds / WANTED_PAIRS - start
    least = max(LEAST_MEASURED_SECONDS, TURNS_OF_A_PAIR * turn_seconds)
    measured = min(max(measured, least), max(MOST_MEASURED_SECONDS, least))
    most = min(int(budget_seconds / (start + measured)), MOST_PAIRS)
    if most < FEWEST_PAIRS:
        whole = show_seconds(FEWEST_PAIRS * (start + least))
        raise BadValue(
            f"a budget of {show_seconds(budget_seconds)} is too short: {FEWEST_PAIRS} pairs of processes take at "
            f"least {whole}"
        )
    return start, measured, most
