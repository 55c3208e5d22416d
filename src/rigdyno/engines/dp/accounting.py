"""What a run costs in privacy: epsilon of what was spent, and the noise that keeps to a given epsilon.

Every step is one Poisson-subsampled Gaussian mechanism; neighbours differ by one sample added or removed. Two bounds
from above stand side by side: privacy loss distributions (tight) and Rényi divergence (looser, and quick). The
central-limit approximation ('GDP') is used nowhere: it comes out below the true value.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

from rigdyno.engines.dp.errors import BadSetting, MissingExtra

# Below it, even the arithmetic of Rényi divergence overflows: as good as no noise.
NO_NOISE = 1e-6
# The grid of losses has a point every 1e-4: less noise, or a larger epsilon, takes gigabytes and says nothing more.
LEAST_NOISE_OF_PLD = 0.05
LARGEST_EPSILON_OF_PLD = 200.0
MOST_NOISE = 1e9
TOLERANCE = 1e-3  # relative, of the noise multiplier found
LONGEST_STRIDE = 2.0  # of the search: overshooting down to very little noise is what takes time and memory
MOST_TRIALS = 24  # inside a bracket; two to five do, of up to some seconds each
MOST_STEPS = 2**53  # counts beyond it aren't whole as floats
# Whole orders are quick, and good enough for a first guess.
ROUGH_ORDERS = (*range(2, 64), 128, 256, 512, 1024)


Accountant = Literal["pld", "rdp"]
NOT_OFFERED = {
    "prv": "'pld' is the tight accountant here: privacy loss distributions too, and never below the true value",
    "gdp": "its central-limit approximation comes out below the true value",
}


@dataclass(frozen=True)
class Spent:
    """A run of equal steps. A noise multiplier of zero is allowed, and costs all there is."""

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        if not (_is_number(self.noise_multiplier) and 0 <= self.noise_multiplier < math.inf):
            raise BadSetting(f"the noise multiplier must be a finite number, not negative: {self.noise_multiplier!r}")
        check_sample_rate(self.sample_rate)
        check_count("steps", self.steps)

    def same_kind(self, other: Spent) -> bool:
        return (self.noise_multiplier, self.sample_rate) == (other.noise_multiplier, other.sample_rate)


@dataclass(frozen=True)
class Epsilon:
    """By privacy loss distributions, with Rényi's more conservative figure beside it."""

    epsilon: float
    by_rdp: float
    delta: float
    adjacency: str = "add or remove one sample"

    def __str__(self) -> str:
        tight, loose = _rounded_up(self.epsilon), _rounded_up(self.by_rdp)
        return f"epsilon {tight:g} ({loose:g} by RDP) at delta {self.delta:g}, to {self.adjacency}"


def epsilon(spent: Sequence[Spent], delta: float, accountant: Accountant = "pld") -> Epsilon:
    """Of everything in `spent` together. Rényi's figure is both where it is asked for, and where the loss is beyond all
    measure."""
    check_accountant(accountant)
    _check_probability("delta", delta)
    if not spent:
        return Epsilon(0.0, 0.0, delta)
    least_noise = min(run.noise_multiplier for run in spent)
    if least_noise < NO_NOISE:
        return Epsilon(math.inf, math.inf, delta)
    by_rdp = float(_composed(_rdp_accountant(), spent).get_epsilon(delta))
    if accountant == "rdp" or by_rdp > LARGEST_EPSILON_OF_PLD or least_noise < LEAST_NOISE_OF_PLD:
        return Epsilon(by_rdp, by_rdp, delta)
    return Epsilon(float(_composed(_pld_accountant(), spent).get_epsilon(delta)), by_rdp, delta)


def noise_multiplier_for(
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    already: Sequence[Spent] = (),
    accountant: Accountant = "pld",
) -> float:
    """The least noise, to a thousandth, with which `steps` more steps end at or below the target. The figure handed
    back was tried itself. It is never below 0.05, where there is no privacy to speak of."""
    if not (_is_number(target_epsilon) and 0 < target_epsilon < math.inf):
        raise BadSetting(f"the target epsilon must be a positive number: {target_epsilon!r}")
    check_sample_rate(sample_rate)
    check_count("steps", steps)
    before = epsilon(already, delta, accountant)
    if before.epsilon >= target_epsilon:
        raise BadSetting(f"nothing is left of epsilon {target_epsilon:g}: already spent is {before}")

    def by_rdp_alone(noise: float) -> float:
        planned = [Spent(noise, sample_rate, steps)]
        return float(_composed(_rdp_accountant(ROUGH_ORDERS), planned).get_epsilon(delta))

    def with_all_before(noise: float) -> float:
        return epsilon([*already, Spent(noise, sample_rate, steps)], delta, accountant).epsilon

    guess = _least_noise(by_rdp_alone, target_epsilon, start=1.0)
    return _least_noise(with_all_before, target_epsilon, start=guess)


def check_accountant(name: str) -> None:
    if name not in get_args(Accountant):
        reason = NOT_OFFERED.get(name, "it must be 'pld' or 'rdp'")
        raise BadSetting(f"no accountant {name!r}: {reason}")


def check_delta(delta: float, samples: int) -> None:
    """Delta bounds the chance of a total loss, for each sample: it must be small against one over their number."""
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


def _least_noise(cost: Callable[[float], float], target: float, start: float) -> float:
    """Between a noise that is too little and one that is enough, until they are a thousandth apart."""
    little, enough = _bracket(cost, target, start)
    for trial in range(MOST_TRIALS):
        if enough.noise <= little.noise * (1 + TOLERANCE):
            break
        # Aimed beyond the crossing and short of it in turn, so that the bracket closes from both sides.
        aside = TOLERANCE / 3 * (-1) ** trial
        noise = _crossing(little, enough, target) * (1 + aside)
        here = _tried(cost, min(max(noise, little.noise), enough.noise))
        little, enough = (little, here) if here.epsilon <= target else (here, enough)
    return enough.noise


def _bracket(cost: Callable[[float], float], target: float, start: float) -> tuple[_Trial, _Trial]:
    """Walks from the start until the target lies between two trials: too little noise, and enough."""
    stride = 1.1
    here = _tried(cost, start)
    down = here.epsilon <= target
    while (here.epsilon <= target) == down:
        if down and here.noise <= LEAST_NOISE_OF_PLD:
            return here, here
        if not down and here.noise >= MOST_NOISE:
            raise BadSetting(f"no noise up to {MOST_NOISE:g} keeps to epsilon {target:g}: take fewer steps")
        noise = here.noise / stride if down else here.noise * stride
        before, here = here, _tried(cost, min(max(noise, LEAST_NOISE_OF_PLD), MOST_NOISE))
        stride = min(stride**2, LONGEST_STRIDE)
    return (here, before) if down else (before, here)


def _tried(cost: Callable[[float], float], noise: float) -> _Trial:
    return _Trial(noise, cost(noise))


def _crossing(little: _Trial, enough: _Trial, target: float) -> float:
    """Where the straight line through both, on logarithmic scales, meets the target: epsilon is nearly a power."""
    share = 0.5
    if 0 < enough.epsilon < little.epsilon < math.inf:
        share = math.log(little.epsilon / target) / math.log(little.epsilon / enough.epsilon)
    return float(little.noise * (enough.noise / little.noise) ** share)


def _composed(accountant: Any, spent: Sequence[Spent]) -> Any:
    """The order doesn't matter, so equal steps are composed at once, however they were mixed."""
    steps: dict[tuple[float, float], int] = {}
    for run in spent:
        kind = (run.noise_multiplier, run.sample_rate)
        steps[kind] = steps.get(kind, 0) + run.steps
    for (noise, rate), count in steps.items():
        accountant.compose(_event(noise, rate), count)
    return accountant


def _event(noise_multiplier: float, sample_rate: float) -> Any:
    gaussian = _library().GaussianDpEvent(noise_multiplier)
    if sample_rate == 1:  # plain Gaussians compose exactly, off the grid
        return gaussian
    return _library().PoissonSampledDpEvent(sample_rate, gaussian)


def _pld_accountant() -> Any:
    return _library().pld.PLDAccountant(_library().NeighboringRelation.ADD_OR_REMOVE_ONE)


def _rdp_accountant(orders: Sequence[int] | None = None) -> Any:
    return _library().rdp.RdpAccountant(orders, _library().NeighboringRelation.ADD_OR_REMOVE_ONE)


def _library() -> ModuleType:
    try:
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise MissingExtra("privacy accounting needs dp-accounting: pip install 'rigdyno[private]'") from error


def _check_probability(name: str, value: float) -> None:
    if not (_is_number(value) and 0 < value < 1):
        raise BadSetting(f"{name} must lie between 0 and 1: {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rounded_up(value: float) -> float:
    """A bound stays one when it is shown with three decimals."""
    return math.ceil(value * 1000) / 1000 if math.isfinite(value) else value
