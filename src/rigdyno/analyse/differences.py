"""What differs between two stored processes beside their figures: one short text for each thing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rigdyno.schema.record import RunRecord
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.system import Accelerator, Environment, System
from rigdyno.units import show_bytes, show_seconds

Named = Mapping[str, object]  # None: not known, or not there

NONE = "none"


def differences(baseline: RunRecord, candidate: RunRecord, *, known: Collection[str] = ()) -> tuple[str, ...]:
    """'torch 2.12.0 -> 2.13.0', in the order of system, environment, options; `known`: what needn't be said."""
    one, two = everything_of(baseline), everything_of(candidate)
    names = [name for name in dict.fromkeys((*one, *two)) if name not in known]
    return tuple(
        f"{name} {_shown(one, name)} -> {_shown(two, name)}" for name in names if one.get(name) != two.get(name)
    )


def everything_of(record: RunRecord) -> Named:
    """All that could explain a number, by name. Not the load average: it always differs, and verdicts tell of load."""
    return {
        **_system(record.system),
        **_environment(record.environment),
        "rigdyno": record.rigdyno_version,
        **_options(record.spec),
        "threads": record.environment.threads or record.spec.threads,  # the framework's own count, where it told
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


def _shown(named: Named, name: str) -> str:
    value = named.get(name)
    return NONE if value is None else str(value)
