"""Measure how well the throughput of more devices is predicted, over all published curves at hand.

Rolling origin: each curve's first points, at least three, predict the later ones up to four times as large. A start
on one node predicts nothing beyond it, as in `rigdyno forecast`. Ours is compared, on the same points, with two naive
guesses (linear; the efficiency keeps losing per doubling what it lost so far), Amdahl's law and the universal
scalability law, both fitted by least squares of the relative errors.

Decided beforehand: the mean error over all curves, each counting alike, is at most 5 % and below that of every other
guess; of the true values, 80 to 98 % are inside the interval of 90 %. The curves are few and most of their points are
read off graphs to about 2 %: so the bars are on the values, and the intervals (a bootstrap over curves) show how
certain they are. The constants of our forms were chosen with these curves in view.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from _bars import ValueBar, finish

from rigdyno.features.forecast.curve import LEAST_POINTS, REACH, ScalingCurve
from rigdyno.features.forecast.links import uncrossed_link
from rigdyno.reference.published import load_scaling_curves
from rigdyno.schema.scaling import ScalingPoint

Guess = Callable[[Sequence[ScalingPoint], int], float]
DRAWS = 2000


def ours(known: Sequence[ScalingPoint], devices: int) -> float:
    return ScalingCurve(known).at(devices).value


def linear(known: Sequence[ScalingPoint], devices: int) -> float:
    return known[0].throughput / known[0].devices * devices


def per_doubling(known: Sequence[ScalingPoint], devices: int) -> float:
    first, last = known[0], known[-1]
    kept = last.throughput / last.devices * first.devices / first.throughput
    further = math.log(devices / last.devices) / math.log(last.devices / first.devices)
    return last.throughput * devices / last.devices * kept**further


def amdahl(known: Sequence[ScalingPoint], devices: int) -> float:
    return _law(known, devices, lambda n, p: p[0] * n / (1 + p[1] * (n - 1)), 2)


def usl(known: Sequence[ScalingPoint], devices: int) -> float:
    return _law(known, devices, lambda n, p: p[0] * n / (1 + p[1] * (n - 1) + p[2] * n * (n - 1)), 3)


def _law(known: Sequence[ScalingPoint], devices: int, law: Callable[..., object], parameters: int) -> float:
    from scipy.optimize import least_squares

    sizes = np.array([point.devices for point in known], dtype=float)
    rates = np.array([point.throughput for point in known])
    start = [rates[0] / sizes[0], 0.05, 0.001][:parameters]
    limits = ([0.0] * parameters, [np.inf, 1.0, 1.0][:parameters])
    fit = least_squares(lambda p: np.asarray(law(sizes, p)) / rates - 1, start, bounds=limits, x_scale=start)
    return float(np.asarray(law(float(devices), fit.x)))


GUESSES: dict[str, Guess] = {
    "ours": ours,
    "linear": linear,
    "constant efficiency per doubling": per_doubling,
    "Amdahl": amdahl,
    "USL": usl,
}


def origins(points: Sequence[ScalingPoint]) -> Iterator[tuple[Sequence[ScalingPoint], list[ScalingPoint]]]:
    for count in range(LEAST_POINTS, len(points)):
        known = points[:count]
        later = [
            point
            for point in points[count:]
            if point.devices <= REACH * known[-1].devices and not uncrossed_link(known, point.devices, None)
        ]
        if later:
            yield known, later


def errors(points: Sequence[ScalingPoint], guess: Guess) -> list[float]:
    return [
        abs(guess(known, truth.devices) / truth.throughput - 1) for known, later in origins(points) for truth in later
    ]


def inside(points: Sequence[ScalingPoint]) -> list[bool]:
    found = []
    for known, later in origins(points):
        curve = ScalingCurve(known)
        expected = [curve.at(truth.devices) for truth in later]
        found += [e.low <= truth.throughput <= e.high for e, truth in zip(expected, later, strict=True)]
    return found


def mean_over_curves(name: str, values: Sequence[float], unit: str, bar: float) -> ValueBar:
    """Make the bar of a mean over curves, with a bootstrap interval."""
    drawn = np.random.default_rng(0).choice(np.array(values), (DRAWS, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return ValueBar(name, float(np.mean(values)), float(low), float(high), unit, bar)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    parser.parse_args()
    curves = load_scaling_curves()
    table = {name: [float(np.mean(errors(curve.points, guess))) for curve in curves] for name, guess in GUESSES.items()}
    width = max(map(len, GUESSES))
    print(f"{'mean error':<{width}}  " + "  ".join(f"{curve.name[:22]:>22}" for curve in curves) + "    mean")
    for name, means in table.items():
        cells = "  ".join(f"{mean:>22.1%}" for mean in means)
        print(f"{name:<{width}}  {cells}  {np.mean(means):>6.1%}")
    print()
    hits = [hit for curve in curves for hit in inside(curve.points)]
    mine = table.pop("ours")
    covered = sum(hits) / len(hits)
    finish(
        [
            mean_over_curves("mean error", mine, "of the truth", 0.05),
            *(
                mean_over_curves(f"mean error less that of {name}", np.subtract(mine, theirs), "of the truth", 0.0)
                for name, theirs in table.items()
            ),
            ValueBar("truths inside the interval", covered, covered, covered, f"of {len(hits)}", 0.80, "least"),
            ValueBar("truths inside the interval, at most", covered, covered, covered, f"of {len(hits)}", 0.98),
        ]
    )


if __name__ == "__main__":
    main()
