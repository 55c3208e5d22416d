"""What an estimate may claim."""

import msgspec
import pytest

from rigdyno.schema.estimate import Estimate, Number, worst_ratio
from rigdyno.schema.view import Share


def estimate(value=2.0, **changes):
    return Estimate(value=value, n=5, unit="s", method="by hand", **changes)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.1, 95.0])
def test_a_confidence_lies_between_0_and_1(confidence):
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimate(low=1.0, high=3.0, confidence=confidence)
    text = f'{{"type": "estimate", "value": 2, "low": 1, "high": 3, "confidence": {confidence}, "n": 5, '
    with pytest.raises(msgspec.ValidationError, match="between 0 and 1"):
        msgspec.json.decode(text + '"unit": "s", "method": ""}', type=Estimate)


def test_without_an_interval_there_is_nothing_to_be_confident_of():
    with pytest.raises(ValueError, match="without an interval"):
        estimate(confidence=0.95)
    assert estimate(low=1.0, high=3.0).confidence is None  # an interval of unknown confidence


@pytest.mark.parametrize("kind", [estimate, Number, lambda **ends: Share(of="x", **ends)])
@pytest.mark.parametrize("ends", [{"low": 1.0}, {"high": 1.0}])
def test_an_interval_has_two_ends(kind, ends):
    with pytest.raises(ValueError, match="two ends"):
        kind(value=1.0, **ends)


def test_the_worst_of_both_by_hand_and_without_a_confidence():
    above, below = (estimate(value, low=value - 1, high=value + 1, confidence=0.95) for value in (10.0, 4.0))
    assert worst_ratio(above, below) == (9 / 5, 11 / 3)
    assert worst_ratio(above, estimate()) is None


@pytest.mark.parametrize("function", [lambda x: 1 / x, lambda x: 3 * x])
def test_through_a_function_the_ends_stay_in_order(function):
    found = estimate(low=1.0, high=4.0, confidence=0.9).mapped(function, "x")
    assert found.low < found.value < found.high
    assert {found.low, found.high} == {function(1.0), function(4.0)}
    assert (found.confidence, found.unit) == (0.9, "x")
