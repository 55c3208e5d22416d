"""From stored turns to a verdict: pairs by hand, intervals against scipy, the end of a duel, how often it errs."""

import math

import msgspec
import numpy as np
import pytest
from scipy import stats

from rigdyno.analyse.pairs import (
    PRECISE,
    PRECISE_ENOUGH_TO_GIVE_UP,
    analyse_pairs,
    is_enough,
    judge_duel,
    log_ratios,
    meaningless_below,
    pair_figure,
    pairs_of,
)
from rigdyno.analyse.process import CellData
from rigdyno.base.errors import DamagedRun
from rigdyno.schema.comparison import PairFigure
from rigdyno.schema.estimate import Estimate, Missing
from rigdyno.schema.record import Facts, Failed, Skipped
from rigdyno.schema.spec import DuelPlan
from scripted_rows import noisy, step_header, step_rows
from support import a_record

PLAN = DuelPlan(what="tensor_add", names=("old", "new"), margin=0.01, least_pairs=6, budget_seconds=120.0)
SELF = msgspec.structs.replace(PLAN, self_duel=True, least_pairs=4)


def a_cell(pair, arm, seconds, *, outcome=None, unit="step", took=4.0, **rows):
    changes = {"outcome": outcome} if outcome is not None else {}
    record = a_record(cell=f"pair{pair:03d}-{arm}", pair=pair, arm=arm, seconds=took, facts=Facts(unit=unit), **changes)
    return CellData(record, ((step_header("turn"), step_rows(seconds, **rows)),))


def a_pair(number, ratio=1.0, turns=50, **changes):
    """B's rate over A's is this ratio in the median."""
    seconds = noisy(turns, seed=number)
    return [a_cell(number, "a", seconds, **changes), a_cell(number, "b", seconds / ratio, **changes)]


def cells(ratios, **changes):
    return [cell for number, ratio in enumerate(ratios, start=1) for cell in a_pair(number, ratio, **changes)]


def figures(ratios, seconds=5.0):
    def estimate(value):
        return Estimate(value=value, low=value, high=value, confidence=0.95, n=99, unit="x", method="scripted")

    return [PairFigure(pair=i, ratio=estimate(value), seconds=seconds) for i, value in enumerate(ratios, start=1)]


def spread_around(mean, sd, count):
    """Ratios whose logarithms have exactly this mean and standard deviation."""
    steps = np.arange(count) - (count - 1) / 2
    return np.exp(math.log(mean) + sd * steps / steps.std(ddof=1))


def half_width(ratios):
    logs = np.log(ratios)
    return stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))


class TestTurns:
    def test_log_ratios_by_hand(self):
        """Rounds of 0.5, 0.5, 4 and 1: two by two, their geometric means; a fifth has no way back."""
        a = step_rows([1.0, 2.0, 4.0, 1.0, 1.0], items=[8.0] * 5)
        b = step_rows([2.0, 2.0, 1.0, 1.0, 9.0], items=[8.0, 4.0, 8.0, 8.0, 8.0])
        assert log_ratios(a, b) == pytest.approx(np.log([0.5, 2.0]))

    def test_warm_up_of_either_arm_and_turns_without_a_partner_stay_out(self):
        a = step_rows([9.0, 9.0, 1.0, 1.0, 1.0], warm_up=2)
        b = step_rows([7.0, 7.0, 7.0, 2.0], warm_up=3)
        assert log_ratios(a, b) == pytest.approx([math.log(0.5)])

    def test_nothing_but_warm_up(self):
        rows = step_rows([1.0, 1.0], warm_up=2)
        with pytest.raises(DamagedRun, match="no turns but warm-up"):
            log_ratios(rows, rows)

    @pytest.mark.parametrize("counts", [[1.0, 0.0], [0.0, 0.0]])
    def test_turns_that_count_nothing_have_no_rate(self, counts):
        with pytest.raises(DamagedRun, match="counts no items"):
            log_ratios(step_rows([1.0, 1.0]), step_rows([1.0, 1.0], items=counts))

    def test_the_figure_of_a_pair_is_the_median_and_one_stray_turn_is_nothing(self):
        b = np.full(82, 0.01 / 0.97)
        b[7] = 30.0
        [pair] = pairs_of([a_cell(3, "a", np.full(82, 0.01)), a_cell(3, "b", b, took=6.0)])
        figure = pair_figure(pair)
        assert figure.pair == 3
        assert figure.seconds == 6.0
        assert figure.ratio.value == pytest.approx(0.97)
        assert figure.ratio.n == 41
        assert figure.ratio.low <= figure.ratio.value <= figure.ratio.high

    def test_a_pair_without_its_partner_is_none(self):
        found = pairs_of([*a_pair(2), a_cell(1, "b", [1.0]), CellData(a_record())])
        assert [pair.number for pair in found] == [2]


class TestVerdict:
    def test_the_interval_is_students_over_the_pairs(self):
        ratios = [0.961, 0.975, 0.968, 0.972, 0.969, 0.964, 0.973]
        duel = analyse_pairs(cells(ratios), PLAN)
        logs = np.log(ratios)
        low, high = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
        ratio = duel.comparison.ratio
        assert ratio.value == pytest.approx(stats.gmean(ratios))
        assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)))
        assert duel.half_width == pytest.approx((high - low) / 2)
        assert (ratio.n, ratio.unit, ratio.confidence) == (7, "x", 0.95)

    def test_who_fought_and_how_it_ended(self):
        duel = analyse_pairs(cells(spread_around(0.969, 0.002, 8)), PLAN)
        compared = duel.comparison
        assert (compared.what, compared.baseline, compared.candidate) == ("tensor_add", "old", "new")
        assert compared.answer == "slower"
        assert compared.sentence.startswith("B is 3.1 % slower (")
        assert [figure.pair for figure in duel.pairs] == list(range(1, 9))
        assert duel.lost == ()
        assert duel.seconds_to_decide is None

    @pytest.mark.parametrize(
        ("mean", "sd", "answer"),
        [
            (1.0, 0.002, "same"), (1.005, 0.002, "same"), (1.01, 0.002, "undecided"), (1.02, 0.002, "faster"),
            (0.98, 0.002, "slower"), (1.0, 0.05, "undecided"), (1.05, 0.1, "undecided"),
        ],
    )  # fmt: skip
    def test_answers_at_and_around_the_margin(self, mean, sd, answer):
        ratios = spread_around(mean, sd, 8)
        assert analyse_pairs(cells(ratios), PLAN).comparison.answer == answer
        swapped = {"faster": "slower", "slower": "faster"}.get(answer, answer)
        assert judge_duel(PLAN, figures(1 / ratios), ()).comparison.answer == swapped

    def test_one_pair_says_how_steady_it_was_itself_and_nothing_else(self):
        duel = analyse_pairs(a_pair(1, 2.0), PLAN)
        ratio = duel.comparison.ratio
        assert duel.comparison.answer == "undecided"
        assert (ratio.value, ratio.interval) == (pytest.approx(2.0), None)
        assert duel.half_width is None
        assert duel.seconds_to_decide is None
        assert not is_enough(duel, PLAN)

    @pytest.mark.parametrize(("ratio", "answer"), [(1.0, "same"), (1.03, "faster"), (0.97, "slower")])
    def test_without_any_spread(self, ratio, answer):
        constant = [np.full(20, 0.01), np.full(20, 0.01 / ratio)]
        duel = analyse_pairs([a_cell(n, arm, constant[arm == "b"]) for n in range(1, 9) for arm in "ab"], PLAN)
        assert duel.comparison.answer == answer
        assert duel.half_width == pytest.approx(0.0, abs=1e-6)
        assert is_enough(duel, PLAN)

    def test_no_pair_at_all(self):
        duel = analyse_pairs([], PLAN)
        assert duel.comparison.answer == "NOT_COMPARABLE"
        assert duel.comparison.ratio == Missing(reason="no pair of processes finished")
        assert [reason.code for reason in duel.comparison.reasons] == ["no_pair"]
        assert not is_enough(duel, PLAN)
        assert meaningless_below(duel) is None

    def test_arms_that_differ_in_unit(self):
        found = [a_cell(1, "a", [1.0] * 9, unit="image"), a_cell(1, "b", [1.0] * 9, unit="token")]
        compared = analyse_pairs(found, PLAN).comparison
        assert compared.answer == "NOT_COMPARABLE"
        assert compared.sentence == "A counts in images and B in tokens: there is no ratio of the two"
        assert isinstance(compared.ratio, Missing)
        assert [reason.code for reason in compared.reasons] == ["different_units"]


class TestLost:
    def test_a_lost_arm_is_named_and_the_other_pairs_count(self):
        killed = Failed(kind="signal", phase="measure", message="SIGKILL: killed from outside")
        found = [*cells([1.03, 1.031]), a_cell(3, "a", [1.0] * 9), a_cell(3, "b", [1.0] * 2, outcome=killed)]
        duel = analyse_pairs(found, PLAN)
        assert duel.lost == ("pair 3: B failed (signal, measure): SIGKILL: killed from outside",)
        assert [figure.pair for figure in duel.pairs] == [1, 2]
        assert duel.comparison.ratio.n == 2

    def test_skipped(self):
        found = [a_cell(1, "a", [1.0], outcome=Skipped(reason="no such device")), a_cell(1, "b", [1.0])]
        assert analyse_pairs(found, PLAN).lost == ("pair 1: A was skipped: no such device",)

    @pytest.mark.parametrize("count", [0.0, -1.0, math.nan, math.inf])
    def test_items_that_are_no_count(self, count):
        found = [*cells([1.0, 1.01]), a_cell(3, "a", [1.0] * 9, items=[1.0] * 8 + [count]), a_cell(3, "b", [1.0] * 9)]
        duel = analyse_pairs(found, PLAN)
        assert len(duel.pairs) == 2
        (lost,) = duel.lost
        assert lost.startswith("pair 3: ")

    def test_a_clock_that_ran_backwards(self):
        rows = step_rows([1.0] * 9)
        rows["end_ns"][4] = rows["start_ns"][4] - 1
        spoiled = CellData(a_cell(1, "a", [1.0]).record, ((step_header("turn"), rows),))
        (lost,) = analyse_pairs([spoiled, a_cell(1, "b", [1.0] * 9)], PLAN).lost
        assert lost.startswith("pair 1: time runs backwards")

    def test_an_arm_that_stored_nothing(self):
        empty = CellData(a_cell(1, "a", [1.0]).record)
        duel = analyse_pairs([empty, a_cell(1, "b", [1.0])], PLAN)
        assert duel.lost == ("pair 1: pair001-a has no recorded turns",)


class TestEnough:
    def test_never_before_the_least_pairs_however_clear(self):
        for count in range(1, 6):
            assert not is_enough(judge_duel(PLAN, figures([2.0] * count), ()), PLAN)
        assert is_enough(judge_duel(PLAN, figures([2.0] * 6), ()), PLAN)

    def test_never_at_the_first_significance(self):
        """Clearly faster, and not yet as precise as was set beforehand."""
        ratios = spread_around(1.5, 0.02, 8)
        assert half_width(ratios) > PRECISE
        duel = judge_duel(PLAN, figures(ratios), ())
        assert duel.comparison.answer == "faster"
        assert not is_enough(duel, PLAN)

    @pytest.mark.parametrize(("factor", "enough"), [(0.99, True), (1.01, False)])
    def test_a_decided_duel_ends_as_soon_as_it_is_precise(self, factor, enough):
        sd = factor * PRECISE / (half_width(spread_around(1.0, 1.0, 8)))
        duel = judge_duel(PLAN, figures(spread_around(1.5, sd, 8)), ())
        assert duel.half_width == pytest.approx(factor * PRECISE)
        assert duel.comparison.answer == "faster"
        assert is_enough(duel, PLAN) is enough

    @pytest.mark.parametrize(("factor", "enough"), [(0.99, True), (1.01, False)])
    def test_an_undecided_one_goes_on_until_more_would_not_help(self, factor, enough):
        sd = factor * PRECISE_ENOUGH_TO_GIVE_UP / half_width(spread_around(1.0, 1.0, 8))
        duel = judge_duel(PLAN, figures(spread_around(1.01, sd, 8)), ())
        assert duel.comparison.answer == "undecided"
        assert is_enough(duel, PLAN) is enough

    def test_a_duel_with_itself_ends_with_its_pairs(self):
        wild = figures([1.0, 1.5, 0.7, 1.2])
        assert is_enough(judge_duel(SELF, wild, ()), SELF)
        assert not is_enough(judge_duel(SELF, wild[:3], ()), SELF)


class TestHowMuchLonger:
    @pytest.mark.parametrize(
        ("mean", "sd", "count"), [(1.0, 0.02, 6), (1.03, 0.03, 6), (1.015, 0.01, 8), (0.97, 0.04, 4), (1.0, 0.05, 2)]
    )
    def test_against_brute_force(self, mean, sd, count):
        ratios = spread_around(mean, sd, count)
        duel = judge_duel(PLAN, figures(ratios, seconds=7.0), ())
        assert duel.comparison.answer == "undecided"
        more = next(n for n in range(1, 1000) if self.decided(ratios, n))
        assert duel.seconds_to_decide == pytest.approx(7.0 * more)

    @staticmethod
    def decided(ratios, more):
        """Decide after `more` further pairs with the same mean and spread."""
        logs, count = np.log(ratios), len(ratios) + more
        half = stats.t.ppf(0.975, count - 1) * logs.std(ddof=1) / math.sqrt(count)
        low, high, margin = logs.mean() - half, logs.mean() + half, math.log1p(0.01)
        return low >= margin or high <= -margin or (low >= -margin and high <= margin)

    def test_at_the_margin_itself_nobody_can_tell(self):
        duel = judge_duel(PLAN, figures(spread_around(1.01, 0.01, 8)), ())
        assert duel.comparison.answer == "undecided"
        assert duel.seconds_to_decide is None


class TestNoise:
    def test_what_the_interval_reaches_to(self):
        duel = judge_duel(SELF, figures([0.99, 1.0, 1.01, 1.02]), ())
        ratio = duel.comparison.ratio
        assert meaningless_below(duel) == pytest.approx(max(ratio.high - 1, 1 - ratio.low))
        assert meaningless_below(duel) > 0.02

    def test_one_pair_is_no_noise(self):
        assert meaningless_below(judge_duel(SELF, figures([1.2]), ())) is None


class TestHowOftenItErrs:
    """Process pairs with a known spread, from the first pair to the end that the rule chooses; ten fit the budget."""

    MOST = 10
    COUNT = 1500

    def answers(self, true_ratio, spread, seed):
        """Return the answers of `judged` and `is_enough` after every pair, for many duels at once."""
        logs = math.log(true_ratio) + np.random.default_rng(seed).normal(0, spread, (self.COUNT, self.MOST))
        answers = np.full(self.COUNT, "", dtype=object)
        for n in range(PLAN.least_pairs, self.MOST + 1):
            part, margin = logs[:, :n], math.log1p(PLAN.margin)
            half = stats.t.ppf(0.975, n - 1) * part.std(axis=1, ddof=1) / math.sqrt(n)
            low, high = part.mean(axis=1) - half, part.mean(axis=1) + half
            inside = np.where((-margin <= low) & (high <= margin), "same", "undecided")
            now = np.where(low > margin, "faster", np.where(high < -margin, "slower", inside))
            over = (half < PRECISE) & ((now != "undecided") | (half < PRECISE_ENOUGH_TO_GIVE_UP)) | (n == self.MOST)
            answers = np.where((answers == "") & over, now, answers)
        self.agrees(logs, answers)
        return answers

    def agrees(self, logs, answers):
        for row, expected in list(zip(logs, answers, strict=True))[:40]:
            pairs = figures(np.exp(row))
            ends = (judge_duel(PLAN, pairs[:n], ()) for n in range(PLAN.least_pairs, self.MOST + 1))
            last = next((duel for duel in ends if is_enough(duel, PLAN)), judge_duel(PLAN, pairs, ()))
            assert last.comparison.answer == expected

    @pytest.mark.parametrize("spread", [0.001, 0.005, 0.007, 0.015, 0.04])
    def test_of_the_same_thing(self, spread):
        answers = self.answers(1.0, spread, seed=1)
        assert np.isin(answers, ["faster", "slower"]).mean() <= 0.05
        if spread <= 0.007:
            assert (answers == "same").mean() >= 0.8

    @pytest.mark.parametrize("spread", [0.003, 0.007, 0.015, 0.04])
    def test_of_a_difference_as_large_as_the_margin(self, spread):
        """The hardest: 'faster' and 'same' are both wrong by a hair."""
        answers = self.answers(1.01, spread, seed=2)
        assert (answers == "slower").mean() <= 0.01
        assert (answers == "faster").mean() <= 0.05
        assert (answers == "same").mean() <= 0.05

    @pytest.mark.parametrize(("true_ratio", "answer"), [(0.97, "slower"), (1.03, "faster")])
    @pytest.mark.parametrize("spread", [0.003, 0.007, 0.012])
    def test_of_three_percent(self, true_ratio, answer, spread):
        assert (self.answers(true_ratio, spread, seed=3) == answer).mean() >= 0.95
