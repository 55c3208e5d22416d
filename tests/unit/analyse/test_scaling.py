import pytest

from rigdyno.analyse.scaling import efficiency, ratio, share, speedup
from rigdyno.schema.estimate import Estimate, Missing


def estimate(value, half=None):
    ends = {} if half is None else {"low": value - half, "high": value + half, "confidence": 0.95}
    return Estimate(value=value, n=3, unit="image/s", method="made up", **ends)


def test_the_interval_of_a_ratio_is_the_worst_of_both_and_has_no_confidence():
    found = ratio(estimate(10.0, 1.0), estimate(4.0, 1.0), n=2)
    assert (found.value, found.low, found.high) == (2.5, 9 / 5, 11 / 3)
    assert (found.confidence, found.n, found.unit) == (None, 2, "x")


def test_a_ratio_has_no_interval_where_one_of_both_has_none():
    assert ratio(estimate(10.0, 1.0), estimate(4.0)).interval is None
    assert ratio(estimate(10.0), estimate(4.0, 1.0)).interval is None


def test_efficiency_is_the_speedup_over_the_number_of_devices():
    found = efficiency(ratio(estimate(10.0, 1.0), estimate(4.0, 1.0)), 4)
    assert (found.value, found.of) == (0.625, "perfect scaling")
    assert (found.low, found.high) == (pytest.approx(9 / 20), pytest.approx(11 / 12))


def test_a_share_keeps_the_interval():
    found = share(ratio(estimate(3.0, 1.0), estimate(4.0, 1.0)), "memory bandwidth")
    assert (found.value, found.low, found.high, found.of) == (0.75, 2 / 5, 4 / 3, "memory bandwidth")


@pytest.mark.parametrize("one", [None, Missing(reason="it failed"), estimate(1.0, 1.5)])
def test_a_speedup_needs_a_rate_of_one_device_above_zero(one):
    assert speedup(estimate(10.0, 1.0), one, n=1, reason="no rate of one") == Missing(reason="no rate of one")


def test_a_missing_rate_keeps_its_own_reason():
    assert speedup(Missing(reason="it failed"), estimate(1.0), n=1, reason="") == Missing(reason="it failed")
