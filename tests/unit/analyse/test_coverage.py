"""How often a nominal 95 % interval holds the truth, over thousands of streams whose truth is known.

Streams are drawn as a normal AR(1) process and bent into each distribution, so that values keep their memory. From 200
steps on, which is what a run of ten seconds gives for steps of 50 ms, coverage must be between 93 and 97 %.
"""

import math

import numpy as np
import pytest
from scipy import stats

from rigdyno.analyse.statistics import (
    across_processes,
    log_ratio_estimate,
    median_estimate,
    median_ranks,
    throughput_estimate,
)

STREAMS, STEPS = 1000, 200
MEMORIES = (0.0, 0.5, 0.8)


def remembering(generator, memory, streams, n):
    """AR(1) of mean 0 and variance 1."""
    noise = generator.standard_normal((streams, n)) * math.sqrt(1 - memory**2)
    noise[:, 0] = generator.standard_normal(streams)
    for index in range(1, n):
        noise[:, index] += memory * noise[:, index - 1]
    return noise


GRID = np.linspace(-8, 8, 40_001)
TWO_LEVELS = 0.6 * stats.norm.cdf(GRID, 0, 0.2) + 0.4 * stats.norm.cdf(GRID, 2, 0.2)


def two_levels(normal):
    """60 % of the steps around 1, 40 % around 1.3."""
    return 1 + 0.15 * np.interp(stats.norm.cdf(normal), TWO_LEVELS, GRID)


def heavy_tailed(normal):
    """Student's t with 3 degrees of freedom: no fourth moment; a step of a multiple of the usual time now and then."""
    return np.maximum(
        0.1, 1 + 0.03 * np.interp(normal, GRID, stats.t.ppf(stats.norm.cdf(GRID).clip(1e-9, 1 - 1e-9), 3))
    )


SHAPES = {
    "normal": lambda normal: 1 + 0.1 * normal,
    "lognormal": lambda normal: np.exp(0.5 * normal),
    "heavy_tailed": heavy_tailed,
    "two_levels": two_levels,
}
WEIGHTS = np.exp(-(GRID**2) / 2) / np.exp(-(GRID**2) / 2).sum()


def true_mean(shape):
    return float(shape(GRID) @ WEIGHTS)


def holds(estimates, truth):
    return np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])


def median_coverage(streams, truth):
    return holds((median_estimate(stream, "s") for stream in streams), truth)


def throughput_coverage(streams, mean_seconds):
    items = np.ones(streams.shape[1])
    return holds((throughput_estimate(items, stream, "item/s") for stream in streams), 1 / mean_seconds)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", SHAPES)
def test_steps_of_one_process(name, memory):
    shape = SHAPES[name]
    streams = shape(remembering(np.random.default_rng(17), memory, STREAMS, STEPS))
    assert 0.93 <= throughput_coverage(streams, true_mean(shape)) <= 0.97
    assert 0.93 <= median_coverage(streams, float(shape(np.zeros(1))[0])) <= 0.97


@pytest.mark.parametrize("memory", [0.5, 0.9])
def test_long_streams_with_a_long_memory(memory):
    streams = 1 + 0.05 * remembering(np.random.default_rng(8), memory, 1000, 1000)
    assert 0.93 <= throughput_coverage(streams, 1) <= 0.97
    assert 0.93 <= median_coverage(streams, 1) <= 0.97


@pytest.mark.parametrize(("memory", "n", "least"), [(0, 30, 0.95), (0.5, 30, 0.94), (0.8, 100, 0.93), (0.9, 100, 0.92)])
def test_short_streams_hold_the_truth_at_least_about_as_often(memory, n, least):
    """Too wide where steps are independent, for what few of them can't tell; a little too narrow where the memory is
    as long as the stream."""
    streams = 1 + 0.05 * remembering(np.random.default_rng(9), memory, 1500, n)
    assert least <= throughput_coverage(streams, 1) <= 1
    assert least <= median_coverage(streams, 1) <= 1


def test_intervals_that_ignore_correlation_fail_there():
    streams = 1 + 0.05 * remembering(np.random.default_rng(9), 0.9, 800, 1000)
    half = 1.96 * streams.std(axis=1) / math.sqrt(1000)
    assert np.mean(np.abs(streams.mean(axis=1) - 1) <= half) < 0.5
    rank, _ = median_ranks(1000, 0.95)
    ordered = np.sort(streams, axis=1)
    assert np.mean((ordered[:, rank] <= 1) & (ordered[:, -1 - rank] >= 1)) < 0.6


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("name", ["normal", "lognormal", "heavy_tailed"])
def test_processes(name, n):
    shape = SHAPES[name]
    figures = shape(np.random.default_rng(n).standard_normal((2000, n)))
    truth = math.exp(float(np.log(shape(GRID)) @ WEIGHTS))
    assert 0.93 <= holds((across_processes(each, "item/s") for each in figures), truth) <= 0.98


def test_processes_on_two_levels_need_more_of_them():
    """Three processes that are on the same level by chance say nothing about the second level."""
    truth = math.exp(float(np.log(two_levels(GRID)) @ WEIGHTS))
    covered = {}
    for n in (3, 10):
        figures = two_levels(np.random.default_rng(n).standard_normal((3000, n)))
        covered[n] = holds((across_processes(each, "x") for each in figures), truth)
    assert covered[3] < 0.9
    assert 0.93 <= covered[10] <= 0.97


@pytest.mark.parametrize(("ours", "theirs"), [((3, 0.01), (3, 0.01)), ((3, 0.01), (8, 0.03)), ((10, 0.02), (5, 0.01))])
def test_ratios_of_processes(ours, theirs):
    generator = np.random.default_rng(23)
    (n, spread), (m, other_spread) = ours, theirs
    candidates = 1.03 * np.exp(spread * generator.standard_normal((2000, n)))
    baselines = np.exp(other_spread * generator.standard_normal((2000, m)))
    found = (log_ratio_estimate(candidate, base) for candidate, base in zip(candidates, baselines, strict=True))
    assert 0.93 <= holds(found, 1.03) <= 0.97
