"""Student's t against scipy, and where the textbook has a formula of its own."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from rigdyno.analyse.student import incomplete_beta, student_cdf, student_density, student_quantile
from scripted_rows import repeatable

DEGREES = [0.5, 1, 1.5, 2, 2.7, 3, 4, 5, 8, 11.25, 30, 101, 5000, 123_456.7]


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.9995])
def test_quantile_against_scipy(probability, degrees):
    assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-8)


def test_the_middle_is_zero():
    assert student_quantile(0.5, 3.3) == 0
    assert student_cdf(0, 3.3) == 0.5


@repeatable
@given(st.floats(1e-6, 50), st.floats(0.5, 300))
def test_cdf_against_scipy(t, degrees):
    assert student_cdf(t, degrees) == pytest.approx(stats.t.cdf(t, degrees), abs=1e-10)
    assert student_density(t, degrees) == pytest.approx(stats.t.pdf(t, degrees), rel=1e-9)


@pytest.mark.parametrize("t", [1e-9, 0.1, 1, 10, 1000])
def test_one_degree_is_cauchy_s_distribution(t):
    assert student_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-14)


@repeatable
@given(st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0, 1))
def test_incomplete_beta_against_scipy(a, b, x):
    assert incomplete_beta(a, b, x, 1 - x) == pytest.approx(special.betainc(a, b, x), abs=1e-11)
