"""The device suite: which cells, and what it makes of hand-made measurements."""

import pytest

from rigdyno.base.errors import DamagedRun
from rigdyno.reference.published import TENSOR_ADD_BYTES, load_tensor_add
from rigdyno.report.text import format_entry
from rigdyno.schema.estimate import Estimate, Missing, Validity
from rigdyno.schema.measured import KindFigures, Measurement, Soak
from rigdyno.schema.record import Completed, Facts, Failed, Skipped
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.system import Accelerator
from rigdyno.schema.view import Published, RatioEntry
from rigdyno.suites.device import DeviceSuite
from rigdyno.suites.quick import QuickSuite
from support import a_record, a_system, suite_cells

VALID = Validity(verdict="VALID")
ITERATION = Facts(unit="iteration", per_item={"byte": float(TENSOR_ADD_BYTES)})


def estimate(value, low=None, high=None, unit="it/s", n=100):
    low, high = (value if low is None else low), (value if high is None else high)
    return Estimate(value=value, low=low, high=high, confidence=0.95, n=n, unit=unit, method="by hand")


def figures(rate):
    return KindFigures(throughput=rate, step_seconds=estimate(1 / rate.value, unit="s"))


def measured(workload, rates, *, device="cpu", facts=None, outcome=None, record=None, soak=None, **options):
    """`rates`: an estimate for each kind of step."""
    spec = RunSpec(workload=workload, options=options, device=device)
    outcome = outcome or Completed()
    return Measurement(
        spec=spec,
        records=(a_record(spec, **{"outcome": outcome, **(record or {})}),),
        outcome=outcome,
        facts=facts or Facts(unit="byte"),
        kinds={kind: figures(rate) for kind, rate in rates.items()},
        validity=VALID if rates else None,
        soak=soak,
    )


def an_add(rate, variant="as_published", **more):
    rates = {"step": rate if isinstance(rate, Estimate) else estimate(rate)}
    return measured("tensor_add", rates, facts=ITERATION, variant=variant, **more)


def a_memory(gigabytes, low=None, high=None):
    scaled = [None if each is None else each * 1e9 for each in (gigabytes, low, high)]
    return measured("memory_bandwidth", {"read_sum": estimate(1e9), "memmove": estimate(*scaled, unit="B/s")})


def entries(table):
    return {row.entries["what"].text: row.entries for row in table.rows}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cells_are_the_limits_once_and_the_variants_three_times(device):
    cells = suite_cells(
        DeviceSuite(),
        device=device,
    )
    assert {cell.spec.device for cell in cells} == {device}
    adds = [cell for cell in cells if cell.spec.workload == "tensor_add"]
    assert [(cell.spec.options, cell.repeat) for cell in adds] == [
        ({"variant": "as_published"}, 3), ({"variant": "as_intended"}, 3), ({"variant": "corrected"}, 3),
    ]  # fmt: skip
    limits = [(cell.spec.workload, cell.spec.options.get("dtype")) for cell in cells if cell not in adds]
    assert limits == [
        ("memory_bandwidth", None), ("host_device_copy", None), ("launch_latency", None), ("matmul_peak", "float32"),
        ("matmul_peak", "bfloat16"), ("matmul_peak", "float16"), ("matmul_peak", "float64"),
    ]  # fmt: skip
    assert [cell.repeat for cell in cells if cell not in adds] == [3, 1, 1, 1, 1, 1, 1]
    assert all(cell.most >= 3 for cell in cells)


def test_a_full_run_measures_five_times_as_long():
    short, full = (
        suite_cells(
            DeviceSuite(),
        ),
        suite_cells(DeviceSuite(), full=True, repeat=7),
    )
    assert [cell.spec.budget.seconds * 5 for cell in short] == [cell.spec.budget.seconds for cell in full]
    assert max(cell.repeat for cell in full) == 7


def test_a_soak_is_one_cell_that_ends_with_the_clock():
    (cell,) = suite_cells(DeviceSuite(), device="cuda", soak_seconds=600)
    assert (cell.spec.options, cell.spec.device) == ({"variant": "as_published"}, "cuda")
    assert (cell.spec.budget.seconds, cell.spec.budget.stop) == (600, "clock")


def test_quick_is_four_cells_of_twenty_seconds():
    cells = suite_cells(
        QuickSuite(),
        device="cuda",
    )
    assert [cell.spec.workload for cell in cells] == ["memory_bandwidth", "matmul_peak", "tensor_add", "tensor_add"]
    assert sum(cell.spec.budget.seconds for cell in cells) == 20
    assert {cell.spec.device for cell in cells} == {"cuda"}
    assert [cell.repeat for cell in suite_cells(QuickSuite(), repeat=2)] == [2] * 4


def test_shares_are_held_against_the_best_kind_of_memory_traffic():
    """30 it/s move 36.24 GB/s; of 40 GB/s that is 0.906; the interval takes the worst of both."""
    adds = DeviceSuite().present([a_memory(40, 39, 42), an_add(estimate(30, 29, 31))]).tables[0]
    entry = entries(adds)["add, as published"]
    assert entry["moved"].value == pytest.approx(36.23878656e9)
    assert entry["moved"].unit == "B/s"
    share = entry["share"]
    assert isinstance(share, RatioEntry)
    assert share.value == pytest.approx(0.905969664)
    assert share.low == pytest.approx(29 * 1.207959552 / 42)
    assert share.high == pytest.approx(31 * 1.207959552 / 39)
    assert entry["n"].value == 100
    assert adds.title == "Tensor add, 12288 x 12288, float32"
    assert adds.notes == ("Bytes counted an iteration: add, as published 1.21 GB",)


def test_a_table_without_a_row_is_left_out():
    assert [table.title for table in DeviceSuite().present([an_add(30)]).tables] == [
        "Tensor add, 12288 x 12288, float32"
    ]
    assert [table.title for table in DeviceSuite().present([a_memory(40)]).tables] == ["This machine's own limits"]


def test_a_figure_that_is_missing_says_why():
    skipped = measured("tensor_add", {}, outcome=Skipped(reason="not folded"), variant="as_published")
    adds = DeviceSuite().present([an_add(30, "corrected"), skipped]).tables[0]
    found = entries(adds)
    assert found["add, as published"]["rate"] == Missing(reason="not folded")
    assert found["add, as published"]["share"] == Missing(reason="not folded")
    assert found["add, corrected"]["share"] == Missing(reason="no valid memory limit was measured in this run")
    assert [row.status for row in adds.rows] == ["VALID", "SKIPPED"]


def test_bytes_that_nobody_counted_are_not_invented():
    bare = measured("tensor_add", {"step": estimate(30)}, facts=Facts(unit="iteration"), variant="corrected")
    adds = DeviceSuite().present([bare]).tables[0]
    assert entries(adds)["add, corrected"]["moved"] == Missing(reason="the bytes of an iteration are not recorded")


@pytest.mark.parametrize("low", [0.0, -5.0])
def test_a_limit_whose_interval_reaches_zero_gives_no_share(low):
    adds = DeviceSuite().present([a_memory(40, low, 90), an_add(30)]).tables[0]
    assert "too uncertain" in entries(adds)["add, as published"]["share"].reason


def test_the_limits_have_their_units():
    launch = measured(
        "launch_latency", {"step": estimate(250_000, 200_000, 500_000, unit="launch/s")}, facts=Facts(unit="launch")
    )
    matmul = measured("matmul_peak", {"1024": estimate(90e9, unit="FLOP/s")}, facts=Facts(unit="flop"), dtype="float32")
    failed = Failed(kind="signal", phase="measure", message="SIGILL: no such instruction")
    crashed = measured("matmul_peak", {}, outcome=failed, dtype="bfloat16")
    limits = DeviceSuite().present([a_memory(40), launch, matmul, crashed]).tables[-1]
    found = entries(limits)
    assert list(found) == [
        "memory, read sum", "memory, memmove", "matrix product, float32", "matrix product, bfloat16", "launch, step",
    ]  # fmt: skip
    assert found["memory, memmove"]["rate"].unit == "B/s"
    assert found["matrix product, float32"]["rate"].unit == "FLOP/s"
    crash = found["matrix product, bfloat16"]["rate"]
    assert isinstance(crash, Missing)
    assert crash.reason.startswith("signal while in measure: SIGILL: no such instruction")
    taken = found["launch, step"]["launch"]
    assert (taken.value, taken.low, taken.high, taken.unit) == (4e-6, 2e-6, 5e-6, "s/launch")
    assert limits.rows[3].status == "FAILED"


@pytest.mark.parametrize("low", [0.0, -1.0])
def test_a_launch_rate_whose_interval_reaches_zero_is_not_turned_over(low):
    launch = measured(
        "launch_latency", {"step": estimate(250_000, low, 500_000, unit="launch/s")}, facts=Facts(unit="launch")
    )
    limits = DeviceSuite().present([launch]).tables[-1]
    assert entries(limits)["launch, step"]["rate"].unit == "launch/s"


@pytest.mark.parametrize(
    ("rate", "sentence"),
    [
        (80, "Number 1 of 5 beside the 4 published CPUs: above Server CPU (74.0 it/s)."),
        (74, "Number 1 of 5 beside the 4 published CPUs: above Server CPU (74.0 it/s)."),
        (30.6, "Number 3 of 5 beside the 4 published CPUs: above AMD Ryzen 5 5600G (25.0 it/s), "
               "below Apple M1 (48.0 it/s)."),
        (3, "Number 5 of 5 beside the 4 published CPUs: below AMD Ryzen 9 3900X (21.0 it/s)."),
    ],
)  # fmt: skip
def test_the_place_among_published_cpus(rate, sentence):
    assert QuickSuite().present([an_add(rate)]).standing == (sentence,)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_the_place_among_published_gpus(device):
    (sentence,) = DeviceSuite().present([an_add(350, device=device)]).standing
    assert sentence == (
        "Number 4 of 7 beside the 6 published GPUs: above NVIDIA RTX 3060 (320 it/s), below NVIDIA RTX 3080 (402 it/s)."
    )


def test_a_numbered_cpu_is_a_cpu():
    assert "published CPUs" in DeviceSuite().present([an_add(30, device="cpu:0")]).standing[0]


def test_what_is_not_ranked_is_said():
    assert "gave no figure" in DeviceSuite().present([an_add(30, "corrected")]).standing[0]
    other = DeviceSuite().present([an_add(900, size=64)]).standing[0]
    assert other == "Not ranked: the published size is 12288, this was 64."


def test_the_closing_words_are_computed():
    """30.6 it/s move 36.96 GB/s, of 40 GB/s 92 %; against 1.8 it/s eagerly 17 times."""
    closing = DeviceSuite().present([a_memory(40), an_add(30.6), an_add(1.8, "as_intended")]).closing
    assert closing[0] == (
        "The published loop moves 37.0 GB/s, 92 % of the 40.0 GB/s that this memory was seen to carry in the same run. "
        "Run as it was meant, making both operands each time, it does 1.80 it/s: 17.0 times fewer, the price of fresh "
        "memory and of filling it."
    )


def test_the_published_summary_is_right_where_its_document_was_not():
    """670 it/s against 74, 48, 25 and 21."""
    summary = DeviceSuite().present([an_add(30)]).closing[-1]
    for part in ("670 it/s", "9.05", "14.0", "26.8", "31.9", "says '6.8 %', which no", "NVIDIA V100"):
        assert part in summary


def test_without_figures_there_is_nothing_to_close_with():
    assert QuickSuite().present([an_add(30, "corrected")]).closing == ()


def test_a_size_that_is_no_number_is_damage():
    with pytest.raises(DamagedRun, match="of the size 'big'"):
        DeviceSuite().present([an_add(30, size="big")])


def boards(measurements):
    cpus, gpus, unknown = DeviceSuite().leaderboard(measurements).tables
    return [[row.entries["device"].text for row in table.rows] for table in (cpus, gpus, unknown)]


PUBLISHED_CPUS = ["Server CPU", "Apple M1", "AMD Ryzen 5 5600G", "AMD Ryzen 9 3900X"]
PUBLISHED_GPUS = [
    "NVIDIA V100", "NVIDIA RTX 3090", "NVIDIA RTX 3080", "NVIDIA RTX 3060", "NVIDIA GTX 1080 Ti",
    "Server GPU (overheated)",
]  # fmt: skip


def test_the_published_rows_are_all_there_and_apart():
    assert boards([]) == [PUBLISHED_CPUS, PUBLISHED_GPUS, ["Tencent Cloud"]]
    assert len(load_tensor_add()) == 11


def test_stored_rows_stand_in_their_place():
    card = a_system(accelerators=(Accelerator(kind="cuda", name="Some GPU"),))
    cpus, gpus, _ = boards(
        [an_add(30.6), an_add(350, device="cuda", record={"system": card}), an_add(1, record={"label": "old box"})]
    )
    assert cpus == [*PUBLISHED_CPUS[:2], "Test CPU", *PUBLISHED_CPUS[2:], "old box"]
    assert gpus == [*PUBLISHED_GPUS[:3], "Some GPU", *PUBLISHED_GPUS[3:]]


def test_only_the_published_loop_at_its_size_is_ranked():
    others = [an_add(30, "corrected"), an_add(30, "as_intended"), an_add(9000, size=64)]
    others += [measured("tensor_add", {}, outcome=Skipped(reason="no"), variant="as_published")]
    assert boards(others) == boards([])


def test_published_rows_are_marked_with_source_and_note():
    board = DeviceSuite().leaderboard([an_add(30.6)])
    origins = {row.entries["device"].text: row.origin for row in board.tables[0].rows}
    assert origins == {**dict.fromkeys(PUBLISHED_CPUS, "published"), "Test CPU": "measured"}
    row = next(row for row in board.tables[0].rows if row.entries["device"].text == "Apple M1")
    assert row.entries["rate"] == Published(value=48, unit="it/s", source="simple-pytorch-benchmark")
    assert row.entries["moved"].value == pytest.approx(57.98e9, rel=1e-3)
    assert format_entry(row.entries["nominal"]) == "85 %"
    mine = next(row for row in board.tables[0].rows if row.origin == "measured")
    assert mine.status == "VALID"
    assert mine.notes == ("measured in test.20260102-030405, torch 2.13.0",)
    assert len(board.standing) == 2


def test_the_rows_that_can_not_be_right_are_named():
    """320 x 1.208 GB = 387 GB/s is more than the RTX 3060's 360; the 3090's 809 is less than its 936."""
    assert [row.device for row in load_tensor_add() if row.doubt] == ["NVIDIA RTX 3060"]
    (closing,) = DeviceSuite().leaderboard([]).closing
    assert "NVIDIA RTX 3060 moves 387 GB/s, more than the 360 GB/s of this memory." in closing
    assert "Server GPU (overheated) is throttled" in closing


def soaked(**changes):
    fields = {"burst": 300.0, "sustained": 55.0, "throttled": True, "seconds": (5.0, 305.0, 605.0)}
    return an_add(60, soak=Soak(**{**fields, "rates": (300.0, 100.0, 55.0), **changes}))


def test_a_soak_shows_what_was_kept():
    shown = DeviceSuite().present([soaked(temperature_c=(40.0, 80.0, 95.0))])
    row = shown.tables[0].rows[0]
    texts = {key: format_entry(entry) for key, entry in row.entries.items()}
    assert texts == {
        "what": "add, as published", "burst": "300 it/s", "sustained": "55.0 it/s", "kept": "18 %", "held": "THROTTLED",
    }  # fmt: skip
    (figure,) = shown.figures
    panels = [(panel.title, panel.y.unit, [each.value for each in panel.series[0].data]) for panel in figure.panels]
    assert panels == [
        ("rate over time", "it/s", [300.0, 100.0, 55.0]), ("temperature", "°C", [40.0, 80.0, 95.0]),
    ]  # fmt: skip
    assert (figure.kind, figure.x.along) == ("timeline", "time")
    assert shown.closing[0].startswith("Throttled: 300 it/s at first, 55.0 it/s at the end of 10 min.")


def test_a_soak_that_held():
    shown = DeviceSuite().present([soaked(sustained=297.0, throttled=False)])
    assert shown.closing == ("No throttling: 300 it/s at first, 297 it/s at the end of 10 min.",)
    assert shown.tables[0].rows[0].entries["held"].text == "yes"


def test_a_soak_that_fell_for_another_reason_is_not_called_throttled():
    shown = DeviceSuite().present([soaked(throttled=False, fell=True)])
    assert shown.closing[0].startswith("Slower at the end: 300 it/s at first, 55.0 it/s at the end of 10 min.")
    assert shown.tables[0].rows[0].entries["held"].text == "no"


def test_a_soak_that_began_with_nothing_is_no_crash():
    shown = DeviceSuite().present([soaked(burst=0.0, throttled=False)])
    assert "kept" not in shown.tables[0].rows[0].entries
