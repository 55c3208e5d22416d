"""Match the configurations of two runs, and name configurations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.spec import RunSpec


class Both(NamedTuple):
    """The same configuration measured twice, or the only configurations of a workload on both sides."""

    baseline: Measurement
    candidate: Measurement


class Matches(NamedTuple):
    pairs: list[Both]
    only_baseline: list[Measurement]
    only_candidate: list[Measurement]


def match_configurations(baseline: Sequence[Measurement], candidate: Sequence[Measurement]) -> Matches:
    """Match equal configurations first, then those that differ only in threads, then the only ones of a workload.

    Differences between matched configurations are reported elsewhere.
    """
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
    """Tell whether two specs are equal except for the number of threads, which also depends on the machine."""
    return _are_the_same(replace(one, threads=None), replace(two, threads=None))


def _only_ones(*sides: Sequence[Measurement]) -> Callable[[RunSpec, RunSpec], bool]:
    counts = [Counter(each.spec.workload for each in side) for side in sides]
    only = {name for name in counts[0] if all(count[name] == 1 for count in counts)}
    return lambda one, two: one.workload == two.workload and one.workload in only


def name_of(spec: RunSpec, kind: str | None = None, *, rules_alone: bool = False) -> str:
    """Return a name such as 'tensor_add size=4096', with everything that isn't the default.

    `rules_alone`: write 'largest' instead of the value that a search found.
    """
    words = spec.named_options(rules_alone=rules_alone)
    parts = [spec.workload, *(f"{name}={value}" for name, value in words.items())]
    parts += [spec.update] if spec.update != "plain" else []
    parts += [f"{spec.arrangement} x {spec.world_size}"] if spec.world_size > 1 else []
    parts += [f"on {spec.nodes} nodes"] if spec.nodes > 1 else []
    return " ".join(parts) + (f", {kind}" if kind is not None else "")


def figures_by_name(measurements: Sequence[Measurement]) -> dict[str, KindFigures]:
    """Return the figures to export, by unique names: those of every VALID or SUSPECT configuration."""
    found: dict[str, KindFigures] = {}
    for measurement in measurements:
        if measurement.status not in ("VALID", "SUSPECT"):
            continue
        for kind, figures in measurement.kinds.items():
            name = name_of(measurement.spec, kind if len(measurement.kinds) > 1 else None)
            found[_unused_name(name, found)] = figures
    return found


def _unused_name(name: str, taken: Mapping[str, object]) -> str:
    """Number a name that is taken: configurations that differ only in threads or seed have the same name."""
    names = (name if number == 1 else f"{name} ({number})" for number in count(1))
    return next(each for each in names if each not in taken)
