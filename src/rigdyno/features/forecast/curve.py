"""Forecast the throughput of a larger machine from a few points of a smaller one.

The cost of an item, in devices times seconds, is extrapolated: it is constant under perfect scaling. A few points can't
tell many curves apart, so there are few forms, fixed in advance, with two parameters each. They are weighted by how
well they would have predicted the later points from the earlier ones (rolling origin).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rigdyno.analyse.student import student_quantile
from rigdyno.schema.scaling import Expected, ScalingPoint

Floats = NDArray[np.float64]

LogCost = Callable[[float], float]  # number of devices -> logarithm of the cost of an item

LEAST_POINTS = 3  # two parameters, and one degree of freedom

REACH = 4.0  # times the largest measured number of devices: up to there the intervals are calibrated

CONFIDENCE = 0.90

# The share of the last point's deviation that is carried on: a part of it is noise, a part remains.
_CARRIED = 0.7

# A constant loss of efficiency per doubling fits most published tables; other forms need evidence.
_PRIOR = {"power": 10.0, "serial": 1.0, "logarithm": 1.0}

_TELLS_APART = 0.05  # relative error at which a form counts as worse

# The variance of ln(truth / forecast) per unit of _START + ln(devices / largest measured), from published curves. It
# counts as _USUAL_COUNT observations, to which the given points add theirs.
_START = 0.35

_USUAL_VARIANCE = 0.045**2

_USUAL_COUNT = 6.0

# The variance of a single point, from repeated runs and readings of published graphs, with the weight of so many
# observations.
_USUAL_NOISE = 0.02**2

_USUAL_NOISE_COUNT = 3.0


class ScalingCurve:
    """A curve fitted to at least three points in ascending order."""

    def __init__(self, points: Sequence[ScalingPoint]) -> None:
        self.points = tuple(points)
        devices, costs = sizes_and_costs(points)
        self.weights = _weights(devices, costs)
        self._fits = _fit_all(devices, costs)
        self._log_cost = _mix(self._fits, self.weights)
        self._variance, self._freedom = _spread_per_distance(devices, costs)
        self._noise_variance = _noise_variance(devices, costs)

    @property
    def largest(self) -> int:
        return self.points[-1].devices

    def at(self, devices: int) -> Expected:
        value = devices / math.exp(self._log_cost(devices))
        half = student_quantile(1 - (1 - CONFIDENCE) / 2, self._freedom) * math.sqrt(self._variance_at(devices))
        low, high = value * math.exp(-half), value * math.exp(half)
        return Expected(devices=devices, value=value, low=low, high=high, confidence=CONFIDENCE)

    def _variance_at(self, devices: int) -> float:
        """Add up the variance of curves beyond their points, of the parameters, and between the forms."""
        beyond = abs(math.log(devices / self.largest)) + _START
        return self._variance * beyond + self._of_parameters(devices) + self._between_forms(devices)

    def _of_parameters(self, devices: int) -> float:
        """Return the variance of a regression line at this number of devices, by its leverage."""
        sizes = np.log([point.devices for point in self.points])
        centred = sizes - sizes.mean()
        leverage = 1 / len(sizes) + (math.log(devices) - sizes.mean()) ** 2 / (centred @ centred)
        return float(self._noise_variance * leverage)

    def _between_forms(self, devices: int) -> float:
        """Return the weighted variance between the forms, which diverge beyond the last point."""
        mean = self._log_cost(devices)
        return sum(self.weights[form] * (fit(devices) - mean) ** 2 for form, fit in self._fits.items())


def sizes_and_costs(points: Sequence[ScalingPoint]) -> tuple[Floats, Floats]:
    """Return the numbers of devices, and the cost of an item in devices times seconds."""
    devices = np.array([point.devices for point in points], dtype=np.float64)
    return devices, devices / np.array([point.throughput for point in points])


def _fit_power(devices: Floats, costs: Floats) -> LogCost:
    """Fit a power law: every doubling costs the same share of the efficiency."""
    sizes, levels = np.log(devices), np.log(costs)
    centred = sizes - sizes.mean()
    slope = max(0.0, float(centred @ (levels - levels.mean()) / (centred @ centred)))
    return lambda count: float(levels.mean() + slope * (math.log(count) - sizes.mean()))


def _fit_serial(devices: Floats, costs: Floats) -> LogCost:
    """Fit a serial part, which gets no faster with more devices (Amdahl)."""
    return _fit_growth(devices, costs, lambda count: count - 1.0)


def _fit_logarithm(devices: Floats, costs: Floats) -> LogCost:
    """Fit a logarithm: every doubling costs the same time, as in reductions over a tree."""
    return _fit_growth(devices, costs, np.log)


def _fit_growth(devices: Floats, costs: Floats, growth: Callable[[Floats], Floats]) -> LogCost:
    """Fit a constant and a growing part, neither negative, by least squares of the relative errors."""
    columns = np.stack([1 / costs, growth(devices) / costs], axis=1)
    constant, grown = np.linalg.lstsq(columns, np.ones(len(costs)), rcond=None)[0]
    if grown < 0:
        constant, grown = columns[:, 0].sum() / (columns[:, 0] @ columns[:, 0]), 0.0
    elif constant <= 0:
        constant, grown = 0.0, columns[:, 1].sum() / (columns[:, 1] @ columns[:, 1])
    return lambda count: math.log(max(constant + grown * float(growth(np.array(count, dtype=np.float64))), 1e-300))


_FORMS = {"power": _fit_power, "serial": _fit_serial, "logarithm": _fit_logarithm}


def squares_by_form(devices: Floats, costs: Floats) -> list[float]:
    """Return the residual sum of squares of each form."""
    levels = np.log(costs)
    fits = [form(devices, costs) for form in _FORMS.values()]
    return [sum((fit(size) - level) ** 2 for size, level in zip(devices, levels, strict=True)) for fit in fits]


def rates_by_form(points: Sequence[ScalingPoint], devices: int) -> list[float]:
    """Return the throughput that each form predicts from these points."""
    return [devices / math.exp(form(*sizes_and_costs(points))(devices)) for form in _FORMS.values()]


def _fit_form(form: str, devices: Floats, costs: Floats) -> LogCost:
    trend = _FORMS[form](devices, costs)
    carried = _CARRIED * (math.log(costs[-1]) - trend(devices[-1]))
    return lambda count: trend(count) + carried


def _fit_all(devices: Floats, costs: Floats) -> dict[str, LogCost]:
    return {form: _fit_form(form, devices, costs) for form in _FORMS}


def _mix(fits: Mapping[str, LogCost], weights: Mapping[str, float]) -> LogCost:
    return lambda count: sum(weight * fits[form](count) for form, weight in weights.items())


def _weights(devices: Floats, costs: Floats) -> dict[str, float]:
    logs = {
        form: math.log(prior) - sum(_prediction_errors(form, devices, costs)) / (2 * _TELLS_APART**2)
        for form, prior in _PRIOR.items()
    }
    best = max(logs.values())
    shares = {form: math.exp(log - best) for form, log in logs.items()}
    return {form: share / sum(shares.values()) for form, share in shares.items()}


def _prediction_errors(form: str, devices: Floats, costs: Floats) -> list[float]:
    """Return, for every rolling origin, the mean squared error of the predicted later points."""
    found = []
    for known, later in _rolling_origins(devices):
        fit = _fit_form(form, devices[:known], costs[:known])
        found.append(float(np.mean([(fit(devices[i]) - math.log(costs[i])) ** 2 for i in later])))
    return found


def _rolling_origins(devices: Floats) -> list[tuple[int, list[int]]]:
    found = []
    for known in range(2, len(devices)):
        later = [i for i in range(known, len(devices)) if devices[i] <= REACH * devices[known - 1]]
        if later:
            found.append((known, later))
    return found


def _noise_variance(devices: Floats, costs: Floats) -> float:
    """Return the variance of one point around the form that fits best."""
    freedom = len(devices) - 2
    return (_USUAL_NOISE_COUNT * _USUAL_NOISE + min(squares_by_form(devices, costs))) / (_USUAL_NOISE_COUNT + freedom)


def _spread_per_distance(devices: Floats, costs: Floats) -> tuple[float, float]:
    """Return the variance per unit of distance, and the number of observations behind it."""
    total, count = _USUAL_COUNT * _USUAL_VARIANCE, _USUAL_COUNT
    for known, later in _rolling_origins(devices):
        if known >= LEAST_POINTS:
            given = devices[:known], costs[:known]
            fit = _mix(_fit_all(*given), _weights(*given))
            squares = [
                (fit(devices[i]) - math.log(costs[i])) ** 2 / (math.log(devices[i] / devices[known - 1]) + _START)
                for i in later
            ]
            total, count = total + float(np.mean(squares)), count + 1
    return total / count, count
