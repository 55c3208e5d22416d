"""What a larger rig would give, from a few points of a smaller one.

A point says how many items a second so many devices did. What is extrapolated is the cost of an item, in devices times
seconds: it is flat where scaling is perfect. A handful of points can't tell many curves apart, so the forms are few,
fixed in advance, of two parameters each, and weighted by how well they would have predicted the later of the given
points from the earlier ones (rolling origin).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.student import student_quantile
from rigdyno.schema.scaling import Expected, Point

Floats = NDArray[np.float64]
LogCost = Callable[[float], float]  # of so many devices

LEAST_POINTS = 3  # two parameters, and one point to be wrong about
REACH = 4.0  # times the largest number of devices that was measured: what the intervals were calibrated for
CONFIDENCE = 0.90

# A share of what the last point deviates by is carried on: part of it is noise, part of it stays.
_CARRIED = 0.7
# Efficiency that falls alike with every doubling fits most published tables; the others need evidence.
_PRIOR = {"power": 10.0, "serial": 1.0, "logarithm": 1.0}
_TELLS_APART = 0.05  # by which a form's prediction must be worse for that to count

# The variance of ln(truth / forecast), for each unit of ln(devices / largest measured) with a start: what published
# curves showed, as if seen so often, to which the given points add what they show.
_START = 0.35
_USUAL_VARIANCE = 0.045**2
_USUAL_COUNT = 6.0
# Of a single point: what repeated runs and readings off published graphs differ by, as if seen so often.
_USUAL_NOISE = 0.02**2
_USUAL_NOISE_COUNT = 3.0


def sizes_and_costs(points: Sequence[Point]) -> tuple[Floats, Floats]:
    """Numbers of devices, and the cost of an item in devices times seconds."""
    devices = np.array([point.devices for point in points], dtype=np.float64)
    return devices, devices / np.array([point.throughput for point in points])


class Curve:
    """Fitted to points in ascending order, at least three of them."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = tuple(points)
        devices, costs = sizes_and_costs(points)
        self.weights = _weights(devices, costs)
        self._fits = _fits(devices, costs)
        self._log_cost = _mixed(self._fits, self.weights)
        self._variance, self._freedom = _spread(devices, costs)
        self._noise_variance = _noise(devices, costs)

    @property
    def largest(self) -> int:
        return self.points[-1].devices

    def at(self, devices: int) -> Expected:
        value = devices / math.exp(self._log_cost(devices))
        half = student_quantile(1 - (1 - CONFIDENCE) / 2, self._freedom) * math.sqrt(self._variance_at(devices))
        low, high = value * math.exp(-half), value * math.exp(half)
        return Expected(devices=devices, value=value, low=low, high=high, confidence=CONFIDENCE)

    def _variance_at(self, devices: int) -> float:
        """What curves do beyond their points, what two parameters from so few points are uncertain by, and what the
        forms differ by."""
        beyond = abs(math.log(devices / self.largest)) + _START
        return self._variance * beyond + self._of_parameters(devices) + self._between_forms(devices)

    def _of_parameters(self, devices: int) -> float:
        """Of a line through the points, as every textbook on regression has it: the fewer and the closer together they
        are, the less they say about a place far from their middle."""
        sizes = np.log([point.devices for point in self.points])
        centred = sizes - sizes.mean()
        leverage = 1 / len(sizes) + (math.log(devices) - sizes.mean()) ** 2 / (centred @ centred)
        return float(self._noise_variance * leverage)

    def _between_forms(self, devices: int) -> float:
        """The variance of a mean over forms, each by its weight: points that can't tell them apart leave all of them
        open, and they part behind the last one."""
        mean = self._log_cost(devices)
        return sum(self.weights[form] * (fit(devices) - mean) ** 2 for form, fit in self._fits.items())


def _power(devices: Floats, costs: Floats) -> LogCost:
    """Every doubling costs the same share of the efficiency."""
    sizes, levels = np.log(devices), np.log(costs)
    centred = sizes - sizes.mean()
    slope = max(0.0, float(centred @ (levels - levels.mean()) / (centred @ centred)))
    return lambda count: float(levels.mean() + slope * (math.log(count) - sizes.mean()))


def _serial(devices: Floats, costs: Floats) -> LogCost:
    """A part of the work is done by one device alone, or by all of them alike (Amdahl)."""
    return _growing(devices, costs, lambda count: count - 1.0)


def _logarithm(devices: Floats, costs: Floats) -> LogCost:
    """Every doubling costs the same time: reductions over a tree."""
    return _growing(devices, costs, np.log)


def _growing(devices: Floats, costs: Floats, growth: Callable[[Floats], Floats]) -> LogCost:
    """A constant and a part that grows, neither negative; least squares of the relative errors."""
    columns = np.stack([1 / costs, growth(devices) / costs], axis=1)
    constant, grown = np.linalg.lstsq(columns, np.ones(len(costs)), rcond=None)[0]
    if grown < 0:
        constant, grown = columns[:, 0].sum() / (columns[:, 0] @ columns[:, 0]), 0.0
    elif constant <= 0:
        constant, grown = 0.0, columns[:, 1].sum() / (columns[:, 1] @ columns[:, 1])
    return lambda count: math.log(max(constant + grown * float(growth(np.array(count, dtype=np.float64))), 1e-300))


_FORMS = {"power": _power, "serial": _serial, "logarithm": _logarithm}


def squares_by_form(devices: Floats, costs: Floats) -> list[float]:
    """What each form leaves unexplained of all points."""
    levels = np.log(costs)
    fits = [form(devices, costs) for form in _FORMS.values()]
    return [sum((fit(size) - level) ** 2 for size, level in zip(devices, levels, strict=True)) for fit in fits]


def by_form(points: Sequence[Point], devices: int) -> list[float]:
    """The throughput that each form through these points gives."""
    return [devices / math.exp(form(*sizes_and_costs(points))(devices)) for form in _FORMS.values()]


def _fitted(form: str, devices: Floats, costs: Floats) -> LogCost:
    trend = _FORMS[form](devices, costs)
    carried = _CARRIED * (math.log(costs[-1]) - trend(devices[-1]))
    return lambda count: trend(count) + carried


def _fits(devices: Floats, costs: Floats) -> dict[str, LogCost]:
    return {form: _fitted(form, devices, costs) for form in _FORMS}


def _mixed(fits: Mapping[str, LogCost], weights: Mapping[str, float]) -> LogCost:
    return lambda count: sum(weight * fits[form](count) for form, weight in weights.items())


def _weights(devices: Floats, costs: Floats) -> dict[str, float]:
    logs = {
        form: math.log(prior) - sum(_errors(form, devices, costs)) / (2 * _TELLS_APART**2)
        for form, prior in _PRIOR.items()
    }
    best = max(logs.values())
    shares = {form: math.exp(log - best) for form, log in logs.items()}
    return {form: share / sum(shares.values()) for form, share in shares.items()}


def _errors(form: str, devices: Floats, costs: Floats) -> list[float]:
    """For every beginning of the points: the mean squared error of what it predicts of the others."""
    found = []
    for known, later in _beginnings(devices):
        fit = _fitted(form, devices[:known], costs[:known])
        found.append(float(np.mean([(fit(devices[i]) - math.log(costs[i])) ** 2 for i in later])))
    return found


def _beginnings(devices: Floats) -> list[tuple[int, list[int]]]:
    found = []
    for known in range(2, len(devices)):
        later = [i for i in range(known, len(devices)) if devices[i] <= REACH * devices[known - 1]]
        if later:
            found.append((known, later))
    return found


def _noise(devices: Floats, costs: Floats) -> float:
    """The variance of one point around its curve, by the form that fits best."""
    freedom = len(devices) - 2
    return (_USUAL_NOISE_COUNT * _USUAL_NOISE + min(squares_by_form(devices, costs))) / (_USUAL_NOISE_COUNT + freedom)


def _spread(devices: Floats, costs: Floats) -> tuple[float, float]:
    """The variance for each unit of distance, and how many observations it rests on."""
    total, count = _USUAL_COUNT * _USUAL_VARIANCE, _USUAL_COUNT
    for known, later in _beginnings(devices):
        if known >= LEAST_POINTS:
            given = devices[:known], costs[:known]
            fit = _mixed(_fits(*given), _weights(*given))
            squares = [
                (fit(devices[i]) - math.log(costs[i])) ** 2 / (math.log(devices[i] / devices[known - 1]) + _START)
                for i in later
            ]
            total, count = total + float(np.mean(squares)), count + 1
    return total / count, count
