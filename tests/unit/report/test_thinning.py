"""Test that reduced series keep every peak and every gap."""

import numpy as np
import pytest

from rigdyno.report.process_figures import reduce_points


def test_a_short_series_is_unchanged():
    at, values = np.arange(5.0), np.array([1.0, 5.0, 2.0, 8.0, 3.0])
    kept = reduce_points(at, values)
    assert kept.at.tolist() == at.tolist()
    assert kept.values.tolist() == values.tolist()


def test_a_million_values_keep_all_extremes():
    generator = np.random.default_rng(5)
    values = generator.normal(100.0, 1.0, 1_000_000)
    values[123_456], values[777_777] = 900.0, -50.0
    kept = reduce_points(np.arange(1e6) / 10, values, buckets=300)
    assert len(kept.at) <= 600
    assert (kept.values.max(), kept.values.min()) == (900.0, -50.0)
    assert kept.at[np.argmax(kept.values)] == 12_345.6
    assert np.all(np.diff(kept.at) > 0)


def test_each_bucket_keeps_its_lowest_and_highest_value():
    values = np.sin(np.arange(10_000) / 3.0) * np.linspace(1, 5, 10_000)
    kept = reduce_points(np.arange(10_000.0), values, buckets=10)
    for number in range(10):  # stretches of equal length from the first sample to the last
        start, end = number * 999.9, (number + 1) * 999.9 if number < 9 else 10_000.0
        inside = values[(np.arange(10_000.0) >= start) & (np.arange(10_000.0) < end)]
        here = kept.values[(kept.at >= start) & (kept.at < end)]
        assert sorted(here) == sorted({inside.min(), inside.max()})


@pytest.mark.parametrize("count", [50, 50_000])
def test_unreadable_samples_are_a_gap(count):
    values = np.ones(count)
    values[count // 2 : count // 2 + count // 10] = np.nan
    kept = reduce_points(np.arange(float(count)), values)
    gap = kept.at[np.isnan(kept.values)]
    assert len(gap)
    assert count // 2 <= gap.min() <= gap.max() < count // 2 + count // 10


@pytest.mark.parametrize("count", [50, 50_000])
def test_a_pause_without_samples_is_a_gap(count):
    at = np.concatenate([np.arange(float(count)), np.arange(float(count)) + 2 * count])
    kept = reduce_points(at, np.ones(len(at)))
    between = (kept.at > count - 1) & (kept.at < 2 * count)
    assert np.isnan(kept.values[between]).all()
    assert between.any()


def test_infinite_values_are_gaps_and_an_empty_series_stays_empty():
    assert np.isnan(reduce_points(np.arange(3.0), np.array([1.0, np.inf, 2.0])).values[1])
    assert len(reduce_points(np.empty(0), np.empty(0)).at) == 0
