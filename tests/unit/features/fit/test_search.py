"""The largest value that fits, on memory curves that are given."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.features.fit.search import (
    CONFIRMED,
    ENOUGH_TRIES,
    FULL,
    MOST,
    MemoryLine,
    Next,
    NothingFits,
    SearchResult,
    line_of,
    next_of,
)
from rigdyno.schema.measured import Attempt

GB = 10**9
FENCE = 1.25  # times what is allowed: beyond it a process is ended, and doesn't tell what it would have taken


def search(memory, allowed, *, more=lambda: 1.0, noise=lambda: 1.0, tells=True, most=MOST):
    """Return every try of a search, and its result. `memory` of a value; `noise` differs from start to start;
    `more` is what many steps take beyond a few, where the allocator falls into fragments."""
    tries: list[Attempt] = []
    for _ in range(60):
        found = next_of(tries, allowed, most)
        if not isinstance(found, Next):
            return tries, found
        taken = memory(found.value) * noise() * (more() if found.thorough else 1.0)
        told = taken <= allowed or (tells and taken <= FENCE * allowed)
        tries.append(Attempt(found.value, taken <= allowed, round(taken) if told else None, found.thorough))
    raise AssertionError(tries)


def line(fixed, each):
    return lambda value: fixed + each * value


def assert_confirmed(tries, found, allowed):
    """It was tried with many steps, and left its margin each time."""
    own = [each for each in tries if each.value == found.value and each.thorough]
    assert own
    assert all(each.memory_bytes <= CONFIRMED * allowed for each in own)


class TestStraightLines:
    @pytest.mark.parametrize(
        ("fixed", "each", "allowed"),
        [
            (0.35 * GB, 2.4e6, 4 * GB),  # EfficientNet-B0 on small images
            (0.6 * GB, 4.5e7, 4 * GB),  # with a gradient for each sample
            (1 * GB, 9e7, 8 * GB),  # ResNet-50
            (0.1 * GB, 9e6, 40 * GB),
            (0.1 * GB, 2e4, 1 * GB),
            (2 * GB, 1.9e9, 8 * GB),
        ],
    )
    def test_few_tries_come_close_to_what_fits(self, fixed, each, allowed):
        tries, found = search(line(fixed, each), allowed)
        assert isinstance(found, SearchResult)
        assert_confirmed(tries, found, allowed)
        assert line(fixed, each)(found.value + 1) > FULL * allowed
        assert len(tries) <= 6

    def test_what_is_settled_was_confirmed(self):
        tries, found = search(line(0, 1e6), GB)
        assert tries[-1].thorough
        assert tries[-1].value == found.value

    def test_no_try_takes_far_more_than_is_allowed_once_the_slope_is_known(self):
        for fixed, each in ((6e8, 1e8), (6e8, 1e5), (9e8, 1e7), (1e7, 1e7)):
            curve = line(fixed, each)
            tries, _ = search(curve, GB)
            assert all(curve(each.value) <= 2.1 * GB for each in tries[2:])

    def test_exactly_one_fits(self):
        assert search(line(0, 6e8), GB)[1] == SearchResult(1)

    def test_even_one_is_too_large(self):
        tries, found = search(line(2 * GB, 1e6), 1.9 * GB)
        assert found == NothingFits(2 * GB + 10**6)
        assert len(tries) == 1

    def test_even_one_is_ended_before_it_tells(self):
        assert search(line(2 * GB, 1e6), GB)[1] == NothingFits(None)

    def test_what_takes_no_memory_ends_at_the_most(self):
        assert search(line(0.5 * GB, 0), GB)[1] == SearchResult(MOST)

    def test_a_batch_has_at_most_all_samples(self):
        tries, found = search(line(0.5 * GB, 100), GB, most=50_000)
        assert found == SearchResult(50_000)
        assert max(each.value for each in tries) == 50_000

    def test_a_network_that_takes_nearly_all_of_it_leaves_room_for_many_small_samples(self):
        """Memory is as good as full from the first try on; the batch isn't."""
        tries, found = search(line(0.93 * GB, 1e4), GB)
        assert found.value > 300
        assert len(tries) <= ENOUGH_TRIES


class TestNoise:
    @pytest.mark.parametrize(
        ("fixed", "each", "allowed"), [(3.5e8, 2.4e6, 4 * GB), (6e8, 4.5e7, 4 * GB), (6.3e8, 1e5, 2 * GB)]
    )
    def test_peaks_that_differ_from_start_to_start(self, fixed, each, allowed):
        """Peaks differ by 2 %, and by up to 1.5 % more after many steps: the result fits five times of five,
        1.15 times as much doesn't, and eight tries are enough."""
        chance, curve = Random(7), line(fixed, each)
        noise, more = (lambda: chance.uniform(0.99, 1.01)), (lambda: chance.uniform(1.0, 1.015))
        for _ in range(200):
            tries, found = search(curve, allowed, noise=noise, more=more)
            assert isinstance(found, SearchResult)
            assert_confirmed(tries, found, allowed)
            assert len(tries) <= ENOUGH_TRIES
            assert all(curve(found.value) * noise() * more() <= allowed for _ in range(5))
            assert fixed > 0.3 * allowed or curve(1.15 * found.value) * noise() * more() > allowed

    def test_noise_of_a_tenth_still_comes_to_an_end_near_the_wall(self):
        chance = Random(3)
        for _ in range(200):
            tries, found = search(line(3.5e8, 2.4e6), 4 * GB, noise=lambda: chance.uniform(0.95, 1.05))
            assert isinstance(found, SearchResult)
            assert_confirmed(tries, found, 4 * GB)
            assert len(tries) <= ENOUGH_TRIES + 2

    def test_a_first_start_that_takes_more_than_all_later_ones(self):
        """Kernels are compiled in it."""
        starts = iter([1.6])
        tries, found = search(line(4e8, 2e6), 2 * GB, noise=lambda: next(starts, 1.0))
        assert FULL * 2 * GB <= 4e8 + 2e6 * found.value <= CONFIRMED * 2 * GB
        assert len(tries) <= ENOUGH_TRIES


CURVES = {
    "blocks": lambda value: 3e8 + 64e6 * -(-value // 32),  # as an allocator's are
    "powers of two": lambda value: 3e8 + 1e6 * 2 ** (value - 1).bit_length(),
    "square": lambda value: 3e8 + 1e4 * value**2,  # attention over the batch
    "root": lambda value: 3e8 + 1e8 * value**0.5,
    "jump": lambda value: 3e8 + 1e6 * value + (2 * GB if value > 700 else 0),  # another algorithm from here on
    "floor": lambda value: max(6e8, 3e8 + 1e6 * value),  # something else takes more than a few samples
}


class TestCurvesThatAreNoLines:
    @pytest.mark.parametrize("tells", [True, False])
    @pytest.mark.parametrize("name", CURVES)
    def test_what_is_found_was_confirmed_within_eight_tries(self, name, tells):
        tries, found = search(CURVES[name], 2 * GB, tells=tells)
        assert isinstance(found, SearchResult)
        assert_confirmed(tries, found, 2 * GB)
        assert len(tries) <= ENOUGH_TRIES
        assert CURVES[name](2 * found.value) > 0.96 * 2 * GB

    def test_fragments_that_only_many_steps_leave(self):
        """The confirmation takes a tenth more, and the result fits all the same."""
        tries, found = search(line(0, 1e6), GB, more=lambda: 1.1)
        assert isinstance(found, SearchResult)
        assert 0.85 * 1000 / 1.1 <= found.value <= CONFIRMED * 1000 / 1.1
        assert any(each.thorough and each.memory_bytes > CONFIRMED * GB for each in tries)

    def test_memory_that_is_not_told_when_it_runs_out(self):
        """Some devices' allocators refuse long before the peak is at the limit."""
        tries: list[Attempt] = []
        while isinstance(found := next_of(tries, GB), Next):
            fits = found.value <= 300
            tries.append(Attempt(found.value, fits, 10**6 * found.value if fits else None, found.thorough))
        assert 270 <= found.value <= 300
        assert len(tries) <= ENOUGH_TRIES


def test_what_fails_for_another_reason_is_not_a_matter_of_size():
    assert next_of([Attempt(1, True, 10**6), Attempt(8, None)], GB) == SearchResult(8)


def test_a_value_that_was_confirmed_without_its_margin_does_not_fit():
    tries = [Attempt(1, True, 500), Attempt(2, True, 985), Attempt(2, True, 985, thorough=True)]
    assert next_of(tries, 1000) == Next(1, thorough=True)


class TestLine:
    def test_it_goes_through_points_that_lie_on_one(self):
        found = line_of([Attempt(value, True, 1000 + 30 * value) for value in (1, 10, 200)])
        assert found.fixed_bytes == pytest.approx(1000)
        assert found.each_bytes == pytest.approx(30)
        assert found.end(4000) == pytest.approx(100)

    def test_it_is_the_weighted_fit_of_numpy(self):
        import numpy as np

        chance = Random(1)
        tries = [
            Attempt(value, True, round((5e8 + 3e6 * value) * chance.uniform(0.9, 1.1))) for value in (1, 8, 60, 400)
        ]
        each, fixed = np.polyfit(
            [t.value for t in tries], [t.memory_bytes for t in tries], 1, w=[1 / t.memory_bytes for t in tries]
        )
        found = line_of(tries)
        assert found.fixed_bytes == pytest.approx(fixed, rel=1e-6)
        assert found.each_bytes == pytest.approx(each, rel=1e-6)

    def test_memory_never_falls_with_the_value(self):
        assert line_of([Attempt(1, True, 900), Attempt(50, True, 800)]).each_bytes == 0

    def test_values_that_are_close_give_none(self):
        assert line_of([Attempt(100, True, 900), Attempt(110, True, 950)]) is None
        assert line_of([]) is None

    def test_without_a_slope_it_ends_nowhere(self):
        assert MemoryLine(100, 0).end(200) == MOST


@given(
    st.lists(
        st.builds(
            Attempt,
            st.integers(1, 40),
            st.sampled_from((True, True, False, None)),
            st.none() | st.integers(1, 2000),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_any_tries_have_an_answer(tries):
    """A folder may hold any tries."""
    found = next_of(tries, 1000)
    if isinstance(found, Next):
        assert 1 <= found.value <= MOST


@settings(max_examples=300, deadline=None)
@given(
    fixed=st.floats(0, 0.9),
    each=st.floats(1e-6, 0.5),
    seed=st.integers(0, 2**32),
    spread=st.floats(0, 0.05),
    fragments=st.floats(0, 0.1),
    block=st.sampled_from((1, 2, 8, 32)),
    tells=st.booleans(),
)
def test_any_rising_curve_with_noise_comes_to_an_end_with_a_confirmed_value_or_none(
    fixed, each, seed, spread, fragments, block, tells
):
    """Shares of what is allowed: what the network takes, a sample, noise from start to start, what many steps add."""
    chance = Random(seed)
    tries, found = search(
        lambda value: GB * (fixed + each * block * -(-value // block)),
        GB,
        noise=lambda: chance.uniform(1 - spread, 1 + spread),
        more=lambda: chance.uniform(1, 1 + fragments),
        tells=tells,
    )
    if isinstance(found, SearchResult):
        assert_confirmed(tries, found, GB)
    else:
        assert isinstance(found, NothingFits)
        assert GB * (fixed + each * block) * (1 + spread) * (1 + fragments) > CONFIRMED * GB
    assert len(tries) <= 2 * ENOUGH_TRIES


@settings(max_examples=100, deadline=None)
@given(fixed=st.floats(0, 0.5), each=st.floats(1e-5, 0.02))
def test_without_noise_a_line_needs_at_most_eight_tries(fixed, each):
    tries, found = search(line(fixed * GB, each * GB), GB)
    assert len(tries) <= ENOUGH_TRIES
    assert fixed + each * (found.value + 1) >= FULL
