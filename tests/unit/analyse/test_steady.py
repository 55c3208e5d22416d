"""The end of warm-up, on streams with a known warm-up."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rigdyno.analyse.steady import (
    MIN_STEPS,
    _best_split,
    _gain_of_line,
    _lasting_noise,
    median_of,
    segment_medians,
    settled_so_far,
    steady_window,
    trend,
)
from rigdyno.base.errors import DamagedRun
from scripted_rows import noisy, repeatable

lengths = st.sampled_from([40, 100, 333, 1000])
seeds = st.integers(0, 10_000)


class TestSteadyFromTheStart:
    @repeatable
    @given(lengths, seeds, st.sampled_from([0.005, 0.05, 0.15]))
    def test_nearly_uncut(self, n, seed, spread):
        found = steady_window(noisy(n, spread=spread, seed=seed))
        assert found.settled
        assert found.start <= max(5, n / 20)

    def test_zero_variance(self):
        assert steady_window([0.01] * 50) == (0, True, "steady from the first step")

    @repeatable
    @given(seeds, st.integers(20, 499))
    def test_a_hiccup_is_no_warm_up(self, seed, at):
        durations = noisy(500, seed=seed)
        durations[at] *= 100
        found = steady_window(durations)
        assert found.settled
        assert found.start <= 15

    def test_slow_steps_that_stand_alone_are_no_other_level(self):
        assert steady_window([0.5, 0.5, 0.5, 0.5, 0.5, 1.0] * 5).settled

    def test_one_slow_step_in_twenty_is_no_warm_up(self):
        durations = noisy(1000, spread=0.03)
        durations[50::20] *= 4
        assert steady_window(durations) == (0, True, "steady from the first step")

    def test_a_neighbour_s_burst_in_the_middle_is_no_warm_up(self):
        durations = noisy(1000, spread=0.03)
        durations[300:400] *= 1.5
        assert steady_window(durations) == (0, True, "steady from the first step")


class TestWarmUp:
    @pytest.mark.parametrize("n", [10, 100, 10_000])
    def test_a_compilation_is_one_step_among_many(self, n):
        durations = noisy(n)
        durations[0] *= 500
        found = steady_window(durations)
        assert found.settled
        assert 1 <= found.start <= 3
        assert "slower" in found.reason

    def test_a_second_compilation_among_the_first_steps(self):
        durations = noisy(200)
        durations[[0, 3]] *= 50
        assert steady_window(durations).start == 4

    @repeatable
    @given(lengths, seeds, st.floats(0.05, 0.4), st.sampled_from([0.5, 0.7, 1.3, 2.0]))
    def test_a_change_of_level_early_on_is_cut_where_it_is(self, n, seed, share, factor):
        changed = round(share * n)
        durations = noisy(n, seed=seed)
        durations[:changed] *= factor
        found = steady_window(durations)
        assert found.settled
        assert changed <= found.start <= changed + max(3, n / 20)

    @pytest.mark.parametrize("factor", [0.85, 1.2])
    @pytest.mark.parametrize("n", [40, 100, 333])
    def test_an_early_level_within_the_noise_of_single_steps_is_cut_all_the_same(self, n, factor):
        level = np.where(np.arange(n) < 0.3 * n, factor, 1.0)
        found = [steady_window(noisy(n, spread=0.05, seed=seed) * level) for seed in range(100)]
        left_in = np.array([abs(level[each.start :].mean() - 1) for each in found])
        assert np.mean(left_in <= 0.01) >= 0.95
        assert np.mean([each.settled for each in found]) >= 0.95

    def test_an_early_level_next_to_the_later_one_stays_in(self):
        durations = noisy(1000, spread=0.002)
        durations[:300] *= 1.025
        assert steady_window(durations) == (0, True, "steady from the first step")

    def test_a_start_that_is_faster_is_said_to_be(self):
        durations = noisy(400)
        durations[:80] *= 0.6
        assert "faster" in steady_window(durations).reason

    @repeatable
    @given(lengths, seeds)
    def test_a_decaying_start_is_cut_to_within_a_few_percent(self, n, seed):
        decay = 1 + 2 * np.exp(-np.arange(n) / (0.04 * n))
        found = steady_window(noisy(n, seed=seed) * decay)
        assert found.start >= 0.04 * n
        assert decay[found.start :].mean() < 1.03
        assert found.start <= 0.4 * n


class TestNeverSettled:
    @repeatable
    @given(lengths, seeds, st.sampled_from([0.6, 1.3, 3.0]))
    def test_a_trend_all_the_way(self, n, seed, end):
        found = steady_window(noisy(n, seed=seed) * np.linspace(1, end, n))
        assert not found.settled

    @repeatable
    @given(lengths, seeds, st.sampled_from([4, 5, 7]))
    def test_a_level_that_keeps_changing(self, n, seed, blocks):
        level = np.where((np.arange(n) * blocks // n) % 2, 1.5, 1.0)
        found = steady_window(noisy(n, seed=seed) * level)
        assert not found.settled

    @repeatable
    @given(st.sampled_from([40, 100, 1000]), seeds, st.sampled_from([0.83, 1.2]))
    def test_two_levels_for_half_of_the_time_each(self, n, seed, factor):
        """The median is between them, and no step is a tenth away from it."""
        level = np.where((np.arange(n) * 4 // n) % 2, factor, 1.0)
        assert not steady_window(noisy(n, seed=seed, spread=0.01) * level).settled

    @repeatable
    @given(lengths, seeds)
    def test_a_trend_is_not_taken_for_a_change_halfway(self, n, seed):
        found = steady_window(noisy(n, seed=seed, spread=0.01) * np.linspace(1, 1.25, n))
        assert not found.settled
        assert "rise all the way" in found.reason

    @pytest.mark.parametrize("share", [0.6, 0.7, 0.8])
    def test_a_late_change_of_level(self, share):
        durations = noisy(1000)
        durations[round(1000 * share) :] *= 1.5
        found = steady_window(durations)
        assert not found.settled
        assert found.start <= 500

    @pytest.mark.parametrize("n", range(MIN_STEPS))
    def test_too_few_steps_to_tell(self, n):
        found = steady_window([0.01] * n)
        assert (found.start, found.settled) == (0, False)
        assert "too few" in found.reason


class TestOnline:
    def test_waits_for_a_compilation_to_be_over(self):
        assert not settled_so_far([5.0, 3.0, 2.0, 1.5, 1.2])
        assert not settled_so_far([5.0, 0.1, 0.1, 0.101, 0.1])
        assert settled_so_far([5.0, 0.1, 0.1, 0.101, 0.1, 0.1])

    def test_says_no_while_steps_still_get_faster(self):
        durations = noisy(400) * (1 + 2 * np.exp(-np.arange(400) / 40))
        answers = [settled_so_far(durations[:n]) for n in (5, 20, 60, 300, 400)]
        assert answers[2:] == [False, True, True]

    def test_nothing_yet(self):
        assert not settled_so_far([])


class TestParts:
    @repeatable
    @given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=400))
    def test_never_cuts_more_than_half(self, durations):
        found = steady_window(durations)
        assert 0 <= found.start <= len(durations) / 2
        assert found.reason

    @repeatable
    @given(st.lists(st.floats(1e-3, 1e3), min_size=MIN_STEPS, max_size=300), st.sampled_from([2.0, 0.25, 1024.0]))
    def test_doesn_t_depend_on_the_unit_of_time(self, durations, factor):
        one, other = steady_window(durations), steady_window(np.array(durations) * factor)
        assert one[:2] == other[:2]

    def test_segments_by_hand(self):
        # 128 steps: segments of 3, and the 2 that are left over go to the first.
        found = segment_medians(np.arange(1.0, 129.0))
        assert len(found) == 42
        assert list(found[:3]) == [3, 7, 10]
        assert found[-1] == 127

    @repeatable
    @given(st.lists(st.floats(1, 100), min_size=2, max_size=40))
    def test_the_best_split_by_brute_force(self, values):
        array = np.array(values)
        gains = [
            ((array - array.mean()) ** 2).sum()
            - sum(((part - part.mean()) ** 2).sum() for part in (array[:cut], array[cut:]))
            for cut in range(1, len(values))
        ]
        cut, gain = _best_split(array)
        assert gain == pytest.approx(max(gains), abs=1e-6)
        assert gains[cut - 1] == pytest.approx(max(gains), abs=1e-6)

    @repeatable
    @given(st.lists(st.floats(1, 100), min_size=3, max_size=40))
    def test_a_line_explains_what_least_squares_do(self, values):
        fit = np.polynomial.Polynomial.fit(np.arange(len(values)), values, 1)(np.arange(len(values)))
        assert _gain_of_line(np.array(values)) == pytest.approx(((fit - np.mean(values)) ** 2).sum(), abs=1e-6)

    def test_lasting_noise_of_correlated_values_is_larger_than_their_spread(self):
        values = np.random.default_rng(0).standard_normal(4000)
        assert _lasting_noise(values) == pytest.approx(1, rel=0.3)
        lasting = np.repeat(values[:200], 20)
        assert _lasting_noise(lasting) > 3

    def test_trend_by_hand(self):
        change, certain = trend(np.arange(11.0, 21.0))
        assert change == pytest.approx(9 / 15.5)
        assert certain

    def test_the_trend_s_certainty_is_kendall_s(self):
        generator = np.random.default_rng(0)
        for slope in np.linspace(0, 0.02, 40):
            values = 1 + slope * np.arange(30) + 0.1 * generator.random(30)
            tau = stats.kendalltau(np.arange(30), values).statistic
            z = tau * 30 * 29 / 2 / math.sqrt(30 * 29 * 65 / 18)
            assert trend(values).certain == (abs(z) > 3)

    def test_few_steps_in_perfect_order_are_a_trend(self):
        assert trend([1.0, 1.1, 1.2, 1.3, 1.4]).certain
        assert not trend([1.0, 1.2, 1.1, 1.3, 1.4]).certain

    def test_too_short_for_a_trend(self):
        assert trend([1.0, 2.0, 3.0]) == (0, False)

    @pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
    def test_bad_durations(self, value):
        with pytest.raises(DamagedRun):
            steady_window([0.01] * 10 + [value])


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=200))
def test_medians_are_numpy_s(values):
    assert median_of(np.array(values)) == np.median(values)


def test_nothing_has_no_median():
    assert np.isnan(median_of(np.array([])))
