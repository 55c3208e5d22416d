"""The scaling suite: which cells it wants on which machine, and what it makes of their figures."""

import msgspec
import pytest

from rigdyno.base.errors import UsageError
from rigdyno.plan.resources import most_ranks, sizes, threads_each
from rigdyno.report.text import format_entry
from rigdyno.schema.estimate import Estimate, Number, Validity
from rigdyno.schema.measured import KindFigures, Measurement, Phases
from rigdyno.schema.record import Completed, Facts, Failed
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.system import Accelerator
from rigdyno.schema.view import Estimate as Entry
from rigdyno.schema.view import Missing, RatioEntry
from rigdyno.suites.scaling import SMALL, ScalingSuite
from support import a_record, a_system, suite_cells, with_defaults

CARDS = tuple(Accelerator(kind="rocm", name="a card") for _ in range(4))


def cells(most=2, device="cpu", **changes):
    return suite_cells(ScalingSuite(), device=device, most_ranks=most, **changes)


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (6, [1, 2, 3, 4, 6]), (64, [1, 2, 3, 4, 8, 16, 32, 64])],
)
def test_all_of_the_first_few_then_doublings_then_all(most, expected):
    assert sizes(most) == expected


def test_ranks_have_the_same_threads_whether_alone_or_together():
    system = a_system()
    wanted = cells(most=2)
    assert [cell.spec.world_size for cell in wanted] == [1, 2, 2]
    assert {cell.spec.threads for cell in wanted} == {max(1, system.cpu.usable_cores // 2)}
    assert all(cell.spec.pinned for cell in wanted)
    assert [(cell.spec.workload, cell.spec.arrangement, cell.spec.launcher, cell.repeat) for cell in wanted] == [
        ("resnet50", "single", "process", 3),
        ("resnet50", "ddp", "torchrun", 3),
        ("allreduce", "ddp", "torchrun", 3),
    ]


def test_one_device_has_no_link():
    assert [cell.spec.workload for cell in cells(most=1)] == ["resnet50"]


def test_the_published_size_on_cards_and_at_full_length():
    assert cells()[0].spec.options == SMALL
    assert cells(device="cuda", most=4)[0].spec.options == {}
    full = cells(full=True)[0].spec
    assert full.options == {}
    assert full.budget.max_steps == 500


def test_at_most_as_many_ranks_as_asked_for():
    assert [cell.spec.world_size for cell in cells(most=8, ranks=3)] == [1, 2, 3, 3]


def test_no_soak():
    with pytest.raises(UsageError, match="no soak"):
        cells(soak_seconds=60.0)


def test_room_for_ranks():
    system = a_system()
    assert most_ranks(system, "cpu") == system.cpu.usable_cores
    assert most_ranks(msgspec.structs.replace(system, accelerators=CARDS), "cuda") == 4
    assert threads_each(system, "cuda", 4) is None
    assert threads_each(system, "cpu", 1000) == 1


def rate(value, unit="image/s", spread=0.02):
    low, high = value * (1 - spread), value * (1 + spread)
    return Estimate(value=value, low=low, high=high, confidence=0.95, n=3, unit=unit, method="by hand")


def measured(ranks, value, by_rank=({"forward": 0.2, "backward": 0.6, "optimizer": 0.1},), **changes):
    spec = with_defaults(RunSpec(workload="resnet50", options=dict(SMALL), world_size=ranks, threads=1, pinned=True))
    facts = Facts(unit="image", settled={"gradient_bytes": 102_228_128} if ranks > 1 else {})
    fields = {
        "spec": spec,
        "records": (a_record(spec, facts=facts),),
        "outcome": Completed(),
        "facts": facts,
        "kinds": {"step": KindFigures(throughput=rate(value), step_seconds=rate(1.0, "s"))},
        "phases": Phases(
            forward=rate(4 * value),
            backward=rate(1.4 * value),
            by_rank=dict(enumerate(by_rank)),
            longest_computing=max(sum(each[name] for name in ALONE) for each in by_rank),
            explained=0.999,
        ),
        "validity": Validity(verdict="VALID"),
    }
    return Measurement(**{**fields, **changes})


def swept(value=11_750_000.0):
    spec = RunSpec(workload="allreduce", arrangement="ddp", launcher="torchrun", world_size=2)
    figures = {
        size: KindFigures(throughput=rate(speed, "B/s"), step_seconds=rate(0.01, "s"))
        for size, speed in (("4.00 kB", value / 10), ("64.0 MB", value))
    }
    facts = Facts(unit="byte", notes=("bus bandwidth",))
    record = a_record(spec, facts=facts)
    return Measurement(
        spec=spec,
        records=(record,),
        outcome=Completed(),
        facts=facts,
        kinds=figures,
        validity=Validity(verdict="VALID"),
    )


ALONE = {"forward": 0.2, "backward": 0.6, "optimizer": 0.1}


def rank(**changes):
    return {**ALONE, "broadcast": 0.0, "communication": 0.0, **changes}


def test_the_table_as_published_with_efficiency_beside_it():
    shown = ScalingSuite().present([measured(2, 14.0, [rank(), rank()]), measured(1, 10.0)])
    table = shown.tables[0]
    assert [column.title for column in table.columns] == [
        "nodes", "CPU ranks", "fwd", "bwd", "overall", "speedup", "of ideal",
    ]  # fmt: skip
    assert [row.entries["devices"].value for row in table.rows] == [1, 2]
    speedup, efficiency = table.rows[1].entries["speedup"], table.rows[1].entries["efficiency"]
    assert isinstance(speedup, Entry)
    assert isinstance(efficiency, RatioEntry)
    assert speedup.value == pytest.approx(1.4)
    assert (speedup.low, speedup.high) == pytest.approx((13.72 / 10.2, 14.28 / 9.8))
    assert efficiency.value == pytest.approx(0.7)
    assert "share 2 cores of one machine" in table.notes[0]
    assert "smaller than published" in table.title


def test_one_process_with_several_devices_has_phases_of_its_own():
    spec = with_defaults(
        RunSpec(workload="resnet50", arrangement="data_parallel", world_size=2, device="cuda", launcher="process")
    )
    replicated = rank(scatter=0.05, broadcast=0.3, gather=0.05)
    together = measured(2, 14.0, [replicated], spec=spec, records=(a_record(spec),), facts=Facts(unit="image"))
    alone = measured(1, 10.0, spec=with_defaults(RunSpec(workload="resnet50", device="cuda")))
    shown = ScalingSuite().present([alone, together])
    table, spent, *_ = shown.tables
    assert any(note.startswith("fwd: scatter, broadcast, gather and forward pass") for note in table.notes)
    assert [column.key for column in spent.columns] == [
        "devices", "rank", "scatter", "broadcast", "forward", "gather", "backward", "optimizer",
    ]  # fmt: skip
    assert [row.entries["devices"].value for row in spent.rows] == [1, 2]
    assert "broadcast: all parameters" in spent.notes[0]
    assert "100 % of the loss is sending inputs, parameters and outputs" in shown.closing[0]
    assert shown.closing[0].startswith("2 devices, efficiency")


def test_published_rows_stand_apart_with_their_notes():
    published = ScalingSuite().present([measured(1, 10.0)]).tables[-1]
    assert {row.origin for row in published.rows} == {"published"}
    overall = published.rows[-1].entries["overall"]
    assert (overall.value, overall.unit) == (4231, "image/s")
    assert format_entry(published.rows[-1].entries["efficiency"]) == "80 %"
    assert any("two mechanisms" in note for note in published.notes)


def test_a_size_and_what_an_all_reduce_of_it_takes():
    """Between two ranks a link carries the size once: 4000 bytes at 2000 B/s [1960, 2040]."""
    tables = {table.title: table for table in ScalingSuite().present([measured(1, 10.0), swept(20_000.0)]).tables}
    first, _ = tables["The link between 2 ranks"].rows
    assert first.entries["size"] == Number(value=4000, unit="B")
    takes = first.entries["time"]
    assert (takes.value, takes.low, takes.high) == pytest.approx((2.0, 4000 / 2040, 4000 / 1960))
    assert (takes.unit, takes.confidence) == ("s", 0.95)


def test_where_the_time_goes_by_rank_and_in_the_mean():
    found = [measured(1, 10.0), measured(2, 14.0, [rank(forward=0.2), rank(forward=0.4)])]
    table = next(table for table in ScalingSuite().present(found).tables if table.title.startswith("Where the time"))
    alone, mean, *ranks = [row.entries for row in table.rows]
    assert [entries["devices"].value for entries in (alone, mean, *ranks)] == [1, 2, 2, 2]
    assert "rank" not in alone
    assert (mean["rank"].text, mean["forward"]) == ("mean", Number(value=pytest.approx(0.3), unit="s"))
    assert [(each["rank"].value, each["forward"].value) for each in ranks] == [(0, 0.2), (1, 0.4)]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (
            [rank(communication=0.55), rank(communication=0.55)],
            "2 ranks, efficiency 62 %: gradients 102 MB a step over a link that carries 94.0 Mbit/s; "
            "100 % of the loss is exposed communication.",
        ),
        (
            [rank(communication=1.8), rank(forward=0.6, backward=1.8, optimizer=0.3)],
            "rank 1 computes 200 % longer than the others; ",
        ),
        ([rank(backward=0.9), rank(backward=0.9)], "computing that takes longer beside the others"),
        ([rank(), rank()], "2 ranks, efficiency 100 %: nothing is lost."),
    ],
)
def test_one_sentence_says_why_it_falls_short(ranks, words):
    [sentence] = ScalingSuite().present([measured(1, 10.0), measured(2, 12.0, ranks), swept()]).closing
    assert words in sentence


def test_without_one_rank_alone_there_is_no_speedup_and_no_reason():
    shown = ScalingSuite().present([measured(2, 14.0, [rank(), rank()])])
    assert isinstance(shown.tables[0].rows[0].entries["speedup"], Missing)
    assert shown.closing == ()


def test_a_size_that_failed_keeps_its_row_with_the_reason():
    lost = Failed(kind="signal", phase="measure", message="rank 1 was lost: SIGKILL: killed from outside")
    spec = RunSpec(workload="resnet50", options=dict(SMALL), world_size=2)
    failed = measured(
        2, 1.0, outcome=lost, kinds={}, phases=None, validity=None, records=(a_record(spec, outcome=lost),)
    )
    shown = ScalingSuite().present([measured(1, 10.0), failed])
    row = shown.tables[0].rows[1]
    assert row.status == "FAILED"
    assert "rank 1 was lost" in row.entries["overall"].reason
    assert shown.closing == ()
