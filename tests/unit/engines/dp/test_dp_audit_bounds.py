"""Compare the two tests of a claim with their definitions: exact distributions, brute force, and engines of known
epsilon.

Simulations have fixed seeds. A correct bound would fail one of them with the probability given there.
"""

import itertools
import math

import numpy as np
import pytest
from dp_oracle import gaussian_epsilon
from scipy import stats

from rigdyno.engines.dp.audit.betting import (
    LEARNING_RUNS,
    Bettor,
    EventCounts,
    Moments,
    most_showable,
    p_value,
    payoff,
    runs_to_show,
)
from rigdyno.engines.dp.audit.methods import (
    Events,
    best_p_value,
    binomial_masses,
    guess_membership,
    guess_numbers,
    guess_p_value,
    most_showable_once,
)
from rigdyno.engines.dp.audit.runs import AuditRun
from rigdyno.engines.dp.audit.verdict import ClaimPoint, lower_bound
from rigdyno.engines.dp.errors import BadSetting


class TestGuesses:
    @pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0, 30.0])
    @pytest.mark.parametrize("trials", [1, 7, 100, 8000])
    def test_masses_match_scipy(self, trials, epsilon):
        # Compare wrong guesses too: their probabilities aren't lost by rounding near one.
        expected = stats.binom.pmf(np.arange(trials + 1)[::-1], trials, 1 / (1 + math.exp(epsilon)))
        np.testing.assert_allclose(binomial_masses(trials, epsilon), expected, rtol=1e-6, atol=1e-250)

    @pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
    @pytest.mark.parametrize("right", range(7))
    def test_the_p_value_of_randomised_response_is_exact(self, epsilon, right):
        """It answers for each canary independently, correctly with probability exp(epsilon) / (1 + exp(epsilon)): all
        64 outcomes are enumerated."""
        chance = 1 / (1 + math.exp(-epsilon))
        outcomes = itertools.product((True, False), repeat=6)
        exact = sum(math.prod(chance if hit else 1 - chance for hit in each) for each in outcomes if sum(each) >= right)
        assert guess_p_value(right, 6, 6, ClaimPoint(epsilon, 0.0)) == pytest.approx(exact)

    @pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
    @pytest.mark.parametrize("canaries", [5, 40])
    def test_the_p_value_covers_engines_that_spend_delta_on_blocks(self, canaries, epsilon):
        """With probability delta, a block of canaries of any size is published; the rest is randomised response. The
        probability is exact, and the bound must be above it for each size and each number of right guesses."""
        delta, chance = 1e-3, 1 / (1 + math.exp(-epsilon))
        for block, right in itertools.product(range(1, canaries + 1), range(canaries + 1)):
            published = delta * canaries / block  # disjoint blocks: each canary is in the published one with delta
            usual = stats.binom.sf(right - 1, canaries, chance)
            helped = stats.binom.sf(right - block - 1, canaries - block, chance)
            exact = (1 - published) * usual + published * helped
            assert guess_p_value(right, canaries, canaries, ClaimPoint(epsilon, delta)) >= exact - 1e-12

    def test_more_right_guesses_are_less_likely(self):
        values = [guess_p_value(right, 500, 3000, ClaimPoint(1.0, 1e-6)) for right in range(501)]
        assert values == sorted(values, reverse=True)
        assert values[0] == 1
        assert values[-1] < 1e-4

    def test_the_gaussian_mechanism_is_rarely_refuted(self):
        """300 runs of 400 canaries, each with a true claim: more than 15 refuted would be above 5 %. The bound isn't
        tight here (Gaussian noise isn't the worst engine), so none is expected."""
        random, point = np.random.default_rng(1), ClaimPoint(gaussian_epsilon(1.0, 1, 1e-5), 1e-5)
        refuted = sum(
            best_p_value(guess_membership(gaussian_run(random, 400, 1.0)), 400, point)[0] <= 0.05 for _ in range(300)
        )
        assert refuted <= 15

    @pytest.mark.parametrize(("truth", "most"), [(0.0, 30), (1.0, 30)])
    def test_randomised_response_is_refuted_at_the_level(self, truth, most):
        """This is the worst engine: of 400 true claims, 5 % are 20; more than 30 have a probability of 1.3 %."""
        random, chance = np.random.default_rng(2), 1 / (1 + math.exp(-truth))
        refuted = 0
        for _ in range(400):
            included = random.random(200) < 0.5
            answers = np.where(random.random(200) < chance, included, ~included)
            run = AuditRun(included, answers[None].astype(float))
            refuted += best_p_value(guess_membership(run), 200, ClaimPoint(truth, 0.0))[0] <= 0.05
        assert refuted <= most

    def test_too_little_noise_is_refuted(self):
        """The noise is 0.3 of that claimed, in one run of 2000 canaries."""
        run = gaussian_run(np.random.default_rng(3), 2000, 0.3 * 2.0)
        p, best = best_p_value(guess_membership(run), 2000, ClaimPoint(gaussian_epsilon(2.0, 1, 1e-7), 1e-7))
        assert p <= 0.001
        assert best.right > 0.9 * best.guesses

    def test_equal_traces_count_as_one_test(self):
        run = gaussian_run(np.random.default_rng(4), 100, 1.0)
        twice = AuditRun(run.included, np.repeat(run.scores, 2, axis=0))
        assert guess_membership(twice) == guess_membership(run)
        assert len(guess_membership(run)) == len(guess_numbers(100))

    def test_the_largest_showable_epsilon_grows_with_the_canaries(self):
        shown = [most_showable_once(canaries, 6, 0.0, 0.95) for canaries in (10, 100, 1000, 5000)]
        assert shown == sorted(shown)
        # All of 1000 guesses right, at one sixth of 5 %: probability**1000 = 0.05 / 6.
        assert shown[2] == pytest.approx(-math.log((0.05 / 6) ** -1e-3 - 1), abs=1e-6)

    @pytest.mark.parametrize(("right", "guesses", "canaries"), [(-1, 5, 5), (6, 5, 5), (1, 6, 5)])
    def test_impossible_counts_are_refused(self, right, guesses, canaries):
        with pytest.raises(BadSetting, match="is impossible"):
            guess_p_value(right, guesses, canaries, ClaimPoint(1.0, 0.0))


class TestBetting:
    @pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.3), (1.0, 0.0), (3.0, 0.1)])
    def test_a_payoff_loses_at_most_its_stake_and_nothing_on_average(self, epsilon, delta):
        point, chance = ClaimPoint(epsilon, delta), 1 / (1 + math.exp(-epsilon))
        assert payoff(0.0, 1.0, point) >= -1
        # Randomised response, or the truth with probability delta: exactly at the claim.
        likely = (delta + (1 - delta) * chance) / 2
        unlikely = (1 - delta) * (1 - chance) / 2
        assert payoff(likely, unlikely, point) == pytest.approx(0, abs=1e-12)

    def test_moments_match_the_payoffs(self):
        random, past, point = np.random.default_rng(5), Moments(), ClaimPoint(0.8, 0.1)
        runs = [EventCounts(random.random(3), random.random(3)) for _ in range(20)]
        for run in runs:
            past.add(run)
        payoffs = np.array([payoff(*run, point) for run in runs])
        mean, square = past.payoff_moments(point)
        np.testing.assert_allclose(mean, payoffs.mean(0))
        np.testing.assert_allclose(square, (payoffs**2).mean(0))

    @pytest.mark.parametrize(("canaries", "truth"), [(1, 0.0), (1, 1.0), (16, 0.5)])
    def test_true_claims_are_rarely_refuted_at_any_time(self, canaries, truth):
        """Randomised response, exactly at its claim, is tested after each of 150 runs: of 200 audits, 5 % are 10; more
        than 18 have a probability of 0.6 %. Badly chosen bets only make it fewer."""
        random, chance = np.random.default_rng(6), 1 / (1 + math.exp(-truth))

        def one_run():
            included = random.random(canaries) < 0.5
            return AuditRun(
                included, np.where(random.random(canaries) < chance, included, ~included)[None].astype(float)
            )

        values = [p_value(counted([one_run() for _ in range(150)]), [ClaimPoint(truth, 0.0)]) for _ in range(200)]
        assert sum(value <= 0.05 for value in values) <= 18
        assert sum(value <= 0.001 for value in values) <= 3

    def test_dependent_canaries_do_not_refute_a_true_claim(self):
        """All responses of a run are right, or all are wrong: 32 canaries carry no more information than one. The
        numbers are as above."""
        random = np.random.default_rng(7)

        def one_run():
            included = random.random(32) < 0.5
            return AuditRun(included, (included == (random.random() < 0.6))[None].astype(float))

        point = ClaimPoint(math.log(0.6 / 0.4), 0.0)
        values = [p_value(counted([one_run() for _ in range(150)]), [point]) for _ in range(200)]
        assert sum(value <= 0.05 for value in values) <= 18

    @pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
    def test_too_little_noise_is_refuted(self, share):
        random = np.random.default_rng(8)
        points = [ClaimPoint(gaussian_epsilon(1.0, 1, delta), delta) for delta in (0.05, 0.2, 0.4)]
        runs = [gaussian_run(random, 32, share) for _ in range(800)]
        assert p_value(counted(runs), points) <= 0.001

    def test_gaussian_noise_as_claimed_is_rarely_refuted(self):
        """Three of 60 audits are 5 %; more than 8 have a probability of 0.4 %."""
        random = np.random.default_rng(9)
        points = [ClaimPoint(gaussian_epsilon(1.0, 1, delta), delta) for delta in (0.05, 0.2, 0.4)]
        audits = ([gaussian_run(random, 32, 1.0) for _ in range(200)] for _ in range(60))
        assert sum(p_value(counted(runs), points) <= 0.05 for runs in audits) <= 8

    def test_nothing_is_bet_on_the_first_runs(self):
        bettor = Bettor([ClaimPoint(0.0, 0.0)])
        perfect = EventCounts(np.array([0.5]), np.array([0.0]))
        for _ in range(LEARNING_RUNS):
            bettor.add_run(perfect)
        assert (bettor.p_value, bettor.strongest_bet()) == (1, None)
        bettor.add_run(perfect)
        assert bettor.p_value == pytest.approx(1 / (1 + 0.95 / 2))

    @pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
    def test_runs_to_show_is_the_least_number_that_is_enough(self, epsilon):
        needed = runs_to_show(epsilon, 1e-3, 0.95)
        perfect = [EventCounts(np.array([0.5]), np.array([0.0]))] * needed
        assert p_value(perfect, [ClaimPoint(epsilon, 1e-3)]) <= 0.05
        assert p_value(perfect[: needed - 3], [ClaimPoint(epsilon, 1e-3)]) > 0.05
        assert most_showable(needed, 1e-3, 0.95) >= epsilon > most_showable(needed - 3, 1e-3, 0.95)

    def test_no_number_of_runs_shows_everything(self):
        assert runs_to_show(1e4, 0.0, 0.95) == math.inf


class TestEvents:
    def test_counts_match_a_plain_loop(self):
        random = np.random.default_rng(10)
        runs = [gaussian_run(random, 6, 1.0) for _ in range(9)]
        events = Events(["a"], runs[:8])
        likely, unlikely = events.count_events(runs[8])
        for event in range(len(likely)):
            seen_in, all_in, seen_out, all_out = events.count_canaries(event, runs[8])
            assert (all_in, all_out) == (runs[8].included.sum(), (~runs[8].included).sum())
            below = events.describe(event).startswith("a is at most")
            first, second = (seen_out, seen_in) if below else (seen_in, seen_out)
            assert (likely[event], unlikely[event]) == (first / 6, second / 6)

    def test_thresholds_separate_two_values(self):
        """Without noise all scores have one of two values."""
        random = np.random.default_rng(11)
        included = random.random((8, 4)) < 0.5
        runs = [AuditRun(row, row[None].astype(float)) for row in included]
        events = Events(["a"], runs)
        likely, unlikely = events.count_events(runs[0])
        assert any(first == included[0].mean() and second == 0 for first, second in zip(likely, unlikely, strict=True))


class TestLowerBound:
    def test_the_bound_stops_at_the_first_epsilon_that_is_not_refuted(self):
        asked = []

        def value(epsilon):
            asked.append(epsilon)
            return 0.01 if epsilon <= 0.52 or epsilon > 0.9 else 0.5

        assert lower_bound(value, 0.52, 0.95) == 0.52
        assert asked == sorted(asked)
        assert max(asked) == 0.6

    def test_the_bound_agrees_with_the_verdict(self):
        random = np.random.default_rng(12)
        counts = counted([gaussian_run(random, 32, 0.5) for _ in range(150)])
        for claim in (0.35, 0.75, 1.15, 1.55, 1.95):
            shown = lower_bound(lambda epsilon: p_value(counts, [ClaimPoint(epsilon, 0.01)]), claim, 0.95)
            assert (shown >= claim) == (p_value(counts, [ClaimPoint(claim, 0.01)]) <= 0.05)


def gaussian_run(random, canaries, sigma):
    included = random.random(canaries) < 0.5
    return AuditRun(included, (included + sigma * random.standard_normal(canaries))[None])


def counted(runs):
    events = Events(["a"], runs[:LEARNING_RUNS])
    return [events.count_events(run) for run in runs]
