"""The largest value that fits, on memory curves that are given."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigdyno.analyse.search import MOST, Next, NothingFits, Settled, Try, next_of

GB = 10**9


def search(memory, allowed, *, thorough=None):
    """Every try until it is settled, and what it came to. `memory` of a value, `thorough` of one that is confirmed."""
    tries: list[Try] = []
    for _ in range(60):
        found = next_of(tries, allowed)
        if not isinstance(found, Next):
            return tries, found
        taken = (thorough or memory)(found.value) if found.thorough else memory(found.value)
        tries.append(Try(found.value, taken <= allowed, round(taken), found.thorough))
    raise AssertionError(tries)


def line(fixed, each):
    return lambda value: fixed + each * value


class TestStraightLines:
    @pytest.mark.parametrize(
        ("fixed", "each", "allowed"),
        [(0.4 * GB, 1e6, 4 * GB), (0.4 * GB, 3e7, 4 * GB), (2 * GB, 1.9e9, 8 * GB), (0.1 * GB, 2e4, 1 * GB)],
    )
    def test_few_tries_come_close_to_what_fits(self, fixed, each, allowed):
        truth = int((allowed - fixed) / each)
        tries, found = search(line(fixed, each), allowed)
        assert isinstance(found, Settled)
        assert found.value <= truth
        assert line(fixed, each)(found.value) >= 0.94 * allowed or found.value == truth
        assert len(tries) <= 8

    def test_what_is_settled_was_confirmed(self):
        tries, found = search(line(0, 1e6), GB)
        assert tries[-1].thorough
        assert tries[-1].value == found.value

    def test_no_try_takes_far_more_than_is_allowed(self):
        for fixed, each in ((0, 6e8), (6e8, 1e8), (6e8, 1e5), (9e8, 1e7), (1e7, 1e7)):
            tries, _ = search(line(fixed, each), GB)
            assert max(each.memory_bytes for each in tries) <= 2.1 * GB

    def test_noise_of_a_few_hundredths_costs_few_tries(self):
        """Seen on a busy machine: 630 MB for the program, 0.1 MB a sample, and 5 % up or down from start to start."""
        noise = Random(7)
        for _ in range(200):
            tries, found = search(lambda value: (6.3e8 + 1e5 * value) * noise.uniform(0.97, 1.03), 9e8)
            assert isinstance(found, Settled)
            assert len(tries) <= 14

    def test_exactly_one_fits(self):
        assert search(line(0, 6e8), GB)[1] == Settled(1)

    def test_even_one_is_too_large(self):
        tries, found = search(line(2 * GB, 1e6), GB)
        assert found == NothingFits(2 * GB + 10**6)
        assert len(tries) == 1

    def test_what_takes_no_memory_ends_at_the_most(self):
        assert search(line(0.5 * GB, 0), GB)[1] == Settled(MOST)


class TestCurvesThatAreNoLines:
    @pytest.mark.parametrize(
        "memory",
        [
            lambda value: 3e8 + 2e6 * value * (1 + 0.1 * (value * 7919 % 11) / 11),  # noise that doesn't repeat
            lambda value: 3e8 + 64e6 * -(-value // 32),  # steps, as an allocator's blocks are
            lambda value: 3e8 + 1e4 * value**2,  # attention over the batch
            lambda value: 3e8 + 1e8 * value**0.5,
            lambda value: 3e8 + 1e6 * value + (2 * GB if value > 700 else 0),  # another algorithm from here on
        ],
        ids=["noise", "blocks", "square", "root", "jump"],
    )
    def test_it_ends_with_a_value_that_fits_beside_one_that_does_not_or_full(self, memory):
        tries, found = search(memory, 2 * GB)
        assert isinstance(found, Settled)
        assert memory(found.value) <= 2 * GB
        above = [each.value for each in tries if not each.fits and each.value > found.value]
        assert memory(found.value) >= 0.94 * 2 * GB or min(above) - found.value <= max(1, found.value / 32)
        assert len(tries) <= 20

    def test_memory_that_is_not_told_when_it_runs_out(self):
        tries: list[Try] = []
        while isinstance(found := next_of(tries, GB), Next):
            fits = found.value <= 300
            tries.append(Try(found.value, fits, 10**6 * found.value if fits else None, found.thorough))
        assert 290 <= found.value <= 300

    def test_what_fits_for_a_few_steps_and_not_for_many_gives_way(self):
        """Confirmed values grow by a tenth: what is settled fits even so."""
        tries, found = search(line(0, 1e6), GB, thorough=line(0, 1.1e6))
        assert isinstance(found, Settled)
        assert found.value <= 1000 / 1.1
        assert found.value >= 0.85 * 1000 / 1.1
        assert any(each.thorough and not each.fits for each in tries)


def test_what_fails_for_another_reason_is_not_a_matter_of_size():
    assert next_of([Try(1, True, 10**6), Try(8, None)], GB) == Settled(8)


def test_the_same_value_tried_twice_is_one_point():
    """The quick try was nearly full, and the thorough one a little less."""
    assert next_of([Try(1, True, 950), Try(1, True, 930, thorough=True)], 1000) == Settled(1)


@given(
    st.lists(
        st.builds(
            Try,
            st.integers(1, 40),
            st.sampled_from((True, True, False, None)),
            st.none() | st.integers(1, 2000),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_any_tries_have_an_answer(tries):
    """As somebody may have left them in a folder."""
    found = next_of(tries, 1000)
    if isinstance(found, Next):
        assert 1 <= found.value <= MOST
