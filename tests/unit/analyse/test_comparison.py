"""Statements about a ratio: the verdict at and around the margin, and its words."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigdyno.analyse.comparison import MARGIN, answer_to, in_favour, in_words, signed_percent
from rigdyno.base.errors import BadValue
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.metric import COUNT, STEP_TIME, THROUGHPUT
from scripted_rows import repeatable

UP, DOWN = 1 + MARGIN, 1 / (1 + MARGIN)  # the margin is the same way off in both directions
BIT = 1e-9


def a_ratio(low, high, value=None):
    value = math.sqrt(low * high) if value is None else value
    return Estimate(value=value, low=low, high=high, confidence=0.95, n=8, unit="x", method="by hand")


def a_bare_ratio(value):
    return Estimate(value=value, n=1, unit="x", method="by hand")


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (UP + BIT, 1.2, "faster"),
        (UP - BIT, 1.2, "undecided"),  # one end still inside
        (1.0, 1.2, "undecided"),
        (0.8, DOWN - BIT, "slower"),
        (0.8, DOWN + BIT, "undecided"),
        (DOWN + BIT, UP - BIT, "same"),
        (DOWN - BIT, UP - BIT, "undecided"),
        (DOWN + BIT, UP + BIT, "undecided"),
        (1.0, 1.0, "same"),
        (1.002, 1.006, "same"),  # significant, and too small to matter
        (1.02, 1.02, "faster"),
        (0.5, 2.0, "undecided"),
        (1e-300, 1e300, "undecided"),
    ],
)
def test_the_whole_interval_decides(low, high, answer):
    assert answer_to(a_ratio(low, high)) == answer


@pytest.mark.parametrize("value", [0.5, 1.0, 2.0])
def test_a_value_without_an_interval_decides_nothing(value):
    assert answer_to(a_bare_ratio(value)) == "undecided"


@repeatable
@given(
    st.floats(min_value=0.2, max_value=5),
    st.floats(min_value=1, max_value=2),
    st.floats(min_value=0.001, max_value=0.5),
)
def test_swapping_the_arms_swaps_the_answer(low, width, margin):
    swapped = {"faster": "slower", "slower": "faster", "same": "same", "undecided": "undecided"}
    one, other = a_ratio(low, low * width), a_ratio(1 / (low * width), 1 / low)
    if all(abs(abs(math.log(end)) - math.log1p(margin)) > BIT for end in (one.low, one.high)):
        assert answer_to(other, margin) == swapped[answer_to(one, margin)]


@pytest.mark.parametrize(("margin", "answer"), [(0.001, "faster"), (0.02, "undecided"), (0.05, "same")])
def test_the_margin_is_the_users(margin, answer):
    assert answer_to(a_ratio(1.01, 1.03), margin) == answer


@pytest.mark.parametrize("margin", [0.0, -0.01, 1.0, 1.5, math.nan])
def test_a_margin_that_is_none(margin):
    with pytest.raises(BadValue, match="a margin lies between 0 and 1"):
        answer_to(a_ratio(1, 1), margin)


def test_of_a_time_less_is_better():
    halved = a_ratio(0.4, 0.6, 0.5)
    assert answer_to(in_favour(halved, THROUGHPUT)) == "slower"
    found = in_favour(halved, STEP_TIME)
    assert (found.low, found.value, found.high) == pytest.approx((1 / 0.6, 2.0, 2.5))
    assert answer_to(found) == "faster"
    assert in_words("B", found, "faster") == "B is 2.00 times as fast (1.67 to 2.50)"


def test_a_count_is_neither_faster_nor_slower():
    with pytest.raises(BadValue, match="'count'"):
        in_favour(a_ratio(0.4, 0.6, 0.5), COUNT)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (a_ratio(0.962, 0.976, 0.969), "B is 3.1 % slower (2.4 to 3.8 %)"),
        (a_ratio(1.024, 1.038, 1.031), "B is 3.1 % faster (2.4 to 3.8 %)"),
        (a_ratio(0.7, 0.95, 0.82), "B is 18 % slower (5.0 to 30 %)"),
        (a_ratio(1.9, 2.1, 2.0), "B is 2.00 times as fast (1.90 to 2.10)"),
        (a_ratio(0.18, 0.2, 0.19), "B is 0.190 times as fast (0.180 to 0.200)"),
        (a_ratio(0.998, 1.004, 1.001), "B: the same; its rate differs by +0.1 % (-0.2 % to +0.4 %)"),
        (a_ratio(0.98, 1.004, 0.992), "B: undecided; its rate differs by -0.8 % (-2.0 % to +0.4 %)"),
        (a_bare_ratio(1.2), "B: undecided; its rate differs by +20 %"),
    ],
)
def test_in_words(ratio, words):
    assert in_words("B", ratio, answer_to(ratio)) == words


@pytest.mark.parametrize(("ratio", "text"), [(1.0, "+0.0 %"), (1.031, "+3.1 %"), (0.5, "-50 %"), (3.0, "+200 %")])
def test_signed_percent(ratio, text):
    assert signed_percent(ratio) == text
