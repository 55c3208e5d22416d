"""How much must be read around a block: all that counts, or so much that the rest doesn't show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rigdyno.engines.blockwise.backends import Floats
from rigdyno.engines.blockwise.boxes import Box, Zyx, zyx
from rigdyno.engines.blockwise.errors import BadNetwork
from rigdyno.engines.blockwise.network.model import Model

Predict = Callable[[Floats, Zyx, Zyx], Floats]
Read = Callable[[Box], Floats]


@dataclass(frozen=True)
class HaloChoice:
    halo: Zyx
    exact: Zyx | None
    largest_error: float | None  # of the output's range, against the exact halo; None where it wasn't measured
    mean_error: float | None
    places: int = 0


def exact_halo(model: Model) -> Zyx:
    if model.exact_halo is None:
        raise BadNetwork(f"this network has no exact halo: {model.block_dependent}; give one with --halo Z,Y,X")
    return zyx(map(max, model.exact_halo, model.least_halo))


def smallest_halo(
    model: Model, predict: Predict, read: Read, places: Sequence[Box], tolerance: float, value_range: float | None
) -> HaloChoice:
    """The smallest whose answers, at all places, stay within the tolerance of those with the exact halo."""
    exact = exact_halo(model)
    truths = [_answer(model, predict, read, place, exact) for place in places]
    for truth in truths:
        require_finite(truth)
    width = value_range or float(max(truth.max() for truth in truths) - min(truth.min() for truth in truths))
    for halo in candidates(model):
        if halo == exact or width == 0:
            return HaloChoice(exact, exact, 0.0, 0.0, len(places))
        largest, mean = _errors(model, predict, read, places, truths, halo, tolerance * width)
        if largest <= tolerance * width:
            return HaloChoice(halo, exact, largest / width, mean / width, len(places))
    return HaloChoice(exact, exact, 0.0, 0.0, len(places))


def require_finite(answer: Floats) -> None:
    if not np.isfinite(answer).all():
        raise BadNetwork("the network's answer isn't finite; check its weights, or try another --normalise")


def candidates(model: Model) -> Iterator[Zyx]:
    """From the least to the exact halo, one step of each axis at a time."""
    exact, halo = exact_halo(model), model.least_halo
    while halo != exact:
        yield halo
        halo = zyx(min(most, own + step) for own, most, step in zip(halo, exact, model.step, strict=True))
    yield exact


def _errors(
    model: Model, predict: Predict, read: Read, places: Sequence[Box], truths: Sequence[Floats], halo: Zyx, most: float
) -> tuple[float, float]:
    """Largest and mean; once it is too much the remaining places don't matter."""
    largest, means = 0.0, []
    for place, truth in zip(places, truths, strict=True):
        difference = np.abs(_answer(model, predict, read, place, halo) - truth)
        largest = float(np.maximum(largest, difference.max()))  # NaN stays NaN
        means.append(float(difference.mean()))
        if not largest <= most:
            break
    return largest, float(np.mean(means))


def _answer(model: Model, predict: Predict, read: Read, place: Box, halo: Zyx) -> Floats:
    return predict(read(model.read_box(place.shape, halo).moved(place.start)), place.shape, halo)
