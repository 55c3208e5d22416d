"""Estimates: by hand, against scipy and brute force. How often their intervals hold the truth: test_coverage.py."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats

from rigdyno.analyse.statistics import (
    across_processes,
    across_ranks,
    correlated_ranks,
    log_ratio_estimate,
    median_estimate,
    median_ranks,
    throughput_estimate,
)
from rigdyno.base.errors import BadValue, DamagedRun
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.metric import SPEEDUP, STEP_TIME, THROUGHPUT
from scripted_rows import repeatable


class TestMedian:
    def test_by_hand(self):
        found = median_estimate([9, 1, 8, 2, 7, 3, 6, 4, 5, 10], "s", independent=True)
        assert (found.value, found.low, found.high) == (5.5, 2, 9)
        assert (found.confidence, found.n, found.unit) == (0.95, 10, "s")
        assert found.method == "median of values, order statistics"

    def test_too_few_for_the_confidence_says_what_is_reached(self):
        found = median_estimate([1, 2, 3, 4, 5], "s")
        assert (found.low, found.high) == (1, 5)
        assert found.confidence == pytest.approx(0.9375)
        assert "93.8 %" in found.method

    def test_one_value_has_no_interval(self):
        found = median_estimate([3.0], "s")
        assert (found.value, found.interval, found.confidence) == (3, None, None)
        assert "no interval" in found.method

    def test_zero_variance(self):
        found = median_estimate([2.0] * 50, "s")
        assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))

    @pytest.mark.parametrize("n", [2, 5, 6, 7, 10, 25, 100, 101, 1000, 20_000])
    @pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
    def test_ranks_are_the_narrowest_by_the_binomial_distribution(self, n, confidence):
        rank, reached = median_ranks(n, confidence)
        assert reached == pytest.approx(1 - 2 * stats.binom.cdf(rank, n, 0.5), abs=1e-9)
        assert reached >= confidence or rank == 0
        one_further_in = 1 - 2 * stats.binom.cdf(rank + 1, n, 0.5)
        assert one_further_in < confidence

    def test_ranks_of_a_series_that_remembers_by_brute_force(self):
        """The count of values below the true median varies as the interval says, over many such series."""
        streams = [remembering(0.8, 400, seed) for seed in range(600)]
        counts = np.array([(stream < 0).sum() for stream in streams])
        ranks = [correlated_ranks(stream, 0.95)[0] for stream in streams]
        assert np.median(ranks) == pytest.approx(np.quantile(counts, 0.025), abs=10)
        assert np.median(ranks) < median_ranks(400, 0.95)[0] - 20

    def test_a_series_without_a_memory_keeps_the_exact_ranks_or_nearly(self):
        ranks = [correlated_ranks(remembering(0.0, 1000, seed), 0.95)[0] for seed in range(50)]
        assert median_ranks(1000, 0.95)[0] - 4 <= np.median(ranks) <= median_ranks(1000, 0.95)[0]

    def test_a_regular_up_and_down_is_no_precision(self):
        """Every second step on another level: independent or not, the median is somewhere between the two."""
        found = median_estimate([1.0, 1.3] * 100, "s")
        assert (found.low, found.high) == (1.0, 1.3)

    def test_a_memory_as_long_as_the_series_says_what_is_reached(self):
        found = median_estimate([1.0] * 6 + [2.0] * 6, "s")
        assert (found.low, found.high) == (1, 2)
        assert 0 < found.confidence < 0.95
        assert f"{100 * found.confidence:.1f} % at most" in found.method

    def test_two_values(self):
        found = median_estimate([1.0, 2.0], "s")
        assert (found.low, found.value, found.high, found.confidence) == (1, 1.5, 2, 0.5)

    @repeatable
    @given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=60))
    def test_bounds_hold_the_value(self, values):
        found = median_estimate(values, "s")
        low, high = found.ends
        assert low <= found.value <= high
        assert found.value == np.median(values)
        exact_low, exact_high = median_estimate(values, "s", independent=True).ends
        assert low <= exact_low <= exact_high <= high


class TestThroughput:
    def test_is_sum_over_sum(self):
        # 10 images in 1 s and 10 images in 3 s are 20 in 4 s, not the mean of 10/s and 3.33/s.
        assert throughput_estimate([10, 10], [1, 3], "image/s").value == 5

    def test_one_step_has_no_interval(self):
        found = throughput_estimate([32], [2.0], "image/s")
        assert (found.value, found.interval, found.confidence) == (16, None, None)

    def test_zero_variance(self):
        found = throughput_estimate([1] * 20, [0.5] * 20, "item/s")
        assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))

    def test_is_the_same_every_time(self):
        seconds = np.random.default_rng(1).lognormal(0, 0.1, 500)
        assert throughput_estimate(np.ones(500), seconds, "item/s") == throughput_estimate(
            np.ones(500), seconds, "item/s"
        )

    def test_two_steps(self):
        """Computed by hand: log rates differ by the relative difference of the times, t(0.975, 1) = 12.7062."""
        found = throughput_estimate([1, 1], [1.0, 1.1], "item/s")
        half = 12.7062 * (0.1 / 1.05) / 2  # each is half of that away from the mean; the variance is over 1 and 2
        assert math.log(found.high / found.value) == pytest.approx(half, rel=1e-4)


def remembering(memory, n, seed):
    """AR(1) of unit variance."""
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal(n) * math.sqrt(1 - memory**2)
    noise[0] = generator.standard_normal()
    for index in range(1, n):
        noise[index] += memory * noise[index - 1]
    return noise


class TestRanks:
    RANKS = tuple(
        Estimate(value=value, low=value - 1, high=value + 2, confidence=confidence, n=n, unit="s", method="by hand")
        for value, confidence, n in ((10.0, 0.95, 30), (12.0, 0.9, 20))
    )

    def test_rates_are_added_up_and_so_are_their_bounds(self):
        found = across_ranks(THROUGHPUT, self.RANKS)
        assert (found.value, found.low, found.high, found.confidence, found.n) == (22.0, 20.0, 26.0, 0.9, 20)
        assert found.method == "sum of 2 ranks, each: by hand"

    def test_the_step_takes_as_long_as_that_of_the_slowest(self):
        assert across_ranks(STEP_TIME, self.RANKS) == self.RANKS[1]

    def test_an_unknown_confidence_is_not_one_of_zero(self):
        found = across_ranks(THROUGHPUT, [self.RANKS[0], replace(self.RANKS[1], confidence=None)])
        assert (found.low, found.high, found.confidence) == (20.0, 26.0, None)

    def test_what_is_not_of_single_ranks_is_not_put_together(self):
        with pytest.raises(BadValue, match="'speedup'"):
            across_ranks(SPEEDUP, self.RANKS)


class TestProcesses:
    def test_by_hand(self):
        # logarithms with mean 2 and standard deviation 1, t(0.975, 2) = 4.302653, half-width 4.302653 / sqrt(3)
        found = across_processes([math.exp(1), math.exp(2), math.exp(3)], "image/s")
        assert found.value == pytest.approx(math.exp(2))
        assert found.high == pytest.approx(math.exp(2 + 2.484138))
        assert found.low == pytest.approx(math.exp(2 - 2.484138))
        assert (found.n, found.confidence) == (3, 0.95)

    def test_against_scipy(self):
        values = np.random.default_rng(0).normal(5, 1, 7)
        logs = np.log(values)
        low, high = np.exp(stats.t.interval(0.9, 6, loc=logs.mean(), scale=stats.sem(logs)))
        found = across_processes(values, "s", confidence=0.9)
        assert (found.low, found.high) == pytest.approx((low, high))

    def test_zero_variance(self):
        found = across_processes([2.0, 2.0], "s")
        assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))

    def test_processes_that_differ_wildly_still_have_a_rate_above_zero(self):
        assert across_processes([0.2, 0.5, 0.9], "item/s").low > 0

    def test_a_figure_of_zero(self):
        with pytest.raises(DamagedRun, match="zero"):
            across_processes([1.0, 0.0], "item/s")

    @pytest.mark.parametrize("values", [[], [1.0]])
    def test_one_process_says_nothing_about_others(self, values):
        with pytest.raises(BadValue):
            across_processes(values, "s")


class TestRatio:
    def test_by_hand(self):
        # Logarithms 1, 2, 3 against 0, 1, 2: means differ by 1, each variance is 1, Welch has 4 degrees of freedom,
        # t(0.975, 4) = 2.776445, half-width 2.776445 * sqrt(2 / 3).
        found = log_ratio_estimate([math.exp(k) for k in (1, 2, 3)], [math.exp(k) for k in (0, 1, 2)])
        assert math.log(found.value) == pytest.approx(1)
        assert math.log(found.high) == pytest.approx(1 + 2.266958, rel=1e-6)
        assert math.log(found.low) == pytest.approx(1 - 2.266958, rel=1e-6)
        assert (found.n, found.confidence, found.unit) == (3, 0.95, "x")

    @pytest.mark.parametrize(("n", "m"), [(2, 2), (2, 9), (5, 3), (12, 12)])
    @pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
    def test_against_scipy(self, n, m, confidence):
        generator = np.random.default_rng(n + 100 * m)
        ours, theirs = generator.lognormal(0, 0.03, n), generator.lognormal(0.1, 0.01, m)
        welch = stats.ttest_ind(np.log(ours), np.log(theirs), equal_var=False).confidence_interval(confidence)
        found = log_ratio_estimate(ours, theirs, confidence)
        assert (math.log(found.low), math.log(found.high)) == pytest.approx((welch.low, welch.high))
        assert f"of {n} and {m} processes" in found.method

    def test_swapping_the_sides_turns_it_over(self):
        one, two = [1.0, 1.1, 1.05], [2.0, 2.1]
        there, back = log_ratio_estimate(one, two), log_ratio_estimate(two, one)
        assert (there.low, there.value) == pytest.approx((1 / back.high, 1 / back.value))

    @pytest.mark.parametrize(("ours", "theirs"), [([2.0], [1.0]), ([2.0], [0.9, 1.1]), ([1.9, 2.1], [1.0])])
    def test_one_process_on_a_side_has_no_interval(self, ours, theirs):
        found = log_ratio_estimate(ours, theirs)
        assert (found.interval, found.n) == (None, 1)
        assert "no interval" in found.method

    def test_zero_variance(self):
        found = log_ratio_estimate([3.0, 3.0], [2.0, 2.0, 2.0])
        assert (found.low, found.value, found.high) == pytest.approx((1.5, 1.5, 1.5))

    def test_zero_variance_on_one_side(self):
        welch = stats.ttest_ind([0.1, 0.2, 0.3], [0.0, 0.0, 0.0], equal_var=False).confidence_interval()
        found = log_ratio_estimate([math.exp(k) for k in (0.1, 0.2, 0.3)], [1.0, 1.0, 1.0])
        assert (math.log(found.low), math.log(found.high)) == pytest.approx((welch.low, welch.high))

    @pytest.mark.parametrize("bad", [[0.0, 1.0], [-1.0, 1.0], [math.nan, 1.0], [math.inf, 1.0]])
    def test_figures_that_are_none(self, bad):
        with pytest.raises(DamagedRun):
            log_ratio_estimate(bad, [1.0, 1.0])
        with pytest.raises(DamagedRun):
            log_ratio_estimate([1.0, 1.0], bad)

    def test_nothing(self):
        with pytest.raises(BadValue):
            log_ratio_estimate([], [1.0])


class TestBadValues:
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_not_finite(self, value):
        with pytest.raises(DamagedRun, match="finite"):
            median_estimate([1.0, value], "s")
        with pytest.raises(DamagedRun, match="finite"):
            throughput_estimate([1, 1], [1.0, value], "item/s")
        with pytest.raises(DamagedRun, match="finite"):
            throughput_estimate([1, value], [1.0, 1.0], "item/s")
        with pytest.raises(DamagedRun, match="finite"):
            across_processes([1.0, value], "s")

    @pytest.mark.parametrize("seconds", [0.0, -1.0])
    def test_a_step_that_took_no_time(self, seconds):
        with pytest.raises(DamagedRun, match="clock"):
            throughput_estimate([1, 1], [1.0, seconds], "item/s")

    @pytest.mark.parametrize("items", [[0, 0], [2, -1]])
    def test_no_items(self, items):
        with pytest.raises(DamagedRun, match="no items"):
            throughput_estimate(items, [1.0, 1.0], "item/s")

    def test_nothing(self):
        with pytest.raises(BadValue, match="nothing"):
            median_estimate([], "s")
        with pytest.raises(BadValue, match="nothing"):
            throughput_estimate([], [], "item/s")

    def test_lengths_that_differ(self):
        with pytest.raises(BadValue):
            throughput_estimate([1, 1], [1.0], "item/s")

    @pytest.mark.parametrize("confidence", [0, 1, 95, -0.5, math.nan])
    def test_confidence_is_a_share(self, confidence):
        with pytest.raises(BadValue):
            median_estimate([1.0, 2.0], "s", confidence)
