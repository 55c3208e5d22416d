"""Privacy accounting: compute the epsilon of a run, and the noise multiplier that keeps to a target epsilon.

Every step is one Poisson-subsampled Gaussian mechanism; neighbouring datasets differ by one sample added or removed.
Two upper bounds are computed: by privacy loss distributions (tight), and by Rényi divergence (looser, and quick). The
central-limit approximation ('GDP') is not used: it comes out below the true value.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.dp.errors import BadSetting

# Noise multipliers below this count as no noise: even the arithmetic of Rényi divergence overflows.
NO_NOISE = 1e-6

# The grid of privacy losses has a point every 1e-4. Less noise or a larger epsilon takes gigabytes and adds no insight.
LEAST_NOISE_OF_PLD = 0.05

LARGEST_EPSILON_OF_PLD = 200.0

MOST_NOISE = 1e9

TOLERANCE = 1e-3  # relative error of the noise multiplier found

LONGEST_STRIDE = 2.0  # largest factor between two trials: overshooting to very little noise takes time and memory

MOST_TRIALS = 24  # inside a bracket; two to five are usually enough, and each takes up to a few seconds

MOST_STEPS = 2**53  # larger counts aren't exact as floats

# Integer Rényi orders are quick to compute, and good enough for a first guess.
ROUGH_ORDERS = (*range(2, 64), 128, 256, 512, 1024)

Accountant = Literal["pld", "rdp"]

UNSUPPORTED = {
    "prv": "'pld' is the tight accountant here: privacy loss distributions too, and never below the true value",
    "gdp": "its central-limit approximation comes out below the true value",
}


@dataclass(frozen=True)
class Spent:
    """A run of equal steps. A noise multiplier of zero is allowed; its epsilon is infinite."""

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        if not (_is_number(self.noise_multiplier) and 0 <= self.noise_multiplier < math.inf):
            raise BadSetting(f"the noise multiplier must be a finite number, not negative: {self.noise_multiplier!r}")
        check_sample_rate(self.sample_rate)
        check_count("steps", self.steps)

    def same_kind(self, other: Spent) -> bool:
        """Return True if both have the same noise multiplier and sample rate."""
        return (self.noise_multiplier, self.sample_rate) == (other.noise_multiplier, other.sample_rate)


@dataclass(frozen=True)
class Epsilon:
    """Epsilon by privacy loss distributions, together with the more conservative figure by Rényi divergence."""

    epsilon: float
    by_rdp: float
    delta: float
    adjacency: str = "add or remove one sample"

    def __str__(self) -> str:
        tight, loose = _round_up(self.epsilon), _round_up(self.by_rdp)
        return f"epsilon {tight:g} ({loose:g} by RDP) at delta {self.delta:g}, to {self.adjacency}"


def epsilon(spent: Sequence[Spent], delta: float, accountant: Accountant = "pld") -> Epsilon:
    """Return the epsilon of everything in `spent` together.

    The Rényi figure stands for both if it is asked for, or if the loss is too large for privacy loss distributions.
    """
    check_accountant(accountant)
    _check_probability("delta", delta)
    if not spent:
        return Epsilon(0.0, 0.0, delta)
    least_noise = min(run.noise_multiplier for run in spent)
    if least_noise < NO_NOISE:
        return Epsilon(math.inf, math.inf, delta)
    by_rdp = float(_compose(_make_rdp_accountant(), spent).get_epsilon(delta))
    if accountant == "rdp" or by_rdp > LARGEST_EPSILON_OF_PLD or least_noise < LEAST_NOISE_OF_PLD:
        return Epsilon(by_rdp, by_rdp, delta)
    return Epsilon(float(_compose(_make_pld_accountant(), spent).get_epsilon(delta)), by_rdp, delta)


def noise_multiplier_for(
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    already: Sequence[Spent] = (),
    accountant: Accountant = "pld",
) -> float:
    """Return the least noise multiplier with which `steps` more steps end at or below the target epsilon.

    The result is exact to a thousandth, and its epsilon was computed and found to be within the target. It is never
    below 0.05: there is no meaningful privacy below that.
    """
    if not (_is_number(target_epsilon) and 0 < target_epsilon < math.inf):
        raise BadSetting(f"the target epsilon must be a positive number: {target_epsilon!r}")
    check_sample_rate(sample_rate)
    check_count("steps", steps)
    before = epsilon(already, delta, accountant)
    if before.epsilon >= target_epsilon:
        raise BadSetting(f"nothing is left of epsilon {target_epsilon:g}: already spent is {before}")

    def rough_epsilon(noise: float) -> float:
        planned = [Spent(noise, sample_rate, steps)]
        return float(_compose(_make_rdp_accountant(ROUGH_ORDERS), planned).get_epsilon(delta))

    def total_epsilon(noise: float) -> float:
        return epsilon([*already, Spent(noise, sample_rate, steps)], delta, accountant).epsilon

    guess = _find_least_noise(rough_epsilon, target_epsilon, start=1.0)
    return _find_least_noise(total_epsilon, target_epsilon, start=guess)


def check_accountant(name: str) -> None:
    if name not in get_args(Accountant):
        reason = UNSUPPORTED.get(name, "it must be 'pld' or 'rdp'")
        raise BadSetting(f"no accountant {name!r}: {reason}")


def check_delta(delta: float, samples: int) -> None:
    """Raise BadSetting unless delta is below one over the number of samples.

    Delta bounds the probability that a sample is disclosed entirely, so it must be small compared with that.
    """
    _check_probability("delta", delta)
    check_count("samples", samples)
    if delta >= 1 / samples:
        raise BadSetting(
            f"delta {delta:g} is too large for {samples} samples: a delta of 1/N allows a whole sample to be "
            f"published; try {0.1 / samples:.0e}"
        )


def check_sample_rate(sample_rate: float) -> None:
    if not (_is_number(sample_rate) and 0 < sample_rate <= 1):
        raise BadSetting(f"the sample rate must be above 0 and at most 1: {sample_rate!r}")


def check_count(name: str, count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_STEPS:
        raise BadSetting(f"{name} must be a positive whole number: {count!r}")


class _Trial(NamedTuple):
    noise: float
    epsilon: float


def _find_least_noise(cost: Callable[[float], float], target: float, start: float) -> float:
    """Narrow a bracket of too little noise and enough noise until the two are a thousandth apart."""
    little, enough = _bracket_target(cost, target, start)
    for trial in range(MOST_TRIALS):
        if enough.noise <= little.noise * (1 + TOLERANCE):
            break
        # Aim alternately above and below the estimated crossing, so that the bracket closes from both sides.
        offset = TOLERANCE / 3 * (-1) ** trial
        noise = _interpolate_noise(little, enough, target) * (1 + offset)
        here = _try_noise(cost, min(max(noise, little.noise), enough.noise))
        little, enough = (little, here) if here.epsilon <= target else (here, enough)
    return enough.noise


def _bracket_target(cost: Callable[[float], float], target: float, start: float) -> tuple[_Trial, _Trial]:
    """Search from `start` until the target is between two trials: too little noise, and enough."""
    stride = 1.1
    here = _try_noise(cost, start)
    down = here.epsilon <= target
    while (here.epsilon <= target) == down:
        if down and here.noise <= LEAST_NOISE_OF_PLD:
            return here, here
        if not down and here.noise >= MOST_NOISE:
            raise BadSetting(f"no noise up to {MOST_NOISE:g} keeps to epsilon {target:g}: take fewer steps")
        noise = here.noise / stride if down else here.noise * stride
        before, here = here, _try_noise(cost, min(max(noise, LEAST_NOISE_OF_PLD), MOST_NOISE))
        stride = min(stride**2, LONGEST_STRIDE)
    return (here, before) if down else (before, here)


def _try_noise(cost: Callable[[float], float], noise: float) -> _Trial:
    return _Trial(noise, cost(noise))


def _interpolate_noise(little: _Trial, enough: _Trial, target: float) -> float:
    """Return the noise at which a straight line through both trials, on logarithmic scales, meets the target.

    Epsilon is nearly a power of the noise multiplier.
    """
    share = 0.5
    if 0 < enough.epsilon < little.epsilon < math.inf:
        share = math.log(little.epsilon / target) / math.log(little.epsilon / enough.epsilon)
    return float(little.noise * (enough.noise / little.noise) ** share)


def _compose(accountant: Any, spent: Sequence[Spent]) -> Any:
    """Add all steps to the accountant. Their order doesn't matter, so equal steps are composed together."""
    steps: dict[tuple[float, float], int] = {}
    for run in spent:
        kind = (run.noise_multiplier, run.sample_rate)
        steps[kind] = steps.get(kind, 0) + run.steps
    for (noise, rate), count in steps.items():
        accountant.compose(_make_event(noise, rate), count)
    return accountant


def _make_event(noise_multiplier: float, sample_rate: float) -> Any:
    gaussian = _import_library().GaussianDpEvent(noise_multiplier)
    if sample_rate == 1:  # Gaussians without sampling compose exactly, without the grid
        return gaussian
    return _import_library().PoissonSampledDpEvent(sample_rate, gaussian)


def _make_pld_accountant() -> Any:
    return _import_library().pld.PLDAccountant(_import_library().NeighboringRelation.ADD_OR_REMOVE_ONE)


def _make_rdp_accountant(orders: Sequence[int] | None = None) -> Any:
    return _import_library().rdp.RdpAccountant(orders, _import_library().NeighboringRelation.ADD_OR_REMOVE_ONE)


def _import_library() -> ModuleType:
    try:
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise MissingExtra("privacy accounting needs dp-accounting: pip install 'rigdyno[private]'") from error


def _check_probability(name: str, value: float) -> None:
    if not (_is_number(value) and 0 < value < 1):
        raise BadSetting(f"{name} must be between 0 and 1: {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _round_up(value: float) -> float:
    """Round up to three decimals, so that an upper bound stays one when it is shown."""
    return math.ceil(value * 1000) / 1000 if math.isfinite(value) else value
