"""The cluster suite: which jobs it wants, and what it makes of their times, accuracies and joules."""

import pytest
from msgspec.structs import replace

from rigdyno.base.errors import BadValue, UnknownName, UsageError
from rigdyno.contracts import Machine
from rigdyno.plan.build import suite_of
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request, from_flags
from rigdyno.plan.resources import Resources
from rigdyno.reference.published import load_cluster_jobs, load_cluster_summary
from rigdyno.schema.estimate import Estimate, Missing, Validity
from rigdyno.schema.measured import EnergyFigures, JobTime, KindFigures, Measurement, NodeUsage, Usage
from rigdyno.schema.record import Completed, Facts, Quality, Skipped
from rigdyno.schema.spec import IDLE, Budget, RunSpec
from rigdyno.schema.view import Number, RatioEntry
from rigdyno.suites.cluster import EPOCH_STEPS, STEPS, ClusterSuite, cluster_sizes
from rigdyno.suites.cluster.words import chance_difference
from rigdyno.workloads.datasets import mnist
from support import a_record, a_system, suite_cells, with_defaults

PLENTY = Resources(available_bytes=10**12)


@pytest.fixture(autouse=True)
def _no_fashion_here(monkeypatch, tmp_path):
    monkeypatch.setattr(mnist, "FASHION_FOLDER", tmp_path / "nowhere")


def cells(**changes):
    options = {key: changes.pop(key) for key in ("devices", "framework") if key in changes}
    return suite_cells(ClusterSuite(**options), **{"most_ranks": 2, **changes})


def test_the_same_job_in_both_frameworks_shared_out_over_ranks_that_have_a_core_each():
    wanted = cells()
    assert [
        (cell.spec.workload, cell.spec.arrangement, cell.spec.launcher, cell.spec.world_size) for cell in wanted
    ] == [
        ("mnist_cnn", "single", "process", 1),
        ("mnist_cnn", "ddp", "torchrun", 2),
        ("mnist_cnn", "horovod", "horovodrun", 2),
        ("mnist_cnn", "horovod_mpi", "horovodrun", 2),
        ("mnist_cnn_tensorflow", "single", "process", 1),
        ("mnist_cnn_tensorflow", "multiworker", "tf_config", 2),
        ("mnist_cnn_tensorflow", "horovod", "horovodrun", 2),
        ("mnist_cnn_tensorflow", "horovod_mpi", "horovodrun", 2),
    ]
    assert [cell.spec.budget.job_steps for cell in wanted] == [STEPS, *[STEPS // 2] * 3] * 2
    assert {cell.spec.threads for cell in wanted} == {1}
    assert all(cell.spec.pinned for cell in wanted)
    assert [cell.spec.options for cell in wanted] == [
        {"learning_rate": 0.01}, *[{"learning_rate": 0.02}] * 3, {"rate_factor": 1.0}, *[{"rate_factor": 2.0}] * 3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("ddp", [("mnist_cnn", "single"), ("mnist_cnn", "ddp")]),
        ("multiworker", [("mnist_cnn_tensorflow", "single"), ("mnist_cnn_tensorflow", "multiworker")]),
        (
            "horovod_mpi",
            [
                ("mnist_cnn", "single"), ("mnist_cnn", "horovod_mpi"),
                ("mnist_cnn_tensorflow", "single"), ("mnist_cnn_tensorflow", "horovod_mpi"),
            ],
        ),
    ],
)  # fmt: skip
def test_one_way_to_share_the_work_can_be_asked_for(asked, expected):
    wanted = cells(arrangement=asked)
    assert [(cell.spec.workload, cell.spec.arrangement) for cell in wanted] == expected


def test_beside_other_suites_each_library_has_its_own_way_alone():
    arrangements = [cell.spec.arrangement for cell in cells(cheap=True)]
    assert arrangements == ["single", "ddp", "single", "multiworker"]


def test_real_images_where_they_are_installed(monkeypatch):
    monkeypatch.setattr(mnist, "find_missing_file", lambda folder: None)
    assert {cell.spec.options["data"] for cell in cells()} == {"fashion"}
    elsewhere = cells(
        nodes=2, ranks=1, most_ranks=1, rendezvous="a:1"
    )  # this machine doesn't know the other node's data
    assert not any("data" in cell.spec.options for cell in elsewhere)


def test_jobs_of_two_lengths_are_two_configurations():
    full = cells(full=True, framework=("pytorch",), arrangement="ddp")
    assert [cell.spec.budget.job_steps for cell in full] == [
        3 * EPOCH_STEPS, 3 * EPOCH_STEPS // 2, 15 * EPOCH_STEPS, 15 * EPOCH_STEPS // 2,
    ]  # fmt: skip
    assert len({cell.spec.key() for cell in full}) == 4


def test_at_full_length_tensorflow_has_its_published_job_too():
    full = cells(full=True, framework=("tensorflow",), devices=(1,))
    published = [cell.spec for cell in full if cell.spec.options.get("variant") == "as_published"]
    assert [spec.budget.job_steps for spec in published] == [300, 3000]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(1, 1), (2, 1)]),
        ({"devices": (1, 2)}, [(1, 1), (2, 1)]),
        ({"most_ranks": 1, "nodes": 8, "devices": (1, 2, 4, 8)}, [(1, 1), (2, 2), (4, 4), (8, 8)]),
        ({"most_ranks": 1, "nodes": 8}, [(1, 1), (2, 2), (3, 3), (4, 4), (8, 8)]),
        ({"ranks": 4, "devices": (4,)}, [(4, 1)]),
        ({"ranks": 2, "nodes": 2, "devices": (4,)}, [(4, 2)]),
    ],
)
def test_a_node_is_filled_before_the_next_one_is_used(changes, expected):
    devices, most = changes.pop("devices", ()), changes.pop("most_ranks", 2)
    machine = Machine(a_system(), "cpu", most)
    assert (
        cluster_sizes(devices, Request(**{"rendezvous": "a:1", **changes} if "nodes" in changes else changes), machine)
        == expected
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": (4,)}, "4 cards are more than 1 node of 2"),
        ({"devices": (3,), "nodes": 2, "rendezvous": "a:1"}, "3 cards can't be shared out evenly over 2 nodes of 2"),
        ({"soak_seconds": 60.0}, "no soak"),
    ],
)
def test_what_does_not_fit_is_one_line(changes, words):
    with pytest.raises(UsageError, match=words):
        cells(**changes)


def test_an_unknown_framework_is_refused():
    with pytest.raises(BadValue, match="framework must be a list, each one of pytorch, tensorflow, not 'pytorhc'"):
        planned(options={"framework": "pytorhc"}, text_keys=("framework",))


def planned(target="cluster", **changes):
    return expand(Request(target=target, **changes), a_system(), "cpu", PLENTY)


def test_the_published_job_can_be_asked_for_alone():
    options = {"variant": "as_published", "framework": ("tensorflow",)}
    found = planned(options=options, repeat=1, arrangement="multiworker")
    jobs = [cell.spec for cell in found.cells if cell.spec.workload != IDLE]
    assert [spec.options for spec in jobs] == [
        {"rate_factor": 1.0, "variant": "as_published"}, {"rate_factor": 2.0, "variant": "as_published"},
    ]  # fmt: skip


def test_the_idle_rig_is_a_part_of_it_with_and_without_a_meter():
    names = [cell.spec.workload for cell in planned(repeat=1).cells]
    assert (names[0], names[-1]) == (IDLE, IDLE)
    assert IDLE not in [cell.spec.workload for cell in planned("scaling").cells]


def test_steps_are_the_jobs():
    assert planned(steps=90, repeat=1).cells[2].spec.budget.job_steps == 45


def test_a_budget_takes_repeats_first_and_then_steps():
    found = {seconds: cells(budget_seconds=seconds) for seconds in (600.0, 90.0, 60.0)}
    first = [cells[0] for cells in found.values()]
    assert [(cell.repeat, cell.spec.budget.job_steps) for cell in first[:2]] == [(3, STEPS), (1, STEPS)]
    short = found[60.0][0]
    assert short.repeat == 1
    assert 40 <= short.spec.budget.job_steps < STEPS
    assert planned(budget_seconds=60.0).seconds <= 60.0
    with pytest.raises(BadValue, match="try a larger --budget"):
        cells(budget_seconds=30.0)
    with pytest.raises(UsageError, match="leave out --budget"):
        cells(budget_seconds=600.0, full=True)


@pytest.mark.parametrize("options", [{"devices": (1, 2)}, {"framework": ("pytorch",)}, {"beside": "runs/x"}])
@pytest.mark.parametrize("target", ["device", "mnist_cnn"])
def test_options_of_the_suite_are_refused_by_other_targets(target, options):
    with pytest.raises(UnknownName, match="no option "):
        planned(target, options=options)


def test_options_are_read_from_the_command_line():
    found = suite_of(from_flags({"target": "cluster", "set": ("devices=4, 1,2,2", "framework=tensorflow, pytorch")}))
    assert found.devices == (4, 1, 2, 2)
    assert found.framework == ("tensorflow", "pytorch")
    for wrong in ("0", "two", "1,-2"):
        with pytest.raises(BadValue, match="devices must be a list, each a whole number of at least 1"):
            suite_of(from_flags({"target": "cluster", "set": (f"devices={wrong}",)}))


def seconds(value):
    return Estimate(value=value, low=value * 0.98, high=value * 1.02, confidence=0.95, n=3, unit="s", method="by hand")


def measured(cards, parts, accuracy=0.95, watts=None, workload="mnist_cnn", **changes):
    """`parts`: start, data, training, communication, evaluation."""
    spec = with_defaults(RunSpec(workload=workload, world_size=cards, budget=Budget(job_steps=600 // cards)))
    start, data, training, communication, evaluation = parts
    quality = Quality(accuracy=accuracy, last_loss=0.31, evaluation_seconds=evaluation)
    facts = Facts(unit="image", settled={"parameters": 21_840}, notes=("synthetic images",))
    rate = Estimate(value=1000.0, n=3, unit="image/s", method="by hand")
    fields = {
        "spec": spec,
        "records": (a_record(spec, facts=facts, run=changes.pop("run", "here")),),
        "outcome": Completed(quality=quality),
        "facts": facts,
        "kinds": {"step": KindFigures(throughput=rate, step_seconds=rate.scaled(0.1, "s"))},
        "validity": Validity(verdict="VALID"),
        "job": JobTime(
            seconds=seconds(sum(parts)), start=start, data=data, training=training, communication=communication,
            evaluation=evaluation, steps=600 // cards, items=38_400.0,
        ),
        "usage": Usage(nodes=(NodeUsage(node=0, seconds=(0.0, 1.0), cpu=(0.5, 0.6)),), cpu=0.55),
        "energy": Missing(reason="no meter here") if watts is None else energy(watts),
    }  # fmt: skip
    return Measurement(**{**fields, **changes})


def energy(watts):
    none = Missing(reason="the idle machine was not measured")
    one = {"n": 1, "method": "one process"}
    return EnergyFigures(
        whole="board",
        source="POM_5V_IN (ina3221)",
        peak_watts=None,
        coverage=1.0,
        joules=Estimate(value=100.0, unit="J", **one),
        watts=Estimate(value=watts, unit="W", **one),
        per_item=Estimate(value=0.1, unit="J/image", **one),
        per_step=none,
        idle_watts=none,
        net_watts=none,
        net_per_item=none,
    )


def by(arrangement, measurement):
    spec = replace(measurement.spec, arrangement=arrangement)
    return replace(measurement, spec=spec, records=tuple(replace(each, spec=spec) for each in measurement.records))


ALONE, PAIR = measured(1, (6.0, 0.5, 9.0, 0.0, 1.0)), measured(2, (9.0, 0.25, 4.6, 0.6, 1.0))


def shown(*found):
    return ClusterSuite().present(found)


def table(presentation, words):
    return next(each for each in presentation.tables if words in each.title)


def side_by_side():
    """The native way, and Horovod's: slower over Gloo, as fast over MPI."""
    gloo = by("horovod", measured(2, (9.0, 0.25, 4.6, 2.6, 1.0)))
    return shown(ALONE, by("ddp", PAIR), gloo, by("horovod_mpi", PAIR))


def test_horovod_stands_beside_the_native_way_against_the_same_one_card():
    rows = table(side_by_side(), "Run time of the job").rows
    assert [(row.entries["library"].text, row.entries["cards"].value) for row in rows] == [
        ("PyTorch", 1), ("PyTorch", 2), ("PyTorch, Horovod (Gloo)", 2), ("PyTorch, Horovod (MPI)", 2),
    ]  # fmt: skip
    assert [row.entries["ideal"].value for row in rows[1:]] == [pytest.approx(16.5 / 2)] * 3
    assert [row.entries["speedup"].value for row in rows[1:]] == [
        pytest.approx(16.5 / 15.45), pytest.approx(16.5 / 17.45), pytest.approx(16.5 / 15.45),
    ]  # fmt: skip


def test_the_split_of_the_time_has_a_row_for_each_way():
    rows = table(side_by_side(), "Where the time of the job goes").rows
    waited = {row.entries["library"].text: row.entries["communication"].value for row in rows[1:]}
    assert waited == {"PyTorch": 0.6, "PyTorch, Horovod (Gloo)": 2.6, "PyTorch, Horovod (MPI)": 0.6}


def test_a_sentence_puts_them_side_by_side_and_names_the_duel():
    [words] = [each for each in side_by_side().closing if "rigdyno duel" in each]
    assert words == (
        "PyTorch, 2 CPU ranks: DistributedDataParallel takes 15 s, 0.6 s of it waiting for gradients, Horovod (Gloo) "
        "takes 17 s, 2.6 s of it waiting for gradients, Horovod (MPI) takes 15 s, 0.6 s of it waiting for gradients. "
        "`rigdyno duel mnist_cnn --ranks 2 --a arrangement=ddp --b arrangement=horovod` tells which step is faster."
    )
    assert not any("rigdyno duel" in each for each in shown(ALONE, PAIR).closing)


def test_what_was_skipped_has_its_row_and_reason_in_the_first_table_alone():
    skipped = replace(by("horovod", PAIR), outcome=Skipped(reason="try make horovod"), job=None, kinds={}, usage=None)
    found = shown(ALONE, by("ddp", PAIR), skipped)
    row = table(found, "Run time of the job").rows[-1]
    assert (row.status, row.entries["seconds"].reason) == ("SKIPPED", "try make horovod")
    assert not any("Horovod" in row.entries["library"].text for each in found.tables[1:] for row in each.rows)


def test_curves_of_horovod_begin_with_the_one_card_that_all_share():
    figures = {figure.key: figure for figure in side_by_side().figures}
    [panel] = figures["run-time-pytorch-horovod-gloo"].panels
    assert [datum.x for datum in panel.series[0].data] == [1, 2]


def test_speedup_and_efficiency_against_one():
    [one, two] = table(shown(ALONE, PAIR), "Run time of the job").rows
    assert one.entries["speedup"] == Number(value=1, unit="x")
    assert "efficiency" not in one.entries
    assert two.entries["ideal"].value == pytest.approx(16.5 / 2)
    assert two.entries["speedup"].value == pytest.approx(16.5 / 15.45)
    assert isinstance(two.entries["efficiency"], RatioEntry)
    assert two.entries["efficiency"].value == pytest.approx(16.5 / 2 / 15.45)
    assert two.entries["efficiency"].low < two.entries["efficiency"].value < two.entries["efficiency"].high


def test_the_gap_is_explained_by_the_part_that_grew_most():
    """Above the ideal: start 9 - 3, data 0, training 0.1, waiting 0.6, evaluation 0.5: 7.2 s in all, 83 % start-up."""
    sentence = next(each for each in shown(ALONE, PAIR).closing if "ideal" in each)
    assert sentence.startswith("PyTorch, 2 CPU ranks: 7.2 s above the ideal of 8.2 s, 83 % of it start-up")
    assert sentence.endswith(f"Without start-up it is {10.5 / 6.45:.2f} times as fast as one.")
    slow_link = measured(2, (3.0, 0.25, 4.5, 8.0, 0.5))
    assert "waiting for the gradients of others" in shown(ALONE, slow_link).closing[0]


def test_the_quickest_stands_for_all():
    found = shown(ALONE, PAIR).headline
    assert (found.what, found.figure.value) == ("a job in PyTorch, 2 CPU ranks", pytest.approx(15.45))
    assert shown().headline is None


def test_without_one_card_there_is_no_ideal():
    found = shown(PAIR)
    [row] = table(found, "Run time of the job").rows
    assert isinstance(row.entries["speedup"], Missing)
    assert not any("ideal" in each for each in found.closing)


def test_whether_the_accuracy_changed_is_tested():
    same = shown(ALONE, measured(2, (9.0, 0.25, 4.6, 0.6, 1.0), accuracy=0.948)).closing
    other = shown(ALONE, measured(2, (9.0, 0.25, 4.6, 0.6, 1.0), accuracy=0.90)).closing
    assert any("the accuracy did not change with their number" in each for each in same)
    assert any("the accuracy changed with their number" in each for each in other)


def test_chance_against_simulation():
    """The largest difference of several accuracies of 10,000 images is beyond it in at most 5 of 100 cases."""
    import numpy as np

    chance = np.random.default_rng(0)
    for among in (2, 4):
        drawn = chance.binomial(10_000, 0.9, (4000, among)) / 10_000
        apart = drawn.max(axis=1) - drawn.min(axis=1)
        beyond = np.mean(
            [far > chance_difference(low, low + far, among) for far, low in zip(apart, drawn.min(axis=1), strict=True)]
        )
        assert 0.002 < beyond < 0.06


def test_power_by_rail_and_device_usage_where_they_can_be_read():
    usage = Usage(nodes=(), cpu=0.5, device=0.45, device_low=0.2, device_high=0.8, burstiness=0.6, interval_seconds=0.5)
    found = table(shown(measured(1, (6, 0.5, 9.0, 0.0, 1.0), watts=6.5, usage=usage)), "Usage and power while")
    [row] = found.rows
    assert [row.entries[key].value for key in ("device", "low", "high", "burstiness", "cpu", "power")] == [
        0.45, 0.2, 0.8, 0.6, 0.5, 6.5,
    ]  # fmt: skip
    assert isinstance(row.entries["net"], Missing)
    assert row.entries["per_image"].value == 0.1


def test_joules_of_many_against_one_and_the_best_numbers():
    found = shown(measured(1, (6, 0.5, 9.0, 0.0, 1.0), watts=6.5), measured(2, (6, 0.25, 4.6, 0.6, 1.0), watts=14.0))
    one, two = table(found, "Energy of the job's steps").rows
    assert one.entries["joules"].value == pytest.approx(6.5 * 9.5)
    assert two.entries["joules"].value == pytest.approx(14.0 * 5.45)
    assert two.entries["ratio"].value == pytest.approx(14.0 * 5.45 / (6.5 * 9.5))
    [words] = [each for each in found.closing if "energy" in each]
    assert "1 take the least energy, 2 take the least time" in words


def test_without_a_meter_there_are_no_joules_and_the_reason_stands_below_the_table():
    found = shown(ALONE, PAIR)
    assert not any("Energy of" in each.title for each in found.tables)
    usage = table(found, "Usage and power while")
    assert "power" not in usage.rows[0].entries
    assert "no power: no meter here" in usage.notes


def test_the_idle_rig_is_a_row_of_the_summary_and_a_figure():
    spec = RunSpec(workload=IDLE)
    idle = measured(1, (1, 0, 1, 0, 0), spec=spec, job=None, records=(a_record(spec, run="here"),))
    found = shown(ALONE, PAIR, idle)
    assert table(found, "Usage and power while").rows[0].entries["library"].text == "idle"
    assert "over-time-idle" in {figure.key for figure in found.figures}


def test_another_run_has_a_table_of_its_own():
    other = measured(1, (2, 0.1, 3, 0, 0.5), run="laptop")
    found = shown(ALONE, PAIR, other)
    assert len(table(found, "Run time of the job").rows) == 2
    [row] = table(found, "Beside it: laptop").rows
    assert row.entries["seconds"].value == pytest.approx(5.6)


def test_published_curves_are_marked_and_in_no_series_of_ours():
    assert len(load_cluster_jobs()) == 4
    figure = next(each for each in shown(ALONE, PAIR).figures if each.key == "run-time-against-one-pytorch")
    assert [(series.name, series.role) for series in figure.series] == [
        ("this cluster", "measured"), ("3 epochs", "published"), ("15 epochs", "published"), ("ideal", "ideal"),
    ]  # fmt: skip
    published = figure.panels[0].series[1]
    assert [(each.x, each.value) for each in published.data[:2]] == [(1, 1.0), (2, pytest.approx(96 / 163))]
    assert published.source == "jetson-nano-clustering"
    assert {row.origin for row in table(shown(ALONE), "Published usage and power").rows} == {"published"}


def test_the_published_table_with_its_idle_rows():
    found = load_cluster_summary()
    assert [(each.framework, each.cards, each.watts) for each in found[:2]] == [("idle", 1, 2.5), ("idle", 8, 20)]
    assert [each.device_usage for each in found] == [(0, 0), None, (0.2, 0.8), (0.3, 0.9), (1, 1), (1, 1)]
    assert [each.spotty for each in found] == [False] * 5 + [True]
    rows = table(shown(ALONE), "Published usage and power").rows
    assert [row.entries["net"].value for row in rows if "net" in row.entries] == [1.5, 16, 4.0, 36]


def test_why_the_published_contrast_compares_two_models_is_said():
    notes = table(shown(ALONE), "Published usage and power").notes
    assert any("compares two models" in note and "1,199,882" in note and "21,840" in note for note in notes)
