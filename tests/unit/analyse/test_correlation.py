"""The uncertainty of the mean of a correlated series, against known processes, brute force and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from rigdyno.analyse.statistics import best_block, block_variance, independent_count, long_run_variance


def test_block_variance_is_that_of_infinitely_many_resampled_blocks():
    generator = np.random.default_rng(2)
    series, block = correlated(generator, 0.7, 1, 600)[0], 12
    starts = generator.integers(0, 600 - block + 1, (4000, 600 // block))
    resampled = series[starts[:, :, None] + np.arange(block)].mean(axis=(1, 2))
    assert block_variance(series, block) / 600 == pytest.approx(resampled.var(), rel=0.08)


def test_block_of_one_agrees_with_scipy_s_bootstrap():
    series = np.random.default_rng(3).lognormal(0, 0.3, 400)
    found = stats.bootstrap((series,), np.mean, n_resamples=4000, rng=np.random.default_rng(4))
    assert math.sqrt(block_variance(series, 1) / 400) == pytest.approx(found.standard_error, rel=0.05)
    assert block_variance(series, 1) == pytest.approx(series.var(ddof=1))


def test_longer_memory_gives_longer_blocks():
    generator = np.random.default_rng(5)
    lengths = [
        np.mean([best_block(series) for series in correlated(generator, memory, 20, 1000)]) for memory in (0, 0.5, 0.9)
    ]
    assert lengths[0] < 4 < lengths[1] < lengths[2]


def test_long_run_variance_of_a_known_process():
    # An AR(1) process of unit variance has the long-run variance (1 + phi) / (1 - phi).
    found = [long_run_variance(series).variance for series in correlated(np.random.default_rng(6), 0.8, 100, 4000)]
    assert np.mean(found) == pytest.approx(9, rel=0.12)


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.6, 0.8])
def test_as_many_independent_values_as_the_textbook_says(memory):
    found = [independent_count(series) for series in correlated(np.random.default_rng(7), memory, 200, 2000)]
    assert np.median(found) == pytest.approx(2000 * (1 - memory) / (1 + memory), rel=0.15)


def test_as_many_independent_values_as_the_spread_of_means_shows():
    """Brute force: the variance of the mean over many series is that of one value over the count."""
    streams = correlated(np.random.default_rng(8), 0.7, 3000, 500)
    true = 1 / streams.mean(axis=1).var()
    assert np.median([independent_count(series) for series in streams[:300]]) == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize(
    ("series", "count"),
    [([], 0), ([1.0], 1), ([1.0, 2.0], 2), ([3.0] * 50, 50), ([1.0, -1.0] * 50, 100), ([0.1] * 7, 7)],
)
def test_few_values_values_all_alike_and_a_regular_up_and_down(series, count):
    assert independent_count(np.array(series)) == count


@pytest.mark.parametrize("n", [2, 8, 9, 30, 1000])
def test_never_less_than_one_nor_more_than_all(n):
    generator = np.random.default_rng(n)
    for series in (np.arange(n), np.cumsum(generator.standard_normal(n)), generator.standard_normal(n)):
        assert 1 <= independent_count(series.astype(float)) <= n


def correlated(generator, memory, streams, n):
    """AR(1) of unit variance."""
    noise = generator.standard_normal((streams, n)) * math.sqrt(1 - memory**2)
    noise[:, 0] = generator.standard_normal(streams)
    for index in range(1, n):
        noise[:, index] += memory * noise[:, index - 1]
    return noise
