"""Which configuration of one run is the same as which of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.spec import RunSpec


class Both(NamedTuple):
    """The same configuration, measured twice; or the only ones of a workload, with other options."""

    baseline: Measurement
    candidate: Measurement


class Matches(NamedTuple):
    pairs: list[Both]
    only_baseline: list[Measurement]
    only_candidate: list[Measurement]


def matched(baseline: Sequence[Measurement], candidate: Sequence[Measurement]) -> Matches:
    """Those with the same number of threads first, so that of several each meets its like. What is the only
    one of its workload on both sides is matched in any case: what differs is then said."""
    ours, theirs = list(baseline), list(candidate)
    pairs: list[Both] = []
    for alike in (_are_the_same, are_alike, _only_ones(ours, theirs)):
        for one in list(ours):
            two = next((two for two in theirs if alike(one.spec, two.spec)), None)
            if two is not None:
                pairs.append(Both(one, two))
                ours.remove(one)
                theirs.remove(two)
    pairs.sort(key=lambda both: baseline.index(both.baseline))
    return Matches(pairs, ours, theirs)


def _are_the_same(one: RunSpec, two: RunSpec) -> bool:
    return one.key() == two.key()


def are_alike(one: RunSpec, two: RunSpec) -> bool:
    """The same but for the number of threads, which is a property of the rig as much as of the configuration."""
    return _are_the_same(replace(one, threads=None), replace(two, threads=None))


def _only_ones(*sides: Sequence[Measurement]) -> Callable[[RunSpec, RunSpec], bool]:
    counts = [Counter(each.spec.workload for each in side) for side in sides]
    only = {name for name in counts[0] if all(count[name] == 1 for count in counts)}
    return lambda one, two: one.workload == two.workload and one.workload in only


def name_of(spec: RunSpec, kind: str | None = None, *, rules_alone: bool = False) -> str:
    """'tensor_add size=4096', and whatever isn't the usual. `rules_alone`: of an option that is as large as fits
    nothing but that, where it came to several values."""
    words = spec.named_options(rules_alone=rules_alone)
    parts = [spec.workload, *(f"{name}={value}" for name, value in words.items())]
    parts += [spec.update] if spec.update != "plain" else []
    parts += [f"{spec.arrangement} x {spec.world_size}"] if spec.world_size > 1 else []
    parts += [f"on {spec.nodes} nodes"] if spec.nodes > 1 else []
    return " ".join(parts) + (f", {kind}" if kind is not None else "")


def figures_by_name(measurements: Sequence[Measurement]) -> dict[str, KindFigures]:
    """What may leave the house: the figures of everything that ended well and isn't INVALID, by a name for each."""
    found: dict[str, KindFigures] = {}
    for measurement in measurements:
        if measurement.status not in ("VALID", "SUSPECT"):
            continue
        for kind, figures in measurement.kinds.items():
            found[_free(name_of(measurement.spec, kind if len(measurement.kinds) > 1 else None), found)] = figures
    return found


def _free(name: str, taken: Mapping[str, object]) -> str:
    """Configurations that differ in their threads or their seed alone have the same name."""
    names = (name if number == 1 else f"{name} ({number})" for number in count(1))
    return next(each for each in names if each not in taken)
