"""Times that are extrapolated from a sample hold the time of another process as often as they say."""

from types import SimpleNamespace

import numpy as np
import pytest

from rigdyno.analyse.extrapolation import (
    BETWEEN_PROCESSES,
    ProcessSpread,
    as_prediction,
    seconds_for,
    spread_between,
    time_of,
)
from rigdyno.analyse.statistics import across_processes, throughput_estimate
from rigdyno.schema.estimate import Estimate


def bare(value):
    return Estimate(value=value, n=1, unit="voxel/s", method="one value")


def test_by_hand():
    rate = Estimate(value=100.0, low=99.0, high=100 / 0.99, confidence=0.95, n=10, unit="voxel/s", method="by hand")
    whole = time_of(1000.0, rate, 1)
    assert whole.value == 10.0
    wide = np.hypot(np.log(1 / 0.99), BETWEEN_PROCESSES)
    assert whole.low == pytest.approx(10 * np.exp(-wide))
    assert whole.high == pytest.approx(10 * np.exp(wide))
    assert whole.confidence == 0.95
    assert as_prediction(rate, 3).high == pytest.approx(100 * np.exp(2 * np.log(1 / 0.99)))


def test_what_the_first_steps_took_longer_is_part_of_a_job_once():
    rate = Estimate(value=100.0, low=80.0, high=125.0, confidence=0.95, n=3, unit="voxel/s", method="by hand")
    without, whole = time_of(1000.0, rate, 3), time_of(1000.0, rate, 3, warm_up_seconds=2.5)
    assert whole.value == 12.5
    assert whole.interval == pytest.approx((without.low + 2.5, without.high + 2.5))


def test_an_epoch_among_many_has_no_first_steps():
    rate = Estimate(value=100.0, low=80.0, high=125.0, confidence=0.95, n=3, unit="image/s", method="by hand")
    figures = SimpleNamespace(warm_up_seconds=2.5)
    steps = SimpleNamespace(job=None, kinds={"step": figures}, records=(1,), throughput=lambda: rate)
    assert seconds_for(1000.0, steps).value == 12.5
    assert seconds_for(1000.0, steps, of_many=True).value == 10.0
    job = SimpleNamespace(loop=12.5, items=1000.0, seconds=bare(15.0))
    whole = SimpleNamespace(job=job, kinds={"step": figures})
    assert seconds_for(1000.0, whole).value == 12.5
    assert seconds_for(1000.0, whole, of_many=True).value == 10.0


def test_without_an_interval_there_is_none():
    assert time_of(10.0, bare(2.0), 1).interval is None
    assert time_of(10.0, bare(2.0), 1).value == 5.0


@pytest.mark.parametrize(("processes", "spread"), [(1, 0.012), (3, 0.03), (5, 0.002)])
def test_another_process_lies_inside_in_95_of_100(processes, spread):
    """Steps that vary by 3 % in processes that differ: simulated, the truth is the mean step of one more process."""
    chance = np.random.default_rng(7)
    hits = []
    for _ in range(600):
        levels = np.exp(chance.normal(0, spread, processes + 1))
        rates = []
        for level in levels[:-1]:
            seconds = level * chance.lognormal(0, 0.03, 30)
            rates.append(throughput_estimate(np.ones(30), seconds, "voxel/s"))
        rate = rates[0] if processes == 1 else across_processes([each.value for each in rates], "voxel/s")
        predicted = time_of(1000.0, rate, processes)
        whole = levels[-1] * chance.lognormal(0, 0.03, 1000).sum()
        hits.append(predicted.low <= whole <= predicted.high)
    assert np.mean(hits) > 0.92


class TestSpreadOfAllRows:
    def test_by_hand(self):
        rows = [_row(100.0, 110.0), _row(20.0, 21.0, 19.0), _row(5.0)]
        pairs = np.log([1.1]) ** 2 / 2
        three = np.log([20.0, 21.0, 19.0])
        found = spread_between(rows)
        assert found.degrees == 3
        assert found.deviation == pytest.approx(np.sqrt((pairs.sum() + ((three - three.mean()) ** 2).sum()) / 3))
        assert spread_between([_row(5.0)]) is None
        assert spread_between([]) is None

    def test_it_counts_where_it_knows_more_than_the_row_itself(self):
        rate = across_processes([100.0, 103.0, 98.0], "voxel/s")
        assert as_prediction(rate, 3, ProcessSpread(0.01, 2)) == as_prediction(rate, 3)
        alone = as_prediction(bare(100.0), 1, ProcessSpread(0.01, 6))
        assert alone.high == pytest.approx(100 * np.exp(2.447 * 0.01 * np.sqrt(2)), rel=1e-4)

    def test_unsteady_steps_of_a_single_process_count_as_well(self):
        rate = Estimate(value=100.0, low=80.0, high=125.0, confidence=0.95, n=5, unit="voxel/s", method="by hand")
        found = as_prediction(rate, 1, ProcessSpread(0.01, 6))
        wide = np.hypot(np.log(1.25), 2.447 * 0.01 * np.sqrt(2))
        assert found.interval == pytest.approx((100 * np.exp(-wide), 100 * np.exp(wide)), rel=1e-4)

    def test_a_confidence_that_nobody_knows_stays_unknown(self):
        rate = Estimate(value=100.0, low=99.0, high=101.0, n=5, unit="voxel/s", method="sum of 2 ranks")
        assert as_prediction(rate, 1).confidence is None
        assert as_prediction(rate, 2).confidence is None
        assert as_prediction(rate, 2, ProcessSpread(0.01, 6)).confidence == 0.95

    def test_another_process_lies_inside_in_95_of_100(self):
        """Two processes of each of six rows, that differ by 10 %."""
        chance = np.random.default_rng(3)
        hits = []
        for _ in range(600):
            levels = np.exp(chance.normal(0, 0.1, (6, 3)))
            spread = spread_between([_row(*row[:2]) for row in levels])
            for row in levels:
                predicted = as_prediction(across_processes(list(row[:2]), "voxel/s"), 2, spread)
                hits.append(predicted.low <= row[2] <= predicted.high)
        assert 0.93 < np.mean(hits) < 0.97


def _row(*rates):
    return SimpleNamespace(kinds={"step": SimpleNamespace(process_rates=rates)})
