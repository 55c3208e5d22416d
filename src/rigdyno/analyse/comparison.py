"""Answer what a ratio with its interval allows one to say: faster, slower, the same or undecided.

`differences` lists what differs between the systems, environments and options of two stored processes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from rigdyno.base.errors import BadValue
from rigdyno.base.units import show_bytes, show_number, show_percent, show_seconds
from rigdyno.schema.comparison import Answer
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.metric import Metric
from rigdyno.schema.record import RunRecord
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.system import Accelerator, Environment, System

# Processes of the same code differ by up to 1.5 %, so 1 % is the smallest difference that is worth a verdict.
MARGIN = 0.01

# From this ratio on, "times as fast" reads better than percent.
MANIFOLD = 1.5

Named = Mapping[str, object]  # None: unknown or absent

NONE = "none"


class Words(NamedTuple):
    """Templates of the sentences about a ratio."""

    of: str  # the quantity that differs
    manifold: str  # from MANIFOLD on
    change: str  # below it


_SPEED = Words("its rate", "is {times} times as fast", "is {change} {answer}")

_ENERGY = Words("its energy an item", "takes {times} times the energy", "takes {change} {answer} energy")


def in_favour(ratio: Estimate, metric: Metric) -> Estimate:
    """Return the ratio so that above 1 is better, whichever direction of the metric is better."""
    if metric.better is None:
        raise BadValue(f"neither more nor less of '{metric.name}' is better, so nothing follows from its ratio")
    return ratio if metric.better == "higher" else ratio.mapped(lambda each: 1 / each, ratio.unit)


def answer_to(ratio: Estimate, margin: float = MARGIN) -> Answer:
    """Answer 'faster' or 'slower' if the whole interval is beyond the margin, 'same' if all of it is within."""
    if not 0 < margin < 1:
        raise BadValue(f"a margin lies between 0 and 1, not at {margin}")
    if ratio.interval is None:
        return "undecided"  # a value without an interval decides nothing
    bound = math.log1p(margin)
    low, high = map(math.log, ratio.interval)
    if low > bound:
        return "faster"
    if high < -bound:
        return "slower"
    return "same" if -bound <= low and high <= bound else "undecided"


def energy_answer(ratio: Estimate, margin: float = MARGIN) -> Answer:
    """Return the answer about a ratio of joules per item: below 1 is 'less'."""
    spoken: dict[Answer, Answer] = {"faster": "more", "slower": "less"}
    answer = answer_to(ratio, margin)
    return spoken.get(answer, answer)


def in_words(name: str, ratio: Estimate, answer: Answer) -> str:
    """Return a sentence such as 'B is 3.1 % slower (2.4 to 3.8 %)'."""
    return _sentence(name, ratio, answer, _SPEED)


def energy_words(name: str, ratio: Estimate, answer: Answer) -> str:
    """Return a sentence such as 'B takes 3.1 % less energy (2.4 to 3.8 %)'."""
    return _sentence(name, ratio, answer, _ENERGY)


def _sentence(name: str, ratio: Estimate, answer: Answer, words: Words) -> str:
    if answer in ("same", "undecided"):
        verdict = "the same" if answer == "same" else "undecided"
        return f"{name}: {verdict}; {words.of} differs by {signed_percent(ratio.value)}{_range(ratio)}"
    if not 1 / MANIFOLD < ratio.value < MANIFOLD:
        value, low, high = (show_number(number) for number in (ratio.value, *ratio.ends))
        return f"{name} {words.manifold.format(times=value)} ({low} to {high})"
    ends = sorted(abs(end - 1) for end in ratio.ends)
    change = words.change.format(change=show_percent(abs(ratio.value - 1)), answer=answer)
    return f"{name} {change} ({_percent_without_sign(ends[0])} to {show_percent(ends[1])})"


def _range(ratio: Estimate) -> str:
    return "" if ratio.interval is None else f" ({' to '.join(map(signed_percent, ratio.interval))})"


def signed_percent(ratio: float) -> str:
    """Return the distance of a ratio from 1, such as '+3.1 %'."""
    sign = "-" if ratio < 1 else "+"
    return f"{sign}{show_percent(abs(ratio - 1))}"


def _percent_without_sign(share: float) -> str:
    return show_percent(share).removesuffix(" %")


def differences(baseline: RunRecord, candidate: RunRecord, *, known: Collection[str] = ()) -> tuple[str, ...]:
    """Return texts such as 'torch 2.12.0 -> 2.13.0', ordered by system, environment and options.

    `known`: names to leave out.
    """
    one, two = traits_of(baseline), traits_of(candidate)
    names = [name for name in dict.fromkeys((*one, *two)) if name not in known]
    return tuple(
        f"{name} {_format_value(one, name)} -> {_format_value(two, name)}"
        for name in names
        if one.get(name) != two.get(name)
    )


def traits_of(record: RunRecord) -> Named:
    """Return everything that could explain a figure, by name.

    The load average is left out: it always differs, and verdicts report load.
    """
    return {
        **_system(record.system),
        **_environment(record.environment),
        "rigdyno": record.rigdyno_version,
        **_options(record.spec),
        "threads": record.environment.threads or record.spec.threads,  # the framework's own count where it is known
        **{f"settled {name}": value for name, value in record.facts.settled.items()},
    }


def _system(system: System) -> Named:
    cpu = system.cpu
    return {
        "cpu": cpu.model,
        "cores": cpu.usable_cores,
        "memory": show_bytes(system.memory_bytes),
        "accelerators": ", ".join(map(_accelerator, system.accelerators)) or None,
        "system": system.operating_system,
        "kernel": system.kernel,
        "architecture": system.architecture,
        "virtualisation": system.virtualisation,
        "confidential": system.confidential,
        "cpu quota": system.limits.cpu_quota,
        "memory limit": None if system.limits.memory_bytes is None else show_bytes(system.limits.memory_bytes),
    }


def _accelerator(accelerator: Accelerator) -> str:
    memory = "" if accelerator.memory_bytes is None else f" {show_bytes(accelerator.memory_bytes)}"
    return accelerator.name + memory


def _environment(environment: Environment) -> Named:
    git = environment.rigdyno_git
    return {
        "python": environment.python,
        **environment.packages,
        **environment.framework,
        **environment.variables,
        "governor": environment.governor,
        "huge pages": environment.huge_pages,
        "commit": None if git is None else git.commit[:12] + (" with changes" if git.dirty else ""),
    }


def _options(spec: RunSpec) -> Named:
    budget = spec.budget
    return {
        **spec.resolved,
        "update": spec.update,
        "arrangement": spec.arrangement,
        "ranks": spec.world_size,
        "nodes": spec.nodes,
        "seed": spec.seed,
        "budget": show_seconds(budget.seconds),
        "steps": budget.max_steps,
        "job": budget.job_steps or budget.job_items,
        "soak": "yes" if budget.stop == "clock" else None,
        "launcher": spec.launcher,
        "device": spec.device,
        "interpreter": spec.python,
    }


def _format_value(named: Named, name: str) -> str:
    value = named.get(name)
    return NONE if value is None else str(value)
