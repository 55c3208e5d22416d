"""Test the checks of estimates."""

import msgspec
import pytest

from rigdyno.schema.estimate import Estimate, Number
from rigdyno.schema.view import RatioEntry


def estimate(value=2.0, **changes):
    return Estimate(value=value, n=5, unit="s", method="by hand", **changes)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.1, 95.0])
def test_a_confidence_is_between_0_and_1(confidence):
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimate(low=1.0, high=3.0, confidence=confidence)
    text = f'{{"type": "estimate", "value": 2, "low": 1, "high": 3, "confidence": {confidence}, "n": 5, '
    with pytest.raises(msgspec.ValidationError, match="between 0 and 1"):
        msgspec.json.decode(text + '"unit": "s", "method": ""}', type=Estimate)


def test_a_confidence_needs_an_interval():
    with pytest.raises(ValueError, match="without an interval"):
        estimate(confidence=0.95)
    assert estimate(low=1.0, high=3.0).confidence is None  # an interval of unknown confidence


@pytest.mark.parametrize("kind", [estimate, Number, lambda **ends: RatioEntry(of="x", **ends)])
@pytest.mark.parametrize("ends", [{"low": 1.0}, {"high": 1.0}])
def test_an_interval_has_two_ends(kind, ends):
    with pytest.raises(ValueError, match="two ends"):
        kind(value=1.0, **ends)


@pytest.mark.parametrize("function", [lambda x: 1 / x, lambda x: 3 * x])
def test_mapping_keeps_the_ends_in_order(function):
    found = estimate(low=1.0, high=4.0, confidence=0.9).mapped(function, "x")
    assert found.low < found.value < found.high
    assert {found.low, found.high} == {function(1.0), function(4.0)}
    assert (found.confidence, found.unit) == (0.9, "x")
