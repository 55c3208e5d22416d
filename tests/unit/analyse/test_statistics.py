"""Estimates: by hand, against scipy, and how often their intervals hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scripted_rows import repeatable

from rigdyno.analyse.correlation import best_block, block_variance, long_run_variance
from rigdyno.analyse.statistics import (
    across_processes,
    median_estimate,
    median_ranks,
    student_cdf,
    student_quantile,
    throughput_estimate,
)
from rigdyno.errors import BadValue, DamagedRun


class TestMedian:
    def test_by_hand(self):
        found = median_estimate([9, 1, 8, 2, 7, 3, 6, 4, 5, 10], "s")
        assert (found.value, found.low, found.high) == (5.5, 2, 9)
        assert (found.confidence, found.n, found.unit) == (0.95, 10, "s")

    def test_too_few_for_the_confidence_says_what_is_reached(self):
        found = median_estimate([1, 2, 3, 4, 5], "s")
        assert (found.low, found.high) == (1, 5)
        assert found.confidence == pytest.approx(0.9375)
        assert "93.8 %" in found.method

    def test_one_value_has_no_interval(self):
        found = median_estimate([3.0], "s")
        assert (found.low, found.value, found.high, found.confidence) == (3, 3, 3, 0)
        assert "no interval" in found.method

    def test_zero_variance(self):
        found = median_estimate([2.0] * 50, "s")
        assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))

    def test_processes_that_differ_wildly_still_have_a_rate_above_zero(self):
        assert across_processes([0.2, 0.5, 0.9], "item/s").low > 0

    def test_a_figure_of_zero(self):
        with pytest.raises(DamagedRun, match="zero"):
            across_processes([1.0, 0.0], "item/s")

    @pytest.mark.parametrize("n", [2, 5, 6, 7, 10, 25, 100, 101, 1000, 20_000])
    @pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
    def test_ranks_are_the_narrowest_by_the_binomial_distribution(self, n, confidence):
        rank, reached = median_ranks(n, confidence)
        assert reached == pytest.approx(1 - 2 * stats.binom.cdf(rank, n, 0.5), abs=1e-9)
        assert reached >= confidence or rank == 0
        one_further_in = 1 - 2 * stats.binom.cdf(rank + 1, n, 0.5)
        assert one_further_in < confidence

    @pytest.mark.parametrize("n", [15, 60, 301])
    def test_coverage(self, n):
        streams = np.sort(np.random.default_rng(n).lognormal(0, 0.5, (6000, n)), axis=1)
        rank, reached = median_ranks(n, 0.95)
        covered = np.mean((streams[:, rank] <= 1) & (streams[:, n - 1 - rank] >= 1))
        assert covered == pytest.approx(reached, abs=0.01)
        assert 0.94 <= covered <= 0.975

    @repeatable
    @given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=60))
    def test_bounds_hold_the_value(self, values):
        found = median_estimate(values, "s")
        assert found.low <= found.value <= found.high
        assert found.value == np.median(values)


class TestThroughput:
    def test_is_sum_over_sum(self):
        # 10 images in 1 s and 10 images in 3 s are 20 in 4 s, not the mean of 10/s and 3.33/s.
        assert throughput_estimate([10, 10], [1, 3], "image/s").value == 5

    def test_one_step_has_no_interval(self):
        found = throughput_estimate([32], [2.0], "image/s")
        assert (found.low, found.value, found.high, found.confidence) == (16, 16, 16, 0)

    def test_zero_variance(self):
        found = throughput_estimate([1] * 20, [0.5] * 20, "item/s")
        assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))

    def test_processes_that_differ_wildly_still_have_a_rate_above_zero(self):
        assert across_processes([0.2, 0.5, 0.9], "item/s").low > 0

    def test_a_figure_of_zero(self):
        with pytest.raises(DamagedRun, match="zero"):
            across_processes([1.0, 0.0], "item/s")

    def test_is_the_same_every_time(self):
        seconds = np.random.default_rng(1).lognormal(0, 0.1, 500)
        assert throughput_estimate(np.ones(500), seconds, "item/s") == throughput_estimate(
            np.ones(500), seconds, "item/s"
        )

    def test_block_variance_is_that_of_infinitely_many_resampled_blocks(self):
        generator = np.random.default_rng(2)
        series, block = correlated(generator, 0.7, 1, 600)[0], 12
        starts = generator.integers(0, 600 - block + 1, (4000, 600 // block))
        resampled = series[starts[:, :, None] + np.arange(block)].mean(axis=(1, 2))
        assert block_variance(series, block) / 600 == pytest.approx(resampled.var(), rel=0.08)

    def test_block_of_one_agrees_with_scipy_s_bootstrap(self):
        series = np.random.default_rng(3).lognormal(0, 0.3, 400)
        found = stats.bootstrap((series,), np.mean, n_resamples=4000, rng=np.random.default_rng(4))
        assert math.sqrt(block_variance(series, 1) / 400) == pytest.approx(found.standard_error, rel=0.05)
        assert block_variance(series, 1) == pytest.approx(series.var(ddof=1))

    def test_longer_memory_gives_longer_blocks(self):
        generator = np.random.default_rng(5)
        lengths = [
            np.mean([best_block(series) for series in correlated(generator, memory, 20, 1000)])
            for memory in (0, 0.5, 0.9)
        ]
        assert lengths[0] < 4 < lengths[1] < lengths[2]

    def test_long_run_variance_of_a_known_process(self):
        # An AR(1) process of unit variance has the long-run variance (1 + phi) / (1 - phi).
        found = [long_run_variance(series).variance for series in correlated(np.random.default_rng(6), 0.8, 100, 4000)]
        assert np.mean(found) == pytest.approx(9, rel=0.12)

    @pytest.mark.parametrize("n", [30, 200])
    def test_coverage_of_independent_steps(self, n):
        covered = coverage(1 + 0.1 * np.random.default_rng(n).standard_normal((6000, n)))
        assert 0.93 <= covered <= 0.97

    def test_coverage_of_skewed_steps(self):
        streams = np.random.default_rng(7).lognormal(-0.125, 0.5, (6000, 200))
        assert 0.93 <= coverage(streams) <= 0.97

    @pytest.mark.parametrize(
        ("memory", "n", "least"),
        [
            (0.5, 1000, 0.93),
            (0.8, 1000, 0.93),
            (0.9, 1000, 0.93),
            # Short streams with a long memory hold few independent values: what is reached is below the nominal 95 %.
            (0.5, 100, 0.92),
            (0.8, 100, 0.90),
            (0.9, 100, 0.87),
        ],
    )
    def test_coverage_of_correlated_steps(self, memory, n, least):
        streams = 1 + 0.05 * correlated(np.random.default_rng(8), memory, 3000, n)
        assert least <= coverage(streams) <= 0.97

    def test_intervals_that_ignore_correlation_fail_there(self):
        streams = 1 + 0.05 * correlated(np.random.default_rng(9), 0.9, 800, 1000)
        half = 1.96 * streams.std(axis=1) / math.sqrt(1000)
        assert np.mean(np.abs(streams.mean(axis=1) - 1) <= half) < 0.5


def correlated(generator, memory, streams, n):
    """AR(1) of unit variance."""
    noise = generator.standard_normal((streams, n)) * math.sqrt(1 - memory**2)
    noise[:, 0] = generator.standard_normal(streams)
    for index in range(1, n):
        noise[:, index] += memory * noise[:, index - 1]
    return noise


def coverage(streams):
    """How often the interval holds the true rate of 1 item in a second."""
    items = np.ones(streams.shape[1])
    found = [throughput_estimate(items, stream, "item/s") for stream in streams]
    return np.mean([each.low <= 1 <= each.high for each in found])


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

    @pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 11, 30, 101, 5000])
    @pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.9995])
    def test_student_quantile_against_scipy(self, probability, degrees):
        assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-8)

    @repeatable
    @given(st.floats(0, 50), st.integers(1, 300))
    def test_student_cdf_against_scipy(self, t, degrees):
        assert student_cdf(t, degrees) == pytest.approx(stats.t.cdf(t, degrees), abs=1e-10)


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
