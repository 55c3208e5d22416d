"""Points from the measurements of stored runs: which count, which are left out, which are refused."""

from __future__ import annotations

import math

import msgspec
import pytest
from scipy import stats

from rigdyno.base.errors import UsageError
from rigdyno.features.forecast.stored_points import StoredRun, points_of_runs
from rigdyno.schema.estimate import Estimate, Reason, Validity
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.record import Completed, Facts, Failed, Skipped
from rigdyno.schema.spec import RunSpec
from support import a_record, with_defaults


def rate(value, n=100):
    return Estimate(
        value=value, low=0.9 * value, high=1.1 * value, confidence=0.95, n=n, unit="image/s", method="by hand"
    )


def measured(ranks, value=None, *, verdict="VALID", outcome=None, unit="image", settled=None, version=1, **changes):
    arrangement = "ddp" if ranks > 1 else "single"
    fields = {"workload": "resnet50", "arrangement": arrangement, "world_size": ranks, "threads": 1}
    spec = with_defaults(RunSpec(**{**fields, **changes}))
    outcome, figure = outcome or Completed(), rate(value or 10.0 * ranks)
    done = isinstance(outcome, Completed)
    facts = Facts(unit=unit, settled=settled or {})
    reasons = () if verdict == "VALID" else (Reason(code="busy", sentence="others were busy"),)
    return Measurement(
        spec=spec,
        records=(a_record(spec, outcome=outcome, facts=facts, benchmark_version=version),),
        outcome=outcome,
        facts=facts,
        kinds={"step": KindFigures(throughput=figure, step_seconds=figure, process_rates=(figure.value,))}
        if done
        else {},
        validity=Validity(verdict=verdict, reasons=reasons) if done else None,
    )


def run(*measurements, name="scaling.1", machine="Test CPU"):
    return StoredRun(name, machine, measurements)


def refused(*runs):
    with pytest.raises(UsageError) as refusal:
        points_of_runs(runs)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


THREE = (measured(1), measured(4), measured(2))


def test_one_rank_alone_and_several_together_are_one_curve():
    given = points_of_runs([run(*THREE)])
    assert [(point.devices, point.throughput, point.nodes) for point in given.points] == [
        (1, 10.0, 1),
        (2, 20.0, 1),
        (4, 40.0, 1),
    ]
    assert given.points[0].estimate == rate(10.0)
    assert (given.source, given.unit, given.remarks) == ("resnet50 in scaling.1", "image", ())


def test_a_curve_may_lie_in_several_runs():
    given = points_of_runs([run(measured(1), name="a"), run(measured(2), name="b"), run(measured(4), name="c")])
    assert [point.devices for point in given.points] == [1, 2, 4]
    assert given.source == "resnet50 in a, b, c"


def test_the_same_size_in_two_runs_is_the_mean_of_their_processes():
    given = points_of_runs([run(*THREE), run(measured(2, 22.0), name="again")])
    logs = [math.log(20.0), math.log(22.0)]
    low, high = stats.t.interval(0.95, 1, loc=sum(logs) / 2, scale=stats.sem(logs))
    pooled = given.points[1].estimate
    assert (pooled.value, pooled.low, pooled.high) == pytest.approx(
        (math.exp(sum(logs) / 2), math.exp(low), math.exp(high)), rel=1e-6
    )
    assert pooled.n == 2


@pytest.mark.parametrize(
    ("changes", "batch"),
    [
        ({}, 32),  # the workload's own default
        ({"options": {"batch_size": 8}}, 8),
        ({"options": {"batch_size": 8}, "settled": {"batch_size": 6}}, 6),
        ({"workload": "tensor_add"}, None),
    ],
)
def test_the_batch_is_what_a_run_says_or_its_workload(changes, batch):
    assert points_of_runs([run(*(measured(ranks, **changes) for ranks in (1, 2, 4)))]).batch == batch


def test_a_default_that_is_set_by_hand_is_no_difference():
    assert len(points_of_runs([run(*THREE, measured(8, options={"batch_size": 32}))]).points) == 4


def test_what_did_not_end_well_is_left_out_and_named():
    failed = Failed(kind="out_of_memory", phase="build", message="no room")
    given = points_of_runs(
        [
            run(
                *THREE,
                measured(8, verdict="INVALID"),
                measured(16, outcome=failed),
                measured(32, outcome=Skipped(reason="too few cards")),
            )
        ]
    )
    assert [point.devices for point in given.points] == [1, 2, 4]
    assert [remark.partition(":")[0] for remark in given.remarks] == ["left out"] * 3
    assert given.remarks[0] == "left out: resnet50 ddp x 8 (INVALID: others were busy)"
    assert "resnet50 ddp x 16 (FAILED: out of memory while in build: no room" in given.remarks[1]
    assert given.remarks[2] == "left out: resnet50 ddp x 32 (SKIPPED: too few cards)"


def test_what_is_suspect_counts_and_is_named():
    given = points_of_runs([run(measured(1), measured(2), measured(4, verdict="SUSPECT"))])
    assert len(given.points) == 3
    assert given.remarks == ("resnet50 ddp x 4 is SUSPECT: others were busy",)


def test_other_workloads_of_a_suite_are_not_its_curve():
    given = points_of_runs([run(*THREE, measured(4, 1e9, workload="memory_bandwidth"))])
    assert [point.throughput for point in given.points] == [10, 20, 40]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (measured(8, options={"batch_size": 64}), "batch_size is 32 and 64"),
        (measured(8, device="cuda:1"), "device is cpu and cuda"),
        (measured(8, update="dp_fast"), "update is plain and dp_fast"),
        (measured(8, arrangement="federated"), "arrangement is ddp and federated"),
        (measured(8, threads=2), "--threads is 1 and 2"),
        (measured(8, threads=None), "--threads is 1 and not set"),
        (measured(8, unit="voxel"), "unit is image and voxel"),
        (measured(8, version=2), "the workload's version is 1 and 2"),
    ],
)
def test_another_configuration_is_refused(other, said):
    assert refused(run(*THREE), run(other, name="b")) == (
        f"these runs are not one curve: {said}; name runs that agree in it"
    )


def test_beside_cards_threads_are_the_framework_s_own_affair():
    cards = [measured(ranks, device="cuda", threads=ranks) for ranks in (1, 2, 4)]
    assert len(points_of_runs([run(*cards)]).points) == 3


def test_another_machine_is_refused():
    said = refused(run(*THREE), run(measured(8), name="b", machine="Other CPU"))
    assert said.endswith("a curve needs one: scaling.1 on Test CPU; b on Other CPU")


def test_two_workloads_with_a_curve_each_are_refused():
    said = refused(run(*THREE, *(measured(ranks, workload="mnist_cnn") for ranks in (1, 2, 4))))
    assert said == "scaling.1 has curves of mnist_cnn and of resnet50; a forecast needs runs of one workload"


class TestTooFewSizes:
    def test_says_what_to_run(self):
        spec = {"options": {"batch_size": 8, "data": "a b"}}
        said = refused(run(measured(1, **spec), measured(4, **spec)))
        assert said == (
            "scaling.1 has only these sizes of resnet50: 1, 4; a forecast needs at least 3: run "
            "`rigdyno run resnet50 --set batch_size=8 --set 'data=a b' --threads 1 --ranks 2`, and name all runs"
        )

    def test_repeats_of_one_size_are_one(self):
        said = refused(run(measured(1)), run(measured(1), name="b"))
        assert "only these sizes of resnet50: 1; " in said
        assert "--ranks 2` and `rigdyno run resnet50 --threads 1 --ranks 4`" in said

    def test_says_what_was_left_out(self):
        said = refused(run(measured(1), measured(2), measured(4, verdict="INVALID")))
        assert "1, 2 (left out: resnet50 ddp x 4 (INVALID: others were busy)); " in said
        assert "--ranks 4`" in said

    def test_nothing_at_all(self):
        assert refused(run()) == "scaling.1 has no workload at 3 sizes; `rigdyno run scaling` measures such a curve"
        assert "no figure of resnet50" in refused(run(measured(1, verdict="INVALID")))


def swept(nodes, verdict="VALID", speed=1.175e7):
    sweep = measured(nodes, workload="allreduce", nodes=nodes, unit="byte", verdict=verdict)
    kinds = {size: KindFigures(throughput=rate(each), step_seconds=rate(1.0)) for size, each in
             (("4.00 kB", speed / 9), ("64.0 MB", speed))}  # fmt: skip
    return msgspec.structs.replace(sweep, kinds=kinds)


def test_what_is_sent_and_what_the_link_carries_come_from_the_runs_too():
    curve = [measured(1), *(measured(ranks, settled={"gradient_bytes": 102_228_128}) for ranks in (2, 4))]
    assert points_of_runs([run(*THREE)]).bytes_per_step is None
    given = points_of_runs([run(*curve), run(swept(2), name="allreduce.1")])
    assert given.bytes_per_step == 102_228_128
    assert given.link_gbit_s == pytest.approx(0.094)
    assert given.measured


@pytest.mark.parametrize("sweep", [swept(1), swept(2, verdict="INVALID")])
def test_a_sweep_that_has_crossed_no_link_or_can_not_be_believed_says_nothing(sweep):
    assert points_of_runs([run(*THREE, sweep)]).link_gbit_s is None
