"""Plan pairs of cells that take turns: their times, their names and the names of their arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rigdyno.plan.build import count_ranks
from rigdyno.plan.run_options import OF_ARM
from rigdyno.schema.spec import Arm, Budget, Cell, RunSpec, assign_participants

LEAST_MEASURED_SECONDS = 1.0

MOST_MEASURED_SECONDS = 8.0  # more turns don't narrow the interval: the rest is variation between processes

START_TOGETHER = 1.3  # start time relative to a lone process: two that start at once slow each other down

RANKS_START_TOGETHER = 2.5  # the same where ranks occupy all cores, and two arms share them


def pair_cells(
    a: RunSpec, b: RunSpec, count: int, start_seconds: float, measured_seconds: float, memory_bytes: int | None
) -> tuple[Cell, ...]:
    """Return the cells of `count` pairs, two for each."""
    arms: Sequence[tuple[Arm, RunSpec]] = (("a", a), ("b", b))
    return tuple(
        Cell(
            name=f"pair{number:03d}-{arm}",
            spec=msgspec.structs.replace(spec, budget=Budget(seconds=measured_seconds)),
            # The sampler of arm A watches both.
            participants=assign_participants(count_ranks(spec), 1, spec.device, sampled=arm == "a"),
            pair=number,
            arm=arm,
            memory_bytes=memory_bytes,
            seconds=(start_seconds + measured_seconds) / 2,  # both cells of a pair run at the same time
        )
        for number in range(1, count + 1)
        for arm, spec in arms
    )


def names_of(a: RunSpec, b: RunSpec) -> tuple[str, str]:
    """Return a name for each arm, made of the settings in which it differs from the other."""
    traits_a, traits_b = _list_traits(a), _list_traits(b)
    return _make_name(traits_a, traits_b), _make_name(traits_b, traits_a)


def _list_traits(spec: RunSpec) -> dict[str, str]:
    plain = {key: getattr(spec, key) for key in ("workload", *OF_ARM)}
    return {key: str(value) for key, value in {**plain, **spec.options}.items() if value is not None}


def _make_name(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    differing = [key for key in own if own[key] != other.get(key)]
    words = [own[key] if key == "workload" else f"{key}={own[key]}" for key in differing]
    return ", ".join(words) or (own["workload"] if own == other else "the defaults")
