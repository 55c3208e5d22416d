"""Compare epsilon with textbook formulas and another accountant, and test the search for noise. Tests that only need
the library's interface also run with a stand-in, so that they run everywhere."""

import dataclasses
import math
import sys
from types import SimpleNamespace

import pytest
from dp_oracle import gaussian_epsilon, pld_epsilon, rdp_epsilon

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.dp.accounting import Epsilon, Spent, check_delta, epsilon, noise_multiplier_for
from rigdyno.engines.dp.errors import BadSetting

MNIST = Spent(noise_multiplier=1.1, sample_rate=256 / 60000, steps=14062)
SETTINGS = [
    [(1.1, 256 / 60000, 14062)],
    [(0.8, 0.01, 1000)],
    [(1.0, 0.1, 50)],
    [(0.6, 0.001, 500)],
    [(3.0, 1.0, 10)],
    [(50.0, 0.01, 1000)],
    [(1.0, 0.01, 500), (2.0, 0.05, 300)],
]


def as_spent(runs):
    return [Spent(*run) for run in runs]


class StandIn:
    """Has the interface of dp_accounting, and counts the calls. Its tight bound is nine tenths of the loose one."""

    def __init__(self):
        self.pld_asked = 0
        self.NeighboringRelation = SimpleNamespace(ADD_OR_REMOVE_ONE="add or remove")
        self.pld = SimpleNamespace(PLDAccountant=lambda relation: StandInAccountant(self, relation, tight=True))
        self.rdp = SimpleNamespace(RdpAccountant=lambda orders, relation: StandInAccountant(self, relation))

    def GaussianDpEvent(self, noise_multiplier):  # noqa: N802
        return (noise_multiplier, 1.0)

    def PoissonSampledDpEvent(self, sampling_probability, event):  # noqa: N802
        return (event[0], sampling_probability)


class StandInAccountant:
    def __init__(self, library, relation, tight=False):
        assert relation == library.NeighboringRelation.ADD_OR_REMOVE_ONE
        self.library, self.tight, self.runs = library, tight, []

    def compose(self, event, count):
        self.runs.append((*event, count))
        return self

    def get_epsilon(self, target_delta):
        self.library.pld_asked += self.tight
        return (0.9 if self.tight else 1.0) * rdp_epsilon(self.runs, target_delta, (*range(2, 65), 128, 512, 2048))


@pytest.fixture
def stand_in(monkeypatch):
    library = StandIn()
    monkeypatch.setitem(sys.modules, "dp_accounting", library)
    return library


@pytest.fixture(params=["stand-in", "dp_accounting"])
def library(request):
    if request.param == "dp_accounting":
        return pytest.importorskip("dp_accounting")
    return request.getfixturevalue("stand_in")


# The oracle itself.


def test_the_binomial_sum_gives_the_published_epsilon():
    assert rdp_epsilon([dataclasses.astuple(MNIST)], 1e-5) == pytest.approx(2.5966, abs=0.01)


def test_the_loss_distribution_is_within_the_published_bounds():
    assert pld_epsilon([dataclasses.astuple(MNIST)], 1e-5) == pytest.approx(2.3817, abs=0.002)


@pytest.mark.parametrize(("sigma", "steps", "delta"), [(3.0, 10, 1e-5), (10.0, 100, 1e-6), (1.0, 1, 1e-3)])
def test_the_loss_distribution_without_sampling_is_the_exact_gaussian(sigma, steps, delta):
    assert pld_epsilon([(sigma, 1.0, steps)], delta) == pytest.approx(gaussian_epsilon(sigma, steps, delta), abs=1e-4)


@pytest.mark.parametrize("runs", SETTINGS)
def test_the_tight_bound_is_below_the_loose_one(runs):
    assert pld_epsilon(runs, 1e-5) < rdp_epsilon(runs, 1e-5)


# The library compared with the oracle.


def test_epsilon_matches_published_values():
    pytest.importorskip("dp_accounting")
    found = epsilon([MNIST], 1e-5)
    assert found.epsilon == pytest.approx(2.3817, abs=0.002)
    assert 2.3716 <= found.epsilon <= 2.3916
    assert found.by_rdp == pytest.approx(2.5966, abs=0.001)


@pytest.mark.parametrize("runs", SETTINGS)
def test_epsilon_matches_the_oracle(runs):
    pytest.importorskip("dp_accounting")
    found, tight = epsilon(as_spent(runs), 1e-5), pld_epsilon(runs, 1e-5)
    assert found.epsilon == pytest.approx(tight, rel=0.01, abs=2e-3)
    assert found.epsilon >= tight - 1e-3
    # The library also uses orders that aren't integers, so its result may only be lower.
    assert tight - 1e-3 <= found.by_rdp <= rdp_epsilon(runs, 1e-5, range(2, 64)) + 1e-6


def test_epsilon_matches_prv_accountant():
    pytest.importorskip("dp_accounting")
    prv = pytest.importorskip("prv_accountant")
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    mechanism = PoissonSubsampledGaussianMechanism(
        noise_multiplier=MNIST.noise_multiplier, sampling_probability=MNIST.sample_rate
    )
    other = prv.PRVAccountant(prvs=[mechanism], max_self_compositions=[MNIST.steps], eps_error=0.01, delta_error=1e-10)
    low, _, high = other.compute_epsilon(delta=1e-5, num_self_compositions=[MNIST.steps])
    assert low <= epsilon([MNIST], 1e-5).epsilon <= high


# Properties of both libraries.


def test_epsilon_of_no_steps_is_zero():
    assert epsilon([], 1e-5) == Epsilon(0.0, 0.0, 1e-5)


def test_epsilon_without_noise_is_infinite():
    nothing_added = Spent(0.0, 0.01, 1)
    assert epsilon([Spent(1.0, 0.01, 10), nothing_added], 1e-5).epsilon == math.inf
    assert epsilon([Spent(1e-300, 0.01, 1)], 1e-5).by_rdp == math.inf


def test_epsilon_by_pld_is_below_that_by_rdp(library):
    found = epsilon([Spent(1.0, 0.01, 100)], 1e-5)
    assert 0 < found.epsilon < found.by_rdp
    assert (found.delta, found.adjacency) == (1e-5, "add or remove one sample")


def test_the_order_of_steps_doesn_t_matter(library):
    one, two = Spent(1.0, 0.01, 10), Spent(2.0, 0.01, 10)
    mixed = [one, two, one, two]
    assert epsilon(mixed, 1e-5) == epsilon([Spent(1.0, 0.01, 20), Spent(2.0, 0.01, 20)], 1e-5)


def test_more_steps_and_less_noise_cost_more(library):
    few, many, quiet = Spent(1.0, 0.01, 10), Spent(1.0, 0.01, 100), Spent(0.8, 0.01, 100)
    assert epsilon([few], 1e-5).epsilon < epsilon([many], 1e-5).epsilon < epsilon([quiet], 1e-5).epsilon


def test_the_loose_epsilon_is_used_for_both_if_the_loss_is_too_large(stand_in):
    hardly_private = epsilon([Spent(0.1, 1.0, 50)], 1e-5)
    assert hardly_private.epsilon == hardly_private.by_rdp > 200
    assert stand_in.pld_asked == 0


@pytest.mark.parametrize(
    ("target", "rate", "steps", "already"),
    [
        (2.0, 0.01, 1000, []),
        (0.5, 0.01, 1000, []),
        (8.0, 0.05, 500, []),
        (3.0, 0.01, 1000, [Spent(1.0, 0.01, 500)]),
        (1.0, 1.0, 5, []),
    ],
)
def test_the_noise_found_is_the_least_that_keeps_to_the_target(stand_in, target, rate, steps, already):
    assert_least(target, rate, steps, already)


def test_the_noise_found_is_the_least_with_the_real_library():
    pytest.importorskip("dp_accounting")
    assert_least(1.5, 0.05, 50, [Spent(2.0, 0.05, 20)])


def assert_least(target, rate, steps, already):
    noise = noise_multiplier_for(target, 1e-5, rate, steps, already)
    assert epsilon([*already, Spent(noise, rate, steps)], 1e-5).epsilon <= target
    assert epsilon([*already, Spent(noise * (1 - 1.5e-3), rate, steps)], 1e-5).epsilon > target


def test_the_noise_found_matches_a_published_run():
    pytest.importorskip("dp_accounting")
    assert noise_multiplier_for(2.3817, 1e-5, MNIST.sample_rate, MNIST.steps) == pytest.approx(1.1, rel=2e-3)


@pytest.mark.parametrize("target", [0.01, 0.1, 1.0, 10.0, 100.0])
def test_the_search_takes_few_trials(stand_in, target):
    noise_multiplier_for(target, 1e-5, 0.01, 2000)
    assert stand_in.pld_asked <= 12


def test_the_search_takes_few_trials_when_nearly_all_is_spent(stand_in):
    already = [Spent(1.0, 0.01, 1000)]
    spent = epsilon(already, 1e-5).epsilon
    noise = noise_multiplier_for(spent * 1.001, 1e-5, 0.01, 1000, already)
    assert spent < epsilon([*already, Spent(noise, 0.01, 1000)], 1e-5).epsilon <= spent * 1.001
    assert stand_in.pld_asked <= 25


def test_the_least_noise_is_enough_at_a_tiny_sample_rate(stand_in, monkeypatch):
    monkeypatch.setattr(StandInAccountant, "get_epsilon", lambda self, target_delta: 0.0)
    assert noise_multiplier_for(1.0, 1e-5, 1e-7, 1) == pytest.approx(0.05)


def test_a_target_below_what_is_already_spent_is_refused(library):
    with pytest.raises(BadSetting, match=r"nothing is left of epsilon 0\.5: already spent is epsilon"):
        noise_multiplier_for(0.5, 1e-5, 0.01, 100, [Spent(0.8, 0.05, 500)])
    with pytest.raises(BadSetting, match="already spent is epsilon inf"):
        noise_multiplier_for(0.5, 1e-5, 0.01, 100, [Spent(0.0, 0.05, 5)])


def test_a_target_that_no_noise_reaches_is_refused(stand_in, monkeypatch):
    monkeypatch.setattr(StandInAccountant, "get_epsilon", lambda self, target_delta: 2.0)
    with pytest.raises(BadSetting, match="no noise up to 1e\\+09 keeps to epsilon 1: "):
        noise_multiplier_for(1.0, 1e-5, 0.01, 100)


def test_epsilon_is_shown_rounded_up():
    assert str(Epsilon(2.38171, 2.5966, 1e-5)) == (
        "epsilon 2.382 (2.597 by RDP) at delta 1e-05, to add or remove one sample"
    )
    assert str(Epsilon(math.inf, math.inf, 1e-5)).startswith("epsilon inf (inf by RDP)")


@pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf, "1", None, True])
def test_an_invalid_noise_multiplier_is_refused(sigma):
    with pytest.raises(BadSetting, match="noise multiplier must be a finite number"):
        Spent(sigma, 0.01, 1)


@pytest.mark.parametrize("rate", [0, -0.1, 1.0001, math.nan, "0.1", None, True])
def test_an_invalid_sample_rate_is_refused(rate):
    with pytest.raises(BadSetting, match="sample rate must be above 0 and at most 1"):
        Spent(1.0, rate, 1)
    with pytest.raises(BadSetting, match="sample rate"):
        noise_multiplier_for(1.0, 1e-5, rate, 1)


@pytest.mark.parametrize("steps", [0, -1, 1.0, True, None, 10**400])
def test_an_invalid_number_of_steps_is_refused(steps):
    with pytest.raises(BadSetting, match="steps must be a positive whole number"):
        Spent(1.0, 0.01, steps)
    with pytest.raises(BadSetting, match="steps"):
        noise_multiplier_for(1.0, 1e-5, 0.01, steps)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 2, math.nan, None, "1e-5"])
def test_an_invalid_delta_is_refused(delta):
    for asked in (
        lambda: epsilon([], delta),
        lambda: noise_multiplier_for(1.0, delta, 0.1, 1),
        lambda: check_delta(delta, 9),
    ):
        with pytest.raises(BadSetting, match="delta must be between 0 and 1"):
            asked()


@pytest.mark.parametrize("target", [0, -1.0, math.inf, math.nan, None])
def test_an_invalid_target_is_refused(target):
    with pytest.raises(BadSetting, match="target epsilon must be a positive number"):
        noise_multiplier_for(target, 1e-5, 0.1, 1)


def test_the_rdp_accountant_gives_the_loose_epsilon_only(stand_in):
    found = epsilon([MNIST], 1e-5, accountant="rdp")
    assert found.epsilon == found.by_rdp > 0
    assert stand_in.pld_asked == 0


def test_the_loose_accountant_never_finds_less_noise_than_the_tight_one():
    pytest.importorskip("dp_accounting")
    tight, loose = (noise_multiplier_for(2.0, 1e-5, 1.0, 10, accountant=kind) for kind in ("pld", "rdp"))
    assert loose > tight
    assert rdp_epsilon([(loose, 1.0, 10)], 1e-5) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("name", "words"), [("gdp", "below the true value"), ("prv", "'pld'"), ("moments", "'rdp'")])
def test_unsupported_accountants_are_refused(name, words):
    with pytest.raises(BadSetting, match=words):
        epsilon([MNIST], 1e-5, accountant=name)


def test_delta_must_be_below_one_over_the_number_of_samples():
    check_delta(1e-5, 60_000)
    with pytest.raises(BadSetting, match=r"delta 1e-05 is too large for 100000 samples.*try 1e-06"):
        check_delta(1e-5, 100_000)
    with pytest.raises(BadSetting, match="samples must be a positive whole number"):
        check_delta(1e-5, 0)


def test_a_missing_library_is_reported_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtra, match=r"privacy accounting needs dp-accounting: pip install 'rigdyno\[private\]'"):
        epsilon([MNIST], 1e-5)
