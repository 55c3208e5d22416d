"""The privacy suite: which cells it wants, what is protected, and what it makes of their figures."""

import math

import msgspec
import pytest

from numbers_in_views import complaints
from rigdyno.analyse.extrapolation import BETWEEN_PROCESSES
from rigdyno.base.errors import UsageError
from rigdyno.reference.published import load_private_training
from rigdyno.schema.estimate import Estimate, Missing, Number, Validity
from rigdyno.schema.measured import JobTime, KindFigures, Measurement
from rigdyno.schema.record import Completed, Facts, Failed, Quality
from rigdyno.schema.system import Accelerator
from rigdyno.suites.privacy import CHEAP_BYTES, EPOCH, SMALL_BYTES, PrivacySuite, tables
from rigdyno.suites.privacy.systems import SYSTEMS, Protection
from support import a_record, a_system, suite_cells, with_defaults


def cells(device="cpu", options=None, **changes):
    return suite_cells(PrivacySuite(**(options or {})), device=device, **changes)


def named(wanted):
    found = []
    for cell in wanted:
        spec = with_defaults(cell.spec)
        found.append(next((system.name for system in SYSTEMS if system.matches(spec)), spec.workload))
    return found


def test_what_is_protected_follows_from_the_three_answers_as_published():
    published = {(row.system, row.privacy) for row in load_private_training()}
    derived = {(system.published, system.protection.label) for system in SYSTEMS if system.published}
    assert derived == published


@pytest.mark.parametrize(
    ("answers", "label"),
    [((True, False, True), "none"), ((False, True, False), "ok"), ((True, True, False), "incomplete")],
)
def test_one_of_three_is_incomplete(answers, label):
    assert Protection(*answers).label == label


def test_every_system_matches_itself_alone():
    for cell in cells(full=True):
        spec = with_defaults(cell.spec)
        assert sum(system.matches(spec) for system in SYSTEMS) == 1
    ready = [system for system in SYSTEMS if system.awaits is None]
    assert named(cells(full=True)) == [system.name for system in ready]


def test_the_usual_form_is_smaller_and_says_so_by_its_memory():
    usual, cheap, full = cells(), cells(cheap=True), cells(full=True)
    assert set(named(cheap)) < set(named(usual)) < set(named(full))
    assert {cell.spec.largest["batch_size"] for cell in usual} == {SMALL_BYTES}
    assert {cell.spec.largest["batch_size"] for cell in cheap} == {CHEAP_BYTES}
    assert {cell.spec.largest["batch_size"] for cell in full} == {8 * 10**9}
    assert {cell.spec.budget.job_items for cell in full} == {EPOCH}
    assert {cell.spec.budget.job_items for cell in usual} == {None}
    assert cells(memory_bytes=123_456_789)[0].spec.largest == {"batch_size": 123_456_789}


@pytest.mark.parametrize(("size", "expected"), [(16.9, 16), (48, 40), (12, 8)])
def test_a_card_gets_the_documents_size_that_it_has_room_for(size, expected):
    card = Accelerator(kind="cuda", name="a card", memory_bytes=int(size * 1e9))
    system = msgspec.structs.replace(a_system(), accelerators=(card,))
    assert cells(device="cuda", system=system)[0].spec.largest == {"batch_size": expected * 10**9}


def test_both_private_and_plain_share_noise_and_batch_rule():
    private = [cell.spec for cell in cells() if cell.spec.update != "plain"]
    assert {spec.options["update.noise_multiplier"] for spec in private} == {1.0}
    assert {spec.options["norm"] for spec in private} == {"group"}


def test_an_audit_has_a_cell_for_each_private_update():
    audited = [cell.spec for cell in cells(options={"audit": True}) if cell.spec.workload == "dp_audit"]
    assert [spec.options.get("mode", spec.options["update"]) for spec in audited] == [
        "dp_fast", "dp_expanded", "hooks", "functorch",
    ]  # fmt: skip


def test_a_users_own_training(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("def training(batch_size=8):\n    ...\n")
    wanted = cells(options={"workload": f"{file}:training"})
    assert {cell.spec.workload for cell in wanted} == {"own_training"}
    assert [cell.spec.update for cell in wanted].count("plain") == 1
    assert wanted[0].spec.options == {"file": str(file), "function": "training"}
    with pytest.raises(UsageError, match="did you mean 'training'"):
        cells(options={"workload": f"{file}:trainig"})
    with pytest.raises(UsageError, match=r"takes FILE\.py:FUNCTION"):
        cells(options={"workload": "mnist_cnn"})


def test_no_soak():
    with pytest.raises(UsageError, match="no soak"):
        cells(soak_seconds=60.0)


def rate(value, spread=0.02, n=12):
    low, high = value * (1 - spread), value * (1 + spread)
    return Estimate(value=value, low=low, high=high, confidence=0.95, n=n, unit="image/s", method="by hand")


OF_UPDATES = {"update.delta": 1e-5, "update.max_grad_norm": 1.0}


def measured(system, images_per_s, batch=64, quality=None, **changes):
    cell = next(cell for cell in cells(full=True) if system.matches(with_defaults(cell.spec)))
    spec = with_defaults(msgspec.structs.replace(cell.spec, options={**cell.spec.options, "batch_size": batch}))
    if system.update != "plain":
        spec = msgspec.structs.replace(spec, defaults={**spec.defaults, **OF_UPDATES})
    facts = Facts(unit="image", settled={"samples": 50_000}, notes=("synthetic images",))
    seconds = Estimate(value=1.0, n=12, unit="s", method="by hand")
    fields = {
        "spec": spec,
        "records": (a_record(spec, facts=facts, peak_memory_bytes=950_000_000),),
        "outcome": Completed(quality=quality or Quality()),
        "facts": facts,
        "kinds": {"step": KindFigures(throughput=rate(images_per_s), step_seconds=seconds)},
        "validity": Validity(verdict="VALID"),
    }
    return Measurement(**{**fields, **changes})


def by_name(name):
    return next(system for system in SYSTEMS if system.name == name)


FOUND = {
    "PyTorch": (100.0, 200, Quality()),
    "PyTorch, channels last": (250.0, 210, Quality()),
    "Rigdyno's engine": (500.0, 190, Quality(epsilon=0.1, epoch_epsilon=1.25)),
    "Opacus, hooks": (5.0, 2, Quality(epoch_epsilon=0.4)),
}


@pytest.fixture
def presented():
    measurements = [measured(by_name(name), speed, batch, quality) for name, (speed, batch, quality) in FOUND.items()]
    return PrivacySuite().present(measurements)


def rows_of(table):
    return {row.entries["system"].text: row for row in table.rows}


def test_seconds_of_an_epoch_and_the_ratio_to_the_fastest_plain(presented):
    rows = rows_of(presented.tables[0])
    assert rows["PyTorch"].entries["seconds"].value == pytest.approx(500)
    assert rows["Rigdyno's engine"].entries["seconds"].value == pytest.approx(100)
    assert "extrapolated from" in rows["PyTorch"].entries["seconds"].method
    assert rows["PyTorch, channels last"].entries["ratio"] == Number(value=1.0, unit="x")
    ratio = rows["Rigdyno's engine"].entries["ratio"]
    assert ratio.value == pytest.approx(0.5)
    wide = 2 * math.hypot(math.log(1.02 / 0.98) / 2, BETWEEN_PROCESSES)  # of both rows, a process each
    assert (ratio.low, ratio.high) == pytest.approx((0.5 * math.exp(-wide), 0.5 * math.exp(wide)))
    assert rows["Opacus, hooks"].entries["ratio"].value == pytest.approx(50)
    assert (rows["Opacus, hooks"].entries["batch"].value, rows["PyTorch"].entries["batch"].value) == (2, 200)
    assert rows["Rigdyno's engine"].entries["epsilon"] == Number(value=1.25)
    assert "epsilon" not in rows["PyTorch"].entries
    assert rows["PyTorch"].entries["memory"] == Number(value=950_000_000, unit="B")


def test_what_cannot_run_stands_there_with_the_reason(presented):
    rows = rows_of(presented.tables[0])
    assert len(rows) == len(SYSTEMS)
    waiting = rows["Flower, 2 parties, DP"]
    assert (waiting.status, waiting.entries["protected"].text) == ("SKIPPED", "ok")
    assert waiting.entries["seconds"] == Missing(reason="no arrangement for several parties in this version")
    assert "--full" in rows["Opacus, ghost"].entries["seconds"].reason


def test_delta_accountant_and_the_stand_in_are_stated(presented):
    notes = " ".join(presented.tables[0].notes)
    assert "delta 1e-05" in notes
    assert "PLD" in notes
    assert "noise 1.0" in notes
    assert "synthetic images" in notes
    expanded = PrivacySuite().present([measured(by_name("expanded weights"), 20.0)])
    assert any("BastionLab" in note for note in expanded.tables[0].notes)


def test_the_three_published_machines_stand_apart(presented):
    published = presented.tables[1:]
    assert [table.title.partition(",")[0] for table in published] == [
        "Published: AMD EPYC 7763", "Published: NVIDIA V100", "Published: NVIDIA A100",
    ]  # fmt: skip
    assert all(len(table.rows) == 8 for table in published)
    opacus = rows_of(published[0])["PyTorch + Opacus"]
    assert opacus.origin == "published"
    assert opacus.entries["seconds"].value == 6787.58
    assert opacus.entries["ratio"].value == pytest.approx(6787.58 / 374.89)
    doubted = rows_of(published[0])["BastionLab, enclave"]
    assert "doubtful" in doubted.notes[0]
    assert "batch" not in doubted.entries


def test_the_closing_words_come_from_the_figures(presented):
    price, batches, *_, last = presented.closing
    assert (
        "0.50 times the time of the fastest plain training (Rigdyno's engine: 1 min 40 s an epoch, against 3 min 20 s"
        in price
    )
    assert "50.0 times (Opacus, hooks: 2 h 46 min)" in price
    assert "PyTorch, channels last holds a batch of 210, Opacus, hooks one of 2" in batches
    assert "None of the systems measured here protects everything" in last
    assert presented.headline.figure.value == pytest.approx(0.5)


def test_the_figures_are_bars_of_this_rig_and_of_each_published_machine(presented):
    assert [figure.kind for figure in presented.figures] == ["bars"] * 5
    assert presented.figures[0].panels[0].series[0].role == "measured"
    assert {series.role for figure in presented.figures[2:] for series in figure.series} == {"published"}


def test_whole_epochs_are_not_extrapolated():
    seconds = Estimate(value=130.0, n=1, unit="s", method="one process, no interval")
    job = JobTime(
        seconds=seconds, start=20.0, data=10.0, training=100.0, communication=None, evaluation=0.0, steps=250,
        items=50_000,
    )  # fmt: skip
    private = measured(by_name("Rigdyno's engine"), 500.0, job=job, quality=Quality(epsilon=2.0, epoch_epsilon=9.0))
    row = rows_of(PrivacySuite().present([private]).tables[0])["Rigdyno's engine"]
    assert row.entries["seconds"].value == pytest.approx(110)
    assert "the whole job" in row.entries["seconds"].method
    assert row.entries["epsilon"] == Number(value=2.0)


def test_a_failed_system_is_no_ratio_and_spoils_no_other():
    outcome = Failed(kind="out_of_memory", phase="measure", message="no memory")
    failed = measured(by_name("Opacus, hooks"), 1.0, kinds={}, outcome=outcome)
    failed = msgspec.structs.replace(failed, records=(a_record(failed.spec, outcome=outcome),))
    shown = PrivacySuite().present([measured(by_name("PyTorch"), 100.0), failed])
    rows = rows_of(shown.tables[0])
    assert rows["Opacus, hooks"].status == "FAILED"
    assert isinstance(rows["Opacus, hooks"].entries["ratio"], Missing)
    assert rows["PyTorch"].entries["ratio"] == Number(value=1.0, unit="x")


def test_nothing_measured_is_no_table_of_ours():
    shown = PrivacySuite().present([])
    assert all(table.title.startswith("Published") for table in shown.tables)
    assert shown.closing == ()
    assert tables.collect_results([]).rows == ()


def test_a_sweep_compares_like_with_like_and_names_what_differs():
    def of_size(name, speed, size):
        found = measured(by_name(name), speed)
        options = {**found.spec.options, "image_size": size}
        return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, options=options))

    found = [
        of_size(name, speed / size, size)
        for name, speed in (("PyTorch", 3200.0), ("Rigdyno's engine", 6400.0))
        for size in (32, 64)
    ]
    rows = rows_of(PrivacySuite().present(found).tables[0])
    assert rows["Rigdyno's engine, image_size 64"].entries["ratio"].value == pytest.approx(0.5)
    assert rows["PyTorch, image_size 64"].entries["ratio"] == Number(value=1.0, unit="x")


def test_its_numbers_are_numbers(presented):
    document = msgspec.to_builtins(presented)
    assert complaints(document) == []
