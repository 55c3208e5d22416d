"""From stored cells to measurements: kinds, ranks, repeats, outcomes, damaged rows."""

import dataclasses

import msgspec
import numpy as np
import pytest

from rigdyno.analyse.measurements import measurements
from rigdyno.analyse.process import CellData, analyse_process, confirm_throttling, steady_of
from rigdyno.analyse.streams import seconds_since, streams
from rigdyno.analyse.validity.verdict import Finding
from rigdyno.base.errors import DamagedRun
from rigdyno.schema.estimate import Missing
from rigdyno.schema.record import Completed, Facts, Failed, Quality, RunRecord, Skipped
from rigdyno.schema.samples import Header
from rigdyno.schema.spec import Budget, RunSpec
from rigdyno.schema.system import Cpu, Environment, System
from scripted_rows import noisy, step_header, step_rows, telemetry_header, telemetry_rows

SYSTEM = System(
    cpu=Cpu(model="scripted", logical_cores=2, usable_cores=2),
    memory_bytes=8 * 10**9,
    operating_system="Linux",
    kernel="6",
    architecture="x86_64",
)


def record(outcome=None, *, spec=None, cell="cell", **fields):
    return RunRecord(
        rigdyno_version="0",
        run="run",
        cell=cell,
        started_at="2026-01-01T00:00:00Z",
        spec=spec or RunSpec(workload="scripted"),
        system=SYSTEM,
        environment=Environment(python="3.11"),
        **{"facts": Facts(unit="image"), "outcome": outcome or Completed(), **fields},
    )


IMAGES = Facts(unit="image")


def cell(seconds, *, items=1.0, outcome=None, spec=None, facts=IMAGES, **row_fields):
    rows = step_rows(seconds, items=items, **row_fields)
    return CellData(record(outcome, spec=spec, facts=facts), ((step_header(), rows),))


def codes(measurement):
    return [reason.code for reason in measurement.validity.reasons]


class TestOneProcess:
    def test_throughput_and_median_by_hand(self):
        [found] = measurements([cell([0.5, 0.5, 0.5, 0.5, 0.5, 1.0] * 5, items=32)])
        # 32 images a step, 30 steps in 17.5 s
        assert found.throughput().value == pytest.approx(30 * 32 / 17.5)
        assert found.throughput().unit == "image/s"
        assert found.kinds["step"].step_seconds.value == pytest.approx(0.5)
        for figure in (found.throughput(), found.kinds["step"].step_seconds):
            assert "of one process" in figure.method
        assert found.kinds["step"].process_rates == (found.throughput().value,)
        assert found.validity.verdict == "VALID"

    def test_steps_of_different_sizes_are_judged_by_their_rate(self):
        """A volume is cut into 4 x 5 x 6 blocks; the blocks at three of its faces are half as long."""
        shares = [np.where(np.arange(count) == count - 1, 0.5, 1.0) for count in (4, 5, 6)]
        voxels = 1e6 * np.multiply.outer(np.multiply.outer(*shares[:2]), shares[2]).reshape(-1)
        seconds = voxels / 1e6 * noisy(len(voxels), 1.0)
        [found] = measurements([cell(seconds, items=voxels)])
        assert found.validity.verdict == "VALID"
        assert found.throughput().value == pytest.approx(voxels.sum() / seconds.sum())
        [alike] = measurements([cell(seconds, items=1e6)])
        assert "never_settled" in codes(alike)

    def test_a_rate_that_changes_is_found_whatever_the_sizes_are(self):
        voxels = np.random.default_rng(0).choice([1e6, 5e5, 2.5e5], 120)
        slower = np.where(np.arange(120) < 80, 1.0, 1.5)
        [found] = measurements([cell(voxels / 1e6 * slower * noisy(120, 1.0), items=voxels)])
        assert "never_settled" in codes(found)

    def test_steps_without_an_item_are_judged_by_their_time(self):
        [found] = measurements([cell(noisy(100, 0.1), items=np.where(np.arange(100) % 10, 5.0, 0.0))])
        assert found.validity.verdict == "VALID"

    def test_a_row_may_be_a_block_of_short_steps(self):
        [found] = measurements([cell([0.002] * 20, items=100, steps=50)])
        assert found.kinds["step"].step_seconds.value == pytest.approx(0.002 / 50)
        assert found.throughput().value == pytest.approx(100 / 0.002)

    def test_a_count_that_nobody_named_is_of_items_and_steps_are_counted_as_well(self):
        [found] = measurements([cell(noisy(100), items=60, facts=Facts())])
        assert (found.facts.unit, found.throughput().unit) == ("item", "item/s")
        assert found.throughput().value == pytest.approx(6000, rel=0.02)
        steps = found.kinds["step"].steps
        assert (steps.value, steps.unit) == (pytest.approx(100, rel=0.02), "step/s")

    def test_where_nothing_is_counted_a_step_is_a_step(self):
        [found] = measurements([cell([0.002] * 400, items=50, steps=50, facts=Facts())])
        assert (found.facts.unit, found.throughput().unit) == ("step", "step/s")
        assert found.throughput().value == pytest.approx(25_000)

    def test_warm_up_is_left_out(self):
        seconds = noisy(200)
        seconds[:20] = 1.0
        [found] = measurements([cell(seconds)])
        assert found.throughput().value == pytest.approx(100, rel=0.02)
        assert found.throughput().n == 180

    def test_by_how_much_the_first_steps_took_longer(self):
        """Twenty of a second each, where a steady one takes 10 ms; whatever the number of items in a step."""
        items = np.tile([1.0, 3.0], 100)
        seconds = 0.005 * items
        seconds[:20] = 1.0
        [found] = measurements([cell(seconds, items=items)])
        assert found.kinds["step"].warm_up_seconds == pytest.approx(20 - 20 * 0.01)
        [twice] = measurements([cell(seconds, items=items), cell([0.01] * 100)])
        assert twice.kinds["step"].warm_up_seconds == pytest.approx((20 - 20 * 0.01) / 2)

    def test_the_meter_s_own_warm_up_is_left_out_too(self):
        rows = step_rows(noisy(100), warm_up=30)
        assert steady_of(rows).start == 30
        assert seconds_since(rows, 30) == pytest.approx(0.3, rel=0.05)

    def test_a_stream_that_ended_before_its_warm_up(self):
        [found] = measurements([cell([0.2, 0.2, 0.2], warm_up=3)])
        assert found.throughput().value == pytest.approx(5)
        assert codes(found) == ["too_few_steps"]

    def test_one_step(self):
        [found] = measurements([cell([0.5])])
        assert found.throughput().interval is None
        assert found.validity.verdict == "SUSPECT"

    def test_the_quality_is_judged(self):
        [found] = measurements([cell(noisy(50), outcome=Completed(quality=Quality(correct=False)))])
        assert codes(found) == ["wrong_result"]

    def test_telemetry_is_judged(self):
        quiet = cell(noisy(300))
        loud = telemetry_rows(quiet.steps[0][1], steal_share=0.5)
        [found] = measurements([dataclasses.replace(quiet, telemetry=((telemetry_header(), loud),))])
        assert codes(found) == ["other_tenants"]

    def test_a_dead_sampler_is_seen_by_its_exit_code(self):
        quiet = cell(noisy(100))
        died = msgspec.structs.replace(quiet.record, exit_codes={"rank0": 0, "node0": -9})
        [found] = measurements([dataclasses.replace(quiet, record=died)])
        assert codes(found) == ["dead_sampler"]


class TestKinds:
    def test_each_kind_has_its_own_figures(self):
        rows = step_rows(
            np.tile([0.01, 0.02, 0.04], 60), items=np.tile([1.0, 1.0, 2.0], 60), kind=np.tile([0, 1, 2], 60)
        )
        [found] = measurements([CellData(record(), ((step_header("read", "memmove", "in_place_add"), rows),))])
        rates = {kind: figures.throughput.value for kind, figures in found.kinds.items()}
        assert rates == pytest.approx({"read": 100, "memmove": 50, "in_place_add": 50})
        assert found.best_kind == "read"
        assert isinstance(found.throughput("step"), Missing)

    def test_a_kind_that_didn_t_settle_is_named(self):
        seconds = np.ravel(np.column_stack((noisy(200), noisy(200) * np.linspace(1, 2, 200))))
        rows = step_rows(seconds, kind=np.tile([0, 1], 200))
        [found] = measurements([CellData(record(), ((step_header("read", "memmove"), rows),))])
        assert codes(found) == ["never_settled", "imprecise"]
        assert all("memmove steps" in reason.sentence for reason in found.validity.reasons)

    def test_what_is_wrong_with_one_kind_does_not_spoil_the_others(self):
        seconds = np.ravel(np.column_stack((noisy(200), noisy(200) * np.linspace(1, 2, 200))))
        rows = step_rows(seconds, kind=np.tile([0, 1], 200))
        [found] = measurements([CellData(record(), ((step_header("read", "memmove"), rows),))])
        assert (found.status, found.status_of("read"), found.status_of("memmove")) == ("SUSPECT", "VALID", "SUSPECT")


class TestRanks:
    def test_throughputs_are_summed_and_the_slowest_step_counts(self):
        ranks = tuple(
            (step_header(rank=rank), step_rows(noisy(100, seconds, seed=rank), items=8))
            for rank, seconds in enumerate((0.1, 0.2))
        )
        [found] = measurements([CellData(record(), ranks)])
        alone = [measurements([CellData(record(), (rank,))])[0].throughput() for rank in ranks]
        both = found.throughput()
        assert both.value == pytest.approx(sum(rate.value for rate in alone))
        assert both.low == pytest.approx(sum(rate.low for rate in alone))
        assert both.n == 100
        assert "2 ranks" in both.method
        assert found.kinds["step"].step_seconds.value == pytest.approx(0.2, rel=0.02)


class TestRepeats:
    def test_the_interval_is_over_processes(self):
        [found] = measurements([cell([1 / rate] * 20) for rate in (100 / 1.01, 100, 101)])
        rate = found.throughput()
        assert (rate.value, rate.n) == (pytest.approx(100), 3)
        assert rate.high == pytest.approx(100 * 1.01**2.484138, rel=1e-4)
        assert "processes" in rate.method
        assert found.kinds["step"].process_rates == pytest.approx((100 / 1.01, 100, 101))
        assert len(found.records) == 3

    def test_configurations_keep_their_order_and_stay_apart(self):
        one, two = RunSpec(workload="one"), RunSpec(workload="two")
        found = measurements([cell(noisy(20), spec=spec) for spec in (two, one, two)])
        assert [(each.spec.workload, len(each.records)) for each in found] == [("two", 2), ("one", 1)]

    def test_reasons_say_in_how_many_processes(self):
        [found] = measurements([cell(noisy(50, 0.1)), *[cell(noisy(8, 0.1))] * 4])
        assert codes(found) == ["too_few_steps"]
        assert "4 of 5 processes" in found.validity.reasons[0].sentence

    def test_one_unsteady_process_of_three_is_left_to_the_interval_of_their_mean(self):
        drifting = cell(noisy(1000, spread=0.005) * np.linspace(1, 1.06, 1000))
        steady = cell(noisy(1000, spread=0.005))
        assert measurements([drifting, steady])[0].status == "SUSPECT"
        assert measurements([drifting, steady, steady])[0].status == "VALID"
        [found] = measurements([drifting] * 3)
        assert codes(found) == ["drifting"]
        assert "3 of 3 processes" in found.validity.reasons[0].sentence

    def test_wide_intervals_of_single_processes_give_way_to_the_one_over_them(self):
        """Each of them wanders by half; their means agree."""
        wandering = [cell(noisy(60, 0.05, spread=0.8, seed=seed)) for seed in range(4)]
        assert "imprecise" in codes(measurements(wandering[:1])[0])
        assert codes(measurements(wandering)[0]) == []

    def test_one_disturbed_process_of_three_is_said(self):
        loud = cell(noisy(300))
        telemetry = telemetry_rows(loud.steps[0][1], steal_share=0.5)
        loud = dataclasses.replace(loud, telemetry=((telemetry_header(), telemetry),))
        [found] = measurements([loud, cell(noisy(300)), cell(noisy(300)), cell(noisy(300))])
        assert (found.status, codes(found)) == ("INVALID", ["other_tenants"])

    def test_processes_that_differ_too_much(self):
        [found] = measurements([cell(noisy(300, seconds)) for seconds in (0.01, 0.018, 0.0102)])
        assert (found.status, codes(found)) == ("SUSPECT", ["imprecise"])
        assert "the processes differ so much" in found.validity.reasons[0].sentence
        [found] = measurements([cell(noisy(300, seconds)) for seconds in (0.01, 0.0103, 0.0102)])
        assert found.status == "VALID"

    def test_a_failed_process_is_the_outcome_and_the_others_still_count(self):
        failed = Failed(kind="signal", phase="measure", message="killed by SIGKILL")
        [found] = measurements([cell(noisy(50)), CellData(record(failed)), cell(noisy(50))])
        assert found.outcome == failed
        assert found.throughput().n == 2


class TestOutcomes:
    def test_skipped_and_failed_have_no_figures(self):
        skipped, failed = Skipped(reason="no room"), Failed(kind="timeout", phase="build", message="too slow")
        one, two = measurements([CellData(record(skipped)), CellData(record(failed, spec=RunSpec(workload="other")))])
        assert (one.kinds, one.validity, one.throughput()) == ({}, None, Missing(reason="no room"))
        assert two.throughput() == Missing(reason="timeout while in build: too slow")  # no process, no log

    def test_a_soak_that_lost_its_rate_is_suspect_even_where_it_can_not_be_called_throttled(self):
        """Ten seconds are too short to be sure of a loss of a third."""
        soaked = RunSpec(workload="soaked", budget=Budget(seconds=10.0, stop="clock"))
        [found] = measurements([cell([0.05] * 100 + [0.075] * 67, spec=soaked)])
        assert not found.soak.throttled
        assert "slowed_down" in {reason.code for reason in found.validity.reasons}

    def test_a_failed_process_s_steps_are_no_figure(self):
        failed = Failed(kind="signal", phase="measure", message="killed")
        [found] = measurements([cell(noisy(50), outcome=failed)])
        assert found.kinds == {}

    def test_no_cells(self):
        assert measurements([]) == []

    @pytest.mark.parametrize("steps", [(), ((step_header(), step_rows([])),)])
    def test_completed_without_a_step(self, steps):
        [found] = measurements([CellData(record(), steps)])
        assert found.kinds == {}
        assert (found.validity.verdict, codes(found)) == ("INVALID", ["too_few_steps"])


class TestSoak:
    def test_only_for_a_clock_budget(self):
        spec = RunSpec(workload="scripted", budget=Budget(stop="clock"))
        [soaked] = measurements([cell(noisy(300), spec=spec)])
        [plain] = measurements([cell(noisy(300))])
        assert soaked.soak is not None
        assert plain.soak is None

    def test_a_throttled_soak_is_invalid(self):
        spec = RunSpec(workload="scripted", budget=Budget(stop="clock"))
        seconds = np.concatenate((noisy(1650, 1 / 300), noisy(1500, 1 / 55)))
        [found] = measurements([cell(seconds, spec=spec)])
        assert found.soak.throttled
        assert "throttled" in codes(found)
        assert found.validity.verdict == "INVALID"


def spoilt(field, value):
    rows = step_rows(noisy(20))
    rows[field][10] = value
    return rows


class TestDamagedRows:
    @pytest.mark.parametrize(
        "rows",
        [
            spoilt("start_ns", -1),
            spoilt("steps", 0),
            spoilt("items", np.nan),
            spoilt("items", -1),
            spoilt("kind", 7),
            step_rows(noisy(20), items=0.0),
            np.zeros(3, dtype=[("start_ns", "<i8")]),
        ],
    )
    def test_give_a_reason_and_no_figure(self, rows):
        [found] = measurements([CellData(record(), ((step_header(), rows),))])
        assert found.kinds == {}
        assert (found.validity.verdict, codes(found)) == ("INVALID", ["damaged_samples"])

    @pytest.mark.parametrize("rows", [spoilt("end_ns", 0), spoilt("start_ns", 1)])
    def test_time_that_runs_backwards_in_rows_that_are_sound_otherwise(self, rows):
        [found] = measurements([CellData(record(), ((step_header(), rows),))])
        assert found.kinds == {}
        assert (found.validity.verdict, codes(found)) == ("INVALID", ["clock_jumped"])
        assert "backwards" in found.validity.reasons[0].sentence

    def test_the_other_processes_still_count(self):
        damaged = CellData(record(), ((step_header(), spoilt("steps", 0)),))
        [found] = measurements([cell(noisy(50)), damaged, cell(noisy(50))])
        assert found.throughput().n == 2
        assert "1 of 3 processes" in found.validity.reasons[0].sentence

    def test_a_header_without_kinds(self):
        with pytest.raises(DamagedRun):
            streams(Header(fields=step_header().fields, participant=step_header().participant), step_rows([0.1]))

    def test_the_cell_is_named(self):
        found = analyse_process(CellData(record(cell="tensor_add-3"), ((step_header(), spoilt("steps", 0)),)))
        assert "tensor_add-3" in found.findings[0].sentence


class TestKindsThatTakeTurns:
    FELL = Finding("INVALID", "throttled", "throttled: the read steps fell to 30 % of their early rate")
    OTHER = Finding("SUSPECT", "drifting", "the copy steps got slower")

    def test_a_machine_that_is_throttled_slows_all_of_them(self):
        assert confirm_throttling([[self.FELL], [self.FELL, self.OTHER]]) == [[self.FELL], [self.FELL, self.OTHER]]
        assert confirm_throttling([[self.FELL]]) == [[self.FELL]]

    def test_one_that_falls_alone_has_another_reason(self):
        [fell], [other] = confirm_throttling([[self.FELL], [self.OTHER]])
        assert (fell.severity, fell.code) == ("SUSPECT", "slowed_down")
        assert fell.sentence == "the read steps fell to 30 % of their early rate, and other kinds of step didn't"
        assert other == self.OTHER
        assert confirm_throttling([[], []]) == [[], []]
