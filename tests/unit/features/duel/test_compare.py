"""Two stored runs: who is matched with whom, what is refused, what may be said, what differs."""

import math

import msgspec
import pytest
from scipy import stats

from rigdyno.analyse.comparison import differences
from rigdyno.analyse.matching import are_alike, figures_by_name, match_configurations, name_of
from rigdyno.analyse.statistics import across_processes
from rigdyno.features.duel.compare import Sides, compare, regressions
from rigdyno.schema.estimate import Estimate, Missing, Reason, Validity
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.metric import STEP_TIME, THROUGHPUT
from rigdyno.schema.record import Completed, Facts, Failed, Skipped
from rigdyno.schema.spec import Budget, RunSpec
from rigdyno.schema.system import Accelerator, Cpu, Environment, GitState
from support import a_record, a_system

SIDES = Sides("old", "new")
STEADY, FASTER, SLOWER = (100.0, 100.2, 99.8), (110.0, 110.3, 109.9), (95.0, 95.2, 94.9)
WILD = (90.0, 100.0, 111.0)


def kind(rates, unit="image/s"):
    whole = across_processes(rates, unit) if len(rates) > 1 else one_value(rates[0], unit)
    return KindFigures(throughput=whole, step_seconds=one_value(1 / rates[0], "s"), process_rates=tuple(rates))


def one_value(value, unit):
    return Estimate(value=value, n=1, unit=unit, method="by hand")


def measured(
    rates=STEADY, *, spec=None, kinds=None, verdict="VALID", reasons=(), outcome=None, unit="image", **changes
):
    spec = spec or RunSpec(workload="resnet")
    facts = Facts(unit=unit)
    outcome = outcome or Completed()
    record = a_record(spec, outcome=outcome, facts=facts, **changes)
    completed = isinstance(outcome, Completed)
    return Measurement(
        spec=spec,
        records=(record,) * len(rates),
        outcome=outcome,
        facts=facts,
        kinds=(kinds or {"step": kind(rates)}) if completed else {},
        validity=Validity(verdict=verdict, reasons=tuple(reasons)) if completed else None,
    )


def only(baseline, candidate, sides=SIDES):
    [found] = compare([baseline], [candidate], sides)
    return found


def codes(comparison):
    return [reason.code for reason in comparison.reasons]


class TestAnswers:
    @pytest.mark.parametrize(
        ("rates", "answer"), [(STEADY, "same"), (FASTER, "faster"), (SLOWER, "slower"), (WILD, "undecided")]
    )
    def test_by_the_margin(self, rates, answer):
        found = only(measured(), measured(rates))
        assert found.answer == answer
        assert (found.baseline, found.candidate, found.what) == ("old", "new", "resnet")
        assert codes(found) == ["sequential"]

    def test_the_interval_is_welch_s(self):
        found = only(measured(), measured(SLOWER)).ratio
        logs = [[math.log(rate) for rate in rates] for rates in (SLOWER, STEADY)]
        welch = stats.ttest_ind(*logs, equal_var=False).confidence_interval()
        assert [math.log(bound) for bound in (found.low, found.high)] == pytest.approx([welch.low, welch.high])

    def test_the_sentence_has_the_interval(self):
        assert "% slower (" in only(measured(), measured(SLOWER)).sentence

    @pytest.mark.parametrize(("ours", "theirs"), [((100.0,), (50.0,)), (STEADY, (50.0,)), ((100.0,), SLOWER)])
    def test_one_process_on_a_side_decides_nothing_however_large_the_difference(self, ours, theirs):
        found = only(measured(ours), measured(theirs))
        assert found.answer == "undecided"
        assert found.ratio.interval is None
        assert codes(found) == ["one_process", "sequential"]
        assert "--repeat 3" in found.reasons[0].sentence

    def test_two_processes_have_an_interval_and_a_warning(self):
        found = only(measured((100.0, 101.0)), measured((50.0, 50.5)))
        assert found.ratio.confidence == 0.95
        assert codes(found)[0] == "few_processes"

    def test_a_machine_that_differs_from_itself_by_more_sets_the_margin(self):
        found = only(measured(), measured(SLOWER), Sides("old", "new", noise=0.08))
        assert (found.answer, found.margin) == ("same", 0.08)
        assert "8.0 %" in found.reasons[-1].sentence
        assert only(measured(), measured(SLOWER), Sides("old", "new", noise=0.002)).answer == "slower"

    def test_not_measured_noise_is_said(self):
        assert "not measured" in only(measured(), measured()).reasons[-1].sentence

    def test_a_suspect_figure_is_compared_with_its_reason(self):
        drifting = Reason(code="drifting", sentence="the steps got 5 % slower")
        found = only(measured(), measured(SLOWER, verdict="SUSPECT", reasons=[drifting]))
        assert found.answer == "slower"
        assert found.reasons[0] == Reason(code="suspect", sentence="SUSPECT in new: the steps got 5 % slower")

    def test_each_kind_of_step_is_its_own_line(self):
        ours = {"read": kind(STEADY), "copy": kind(STEADY)}
        theirs = {"read": kind(SLOWER), "copy": kind(STEADY), "add": kind(STEADY)}
        found = compare([measured(kinds=ours)], [measured(kinds=theirs)], SIDES)
        answers = {each.what: each.answer for each in found}
        assert answers == {"resnet, read": "slower", "resnet, copy": "same", "resnet, add": "NOT_COMPARABLE"}


class TestRegressions:
    @pytest.mark.parametrize(("share", "count"), [(0.03, 1), (0.045, 1), (0.05, 0), (0.2, 0)])
    def test_the_whole_interval_must_be_slower(self, share, count):
        found = compare([measured()], [measured(SLOWER)], SIDES)
        assert len(regressions(found, share)) == count

    @pytest.mark.parametrize("rates", [STEADY, FASTER, WILD, (50.0,)])
    def test_nothing_else_is_one(self, rates):
        assert regressions(compare([measured()], [measured(rates)], SIDES), 0.01) == []

    @pytest.mark.parametrize(("metric", "count"), [(THROUGHPUT, 0), (STEP_TIME, 1)])
    def test_the_metric_says_which_way_is_worse(self, metric, count):
        """Ten per cent more: of a rate that is no regression, of a time it is."""
        [found] = compare([measured()], [measured(FASTER)], SIDES)
        assert found.metric == THROUGHPUT.of("image")
        found = msgspec.structs.replace(found, metric=metric, answer="slower")
        assert len(regressions([found], 0.03)) == count

    def test_nor_is_what_the_machine_does_by_itself(self):
        found = compare([measured()], [measured(SLOWER)], Sides("old", "new", noise=0.08))
        assert regressions(found, 0.03) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("other", "code", "words"),
        [
            (measured(unit="step"), "different_units", "images and steps"),
            (measured(benchmark_version=2), "different_versions", "version 1 of this workload and version 2"),
            (measured(verdict="INVALID", reasons=[Reason(code="x", sentence="throttled")]), "invalid", "throttled"),
            (measured(outcome=Skipped(reason="no room")), "skipped", "skipped in new: no room"),
            (
                measured(outcome=Failed(kind="timeout", phase="build", message="slow")),
                "failed",
                "timeout while in build",
            ),
        ],
    )
    def test_give_no_ratio_and_a_reason(self, other, code, words):
        found = only(measured(), other)
        assert found.answer == "NOT_COMPARABLE"
        assert codes(found) == [code]
        assert words in found.sentence
        assert found.ratio == Missing(reason=found.reasons[0].sentence)
        assert only(other, measured()).answer == "NOT_COMPARABLE"

    def test_a_repeat_that_failed_leaves_survivors_that_prove_nothing(self):
        died = msgspec.structs.replace(measured(), outcome=Failed(kind="signal", phase="measure", message="killed"))
        died = msgspec.structs.replace(died, records=(a_record(outcome=died.outcome), *died.records))
        assert codes(only(measured(), died)) == ["failed"]

    def test_nothing_in_common(self):
        found = compare([measured()], [measured(spec=RunSpec(workload="unet"))], SIDES)
        assert [(each.what, each.answer, codes(each)) for each in found] == [
            ("resnet", "NOT_COMPARABLE", ["only_in_one"]),
            ("unet", "NOT_COMPARABLE", ["only_in_one"]),
        ]
        assert [each.sentence for each in found] == ["resnet: measured only in old", "unet: measured only in new"]

    def test_nothing_at_all(self):
        assert compare([], [], SIDES) == []


class TestMatching:
    @pytest.mark.parametrize(
        "change",
        [{"budget": Budget(seconds=99)}, {"seed": 7}, {"launcher": "inline"}, {"threads": 4}, {"device": "cpu:0"}],
    )
    def test_the_same_whatever_how_it_was_run(self, change):
        assert len(match_configurations([measured()], [measured(spec=RunSpec(workload="resnet", **change))]).pairs) == 1

    @pytest.mark.parametrize(
        "change",
        [{"options": {"batch": 3}}, {"update": "dp"}, {"arrangement": "ddp"}, {"world_size": 2}, {"device": "cuda"}],
    )
    def test_another_configuration_among_several(self, change):
        others = [measured(spec=RunSpec(workload="resnet", options={"batch": n})) for n in (1, 2)]
        found = match_configurations(
            [measured(), others[0]], [measured(spec=RunSpec(workload="resnet", **change)), others[1]]
        )
        assert (len(found.pairs), len(found.only_baseline), len(found.only_candidate)) == (0, 2, 2)

    def test_the_only_ones_of_a_workload_are_compared_and_it_is_said_what_differs(self):
        changed = measured(spec=RunSpec(workload="resnet", options={"batch": 64}, world_size=2))
        found = only(measured(), changed)
        assert isinstance(found.ratio, Estimate)
        assert "other_configuration" in codes(found)
        assert {"batch none -> 64", "ranks 1 -> 2"} <= set(found.differences)

    def test_a_default_that_was_set_by_hand_is_no_difference(self):
        defaults = {"batch_size": 64, "momentum": 0.5}
        one, two = (RunSpec(workload="w", defaults=defaults, options=own) for own in ({}, {"batch_size": 64}))
        assert one.key() == two.key()
        assert differences(a_record(one), a_record(two)) == ()

    def test_the_order_of_options_is_no_difference_but_their_type_is(self):
        def with_options(**options):
            return measured(spec=RunSpec(workload="resnet", options=options))

        assert match_configurations([with_options(a=1, b=2)], [with_options(b=2, a=1)]).pairs
        assert not are_alike(*(RunSpec(workload="resnet", options={"a": value}) for value in (1, True)))

    def test_threads_meet_their_like_first(self):
        ours = [measured(spec=RunSpec(workload="resnet", threads=n)) for n in (1, 2)]
        theirs = [measured(spec=RunSpec(workload="resnet", threads=n)) for n in (2, 3)]
        pairs = [
            (both.baseline.spec.threads, both.candidate.spec.threads)
            for both in match_configurations(ours, theirs).pairs
        ]
        assert pairs == [(1, 3), (2, 2)]

    def test_names(self):
        spec = RunSpec(workload="resnet", options={"batch": 8}, update="dp", arrangement="ddp", world_size=4)
        assert name_of(spec, "forward") == "resnet batch=8 dp ddp x 4, forward"

    def test_figures_by_name_leave_out_what_is_no_figure(self):
        found = figures_by_name(
            [
                measured(),
                measured(spec=RunSpec(workload="resnet", threads=2)),
                measured(spec=RunSpec(workload="bad"), verdict="INVALID"),
                measured(spec=RunSpec(workload="none"), outcome=Skipped(reason="no room")),
                measured(spec=RunSpec(workload="memory"), kinds={"read": kind(STEADY), "copy": kind(STEADY)}),
            ]
        )
        assert list(found) == ["resnet", "resnet (2)", "memory, read", "memory, copy"]


class TestDifferences:
    def test_of_a_record_with_itself(self):
        assert differences(a_record(), a_record()) == ()

    @pytest.mark.parametrize(
        ("change", "texts"),
        [
            ({"system": a_system(kernel="6.2")}, ["kernel 6.1 -> 6.2"]),
            ({"system": a_system(memory_bytes=16_000_000_000)}, ["memory 8.00 GB -> 16.0 GB"]),
            ({"system": a_system(virtualisation="KVM")}, ["virtualisation none -> KVM"]),
            (
                {"system": a_system(cpu=Cpu(model="Other CPU", logical_cores=4, usable_cores=4))},
                ["cpu Test CPU -> Other CPU", "cores 2 -> 4"],
            ),
            (
                {"system": a_system(accelerators=(Accelerator(kind="cuda", name="GPU", memory_bytes=10**10),))},
                ["accelerators none -> GPU 10.0 GB"],
            ),
            ({"rigdyno_version": "9"}, ["rigdyno 0.1.0 -> 9"]),
            ({"facts": Facts(unit="iteration", settled={"batch": 64})}, ["settled batch none -> 64"]),
        ],
    )
    def test_one_text_each(self, change, texts):
        assert (
            list(differences(a_record(rigdyno_version="0.1.0"), a_record(**{"rigdyno_version": "0.1.0", **change})))
            == texts
        )

    def test_of_the_environment(self):
        one = Environment(
            python="3.11", packages={"torch": "2.12.0", "numpy": "2.0"}, governor="powersave", threads=1,
            rigdyno_git=GitState(commit="a" * 40, dirty=False), load_average=0.1,
        )  # fmt: skip
        two = Environment(
            python="3.12", packages={"torch": "2.13.0"}, governor="performance", threads=2, variables={"OMP_X": "1"},
            rigdyno_git=GitState(commit="a" * 40, dirty=True), load_average=3.0,
        )  # fmt: skip
        assert sorted(differences(a_record(environment=one), a_record(environment=two))) == [
            "OMP_X none -> 1",
            f"commit {'a' * 12} -> {'a' * 12} with changes",
            "governor powersave -> performance",
            "numpy 2.0 -> none",
            "python 3.11 -> 3.12",
            "threads 1 -> 2",
            "torch 2.12.0 -> 2.13.0",
        ]

    def test_of_options(self):
        one = RunSpec(workload="resnet", threads=1)
        two = RunSpec(workload="resnet", threads=2, seed=3, budget=Budget(seconds=60, max_steps=5, stop="clock"))
        found = differences(a_record(one), a_record(two))
        assert found == ("seed 0 -> 3", "budget 10 s -> 1 min", "steps none -> 5", "soak none -> yes", "threads 1 -> 2")
