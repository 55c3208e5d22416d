"""Pairs of cells that take turns: their seconds, their names, and what their arms are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rigdyno.plan.build import ranks_of
from rigdyno.plan.run_options import OF_ARM
from rigdyno.schema.participant import laid_out
from rigdyno.schema.spec import Arm, Budget, Cell, RunSpec

LEAST_MEASURED_SECONDS = 1.0
MOST_MEASURED_SECONDS = 8.0  # more turns in one pair narrow nothing: what differs then is the processes
START_TOGETHER = 1.3  # two processes that start at once hinder each other
RANKS_START_TOGETHER = 2.5  # where ranks fill the cores, those of two arms share them


def pair_cells(
    a: RunSpec, b: RunSpec, count: int, start_seconds: float, measured_seconds: float, memory_bytes: int | None
) -> tuple[Cell, ...]:
    arms: Sequence[tuple[Arm, RunSpec]] = (("a", a), ("b", b))
    return tuple(
        Cell(
            name=f"pair{number:03d}-{arm}",
            spec=msgspec.structs.replace(spec, budget=Budget(seconds=measured_seconds)),
            participants=laid_out(ranks_of(spec), 1, spec.device, sampled=arm == "a"),  # its sampler watches both
            pair=number,
            arm=arm,
            memory_bytes=memory_bytes,
            seconds=(start_seconds + measured_seconds) / 2,  # the two of a pair run at the same time
        )
        for number in range(1, count + 1)
        for arm, spec in arms
    )


def names_of(a: RunSpec, b: RunSpec) -> tuple[str, str]:
    """Each by what it has and the other hasn't."""
    of_a, of_b = _traits(a), _traits(b)
    return _name(of_a, of_b), _name(of_b, of_a)


def _traits(spec: RunSpec) -> dict[str, str]:
    plain = {key: getattr(spec, key) for key in ("workload", *OF_ARM)}
    return {key: str(value) for key, value in {**plain, **spec.options}.items() if value is not None}


def _name(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    differing = [key for key in own if own[key] != other.get(key)]
    words = [own[key] if key == "workload" else f"{key}={own[key]}" for key in differing]
    return ", ".join(words) or (own["workload"] if own == other else "the defaults")
