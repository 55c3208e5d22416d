"""Test `rigdyno forecast` from outside, on a published table and on stored runs."""

import json

import jsonschema
import msgspec
import pytest

from driving import here
from rigdyno import catalogue
from rigdyno.schema.record import Facts, Skipped
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.view import View
from stored_runs import stored_run
from support import a_system

K80 = """devices,throughput,nodes
1,41.49,1
2,77.65,1
4,154.2,1
8,303.5,1
16,608,2
32,1120,4
"""
ONE_NODE = "".join(K80.splitlines(keepends=True)[:5])
LINK = ("--bytes-per-step", "102e6", "--link-gbit-s", "10")


@pytest.fixture
def forecast(tmp_path):
    def run(*flags, text=K80, **variables):
        (tmp_path / "k80.csv").write_text(text)
        return here("forecast", "k80.csv", *flags, cwd=tmp_path, **variables)

    return run


def read_rows(answer, table=0):
    view = json.loads(answer.stdout)
    jsonschema.validate(view, msgspec.json.schema(View))
    return view, {int(row["entries"]["devices"]["value"]): row for row in view["tables"][table]["rows"]}


def test_the_forecast_covers_the_published_rates(forecast):
    answer = forecast("--devices", "64,128", "--json")
    assert answer.returncode == 0, answer.stderr
    _, rows = read_rows(answer)
    for devices, truth in ((64, 2209), (128, 4231)):
        rate = rows[devices]["entries"]["rate"]
        assert rate["value"] == pytest.approx(truth, rel=0.08)
        assert rate["low"] < truth < rate["high"]
        assert rate["confidence"] == 0.9


def test_measured_and_predicted_rows_are_marked_everywhere(forecast):
    _, rows = read_rows(forecast("--json"))
    assert [row["origin"] for row in rows.values()] == ["measured"] * 6 + ["forecast"] * 2
    assert list(rows)[-2:] == [64, 128]
    text = forecast().stdout
    assert max(map(len, text.splitlines())) <= 80
    assert sum(line.endswith("  forecast") for line in text.splitlines()) == 2
    assert "│ the largest that was measured; behind it a forecast" in text
    assert forecast("--format", "csv").stdout.count(",forecast,") >= 2


def test_time_and_energy_of_a_job_are_shown(forecast):
    job = ("--images", "1.28e6", "--epochs", "90", "--watts", "300")
    answer = forecast("--devices", "64", *job, "--json")
    hours = 1.28e6 * 90 / read_rows(answer)[1][64]["entries"]["rate"]["value"] / 3600
    entries = read_rows(answer, table=1)[1][64]["entries"]
    assert (entries["time"]["value"], entries["time"]["unit"]) == (pytest.approx(3600 * hours), "s")
    assert (entries["energy"]["value"], entries["energy"]["unit"]) == (pytest.approx(0.3 * 64 * hours), "kWh")
    for entry in (entries["time"], entries["energy"]):
        assert entry["low"] < entry["value"] < entry["high"]
    shown = forecast("--devices", "64", *job).stdout
    assert f"{int(hours)} h" in shown
    assert "kWh" in shown


def test_a_link_that_no_point_has_crossed_is_rejected_with_what_to_measure(forecast):
    answer = forecast(text=ONE_NODE)
    assert answer.returncode == 2
    assert "no point has crossed that link. Measure 16 devices on 2 nodes" in answer.stderr
    assert "for a rougher forecast give --batch, --bytes-per-step and --link-gbit-s" in answer.stderr
    assert forecast("--devices-per-node", "16", text=ONE_NODE).returncode == 0


class TestSteps:
    def test_step_time_is_the_batches_of_all_devices_over_the_rate(self, forecast):
        _, rows = read_rows(forecast("--batch", "32", "--json"))
        for devices, row in rows.items():
            rate, step = row["entries"]["rate"], row["entries"]["step"]
            assert step["value"] == pytest.approx(devices * 32 / rate["value"])
            assert (step["unit"], step["low"] is not None) == ("s", row["origin"] == "forecast")
            if row["origin"] == "forecast":
                ends = (devices * 32 / rate["high"], devices * 32 / rate["low"])
                assert (step["low"], step["high"]) == pytest.approx(ends)

    def test_without_a_batch_there_is_no_step_column(self, forecast):
        view, _ = read_rows(forecast("--json"))
        assert "step" not in [column["key"] for column in view["tables"][0]["columns"]]

    def test_the_table_fits_80_columns(self, forecast):
        lines = forecast("--batch", "32", NO_COLOR="1").stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert any(line.split()[:5] == ["1", "41.5", "image/s", "771", "ms"] for line in lines)


class TestLink:
    def test_a_given_link_is_crossed_and_stated(self, forecast):
        view, rows = read_rows(forecast("--batch", "32", *LINK, "--json", text=ONE_NODE))
        assert list(rows)[-2:] == [16, 32]
        assert rows[16]["entries"]["rate"]["method"] == "forecast from the points above and the given link"
        for devices, truth in ((16, 608), (32, 1120)):  # as published
            rate = rows[devices]["entries"]["rate"]
            assert rate["low"] < truth < rate["high"]
        assert view["closing"][-1].startswith("16, 32 devices rest on the given link (102 MB a step at 10 Gbit/s")
        assert "16 devices on 2 nodes would do better" in view["closing"][-1]

    def test_a_slower_link_lowers_only_rates_across_nodes(self, forecast):
        more = ("--batch", "32", "--devices", "16,32", "--devices-per-node", "16", "--json")
        quick, slow = (
            read_rows(forecast(*more, "--bytes-per-step", "102e6", "--link-gbit-s", speed, text=ONE_NODE))[1]
            for speed in ("10", "1")
        )
        assert slow[16]["entries"] == quick[16]["entries"]
        assert slow[32]["entries"]["rate"]["value"] < 0.8 * quick[32]["entries"]["rate"]["value"]

    def test_the_link_is_read_from_columns_and_flags_override_them(self, forecast):
        head, *lines = ONE_NODE.splitlines()
        text = "\n".join([f"{head},bytes_per_step,link_gbit_s", f"{lines[0]},102e6,10", *lines[1:]])
        by_column = forecast("--batch", "32", "--json", text=text)
        assert by_column.stdout == forecast("--batch", "32", *LINK, "--json", text=ONE_NODE).stdout
        view, _ = read_rows(forecast("--batch", "32", "--link-gbit-s", "25", "--json", text=text))
        assert "102 MB a step at 25 Gbit/s" in view["closing"][-1]

    def test_points_across_nodes_override_the_given_link(self, forecast):
        with_link = forecast("--batch", "32", *LINK, "--json")
        assert with_link.stdout == forecast("--batch", "32", "--json").stdout

    @pytest.mark.parametrize(
        ("flags", "text", "said"),
        [
            (("--batch", "32", "--bytes-per-step", "102e6", "--link-gbit-s", "1"), K80, "can't both be right"),
            (LINK, K80, "the given link isn't used: to compare it with the figures, add --batch"),
            (("--batch", "32", *LINK), K80.replace("nodes", "others"), "the number of nodes is unknown"),
        ],
    )
    def test_a_contradictory_or_unused_link_is_a_warning(self, forecast, flags, text, said):
        view, _ = read_rows(forecast(*flags, "--json", text=text))
        assert said in view["warnings"][0]


class TestPlot:
    def test_json_contains_measured_points_and_intervals(self, forecast):
        view, rows = read_rows(forecast("--json"))
        measured, predicted = [series["data"] for series in view["figures"][0]["panels"][0]["series"]]
        assert [each["x"] for each in measured] == [1, 2, 4, 8, 16, 32]
        assert not any("low" in each for each in measured)
        assert [each["x"] for each in predicted] == sorted(each["x"] for each in predicted)
        assert all(each["low"] < each["value"] < each["high"] for each in predicted)
        drawn = {each["x"]: (each["low"], each["value"], each["high"]) for each in predicted}
        for devices in (64, 128):
            rate = rows[devices]["entries"]["rate"]
            assert drawn[devices] == (rate["low"], rate["value"], rate["high"])

    def test_far_sizes_are_drawn_to_the_end(self, forecast):
        [figure] = read_rows(forecast("--devices", "100,1000", "--json"))[0]["figures"]
        assert [series["role"] for series in figure["panels"][0]["series"][1:]] == ["predicted"]
        sizes = [each["x"] for each in figure["panels"][0]["series"][1]["data"]]
        assert sizes[-1] == 1000
        assert len(sizes) < 140

    def test_the_terminal_plot_has_a_sign_for_each_role(self, forecast):
        lines = forecast(NO_COLOR="1").stdout.splitlines()
        assert "          • measured   ◦ forecast   ░ 90 % interval" in lines
        first = next(i for i, line in enumerate(lines) if line.startswith("throughput by"))
        drawn = lines[first + 1 : first + 9]
        assert all(any(sign in line for line in drawn) for sign in "•◦░│")
        assert not any("•" in line.partition("◦")[2] for line in drawn)


@pytest.fixture
def store_scaling_run(tmp_path):
    """Return a function that stores a run: three processes with the given ranks, 8 images per step and rank."""

    def made(ranks, step_ms, name="scaling", head=None, outcome=None, **options):
        spec = RunSpec(
            workload="resnet50",
            options={"batch_size": 8, **options},
            arrangement="ddp" if ranks > 1 else "single",
            world_size=ranks,
            threads=1,
            defaults=catalogue.defaults("workload", "resnet50"),
        )
        times = [step_ms, 1.002 * step_ms, 0.998 * step_ms]
        more = {} if outcome is None else {"outcome": outcome}
        return stored_run(
            tmp_path / "runs", name, times, spec=spec, head=head, items=8.0, facts=Facts(unit="image"), **more
        ).name

    return made


class TestStoredRuns:
    @pytest.fixture
    def three_runs(self, store_scaling_run):
        return [store_scaling_run(1, 100.0), store_scaling_run(2, 104.0), store_scaling_run(4, 110.0)]

    def test_runs_are_points_with_intervals_and_a_known_batch(self, tmp_path, three_runs):
        answer = here("forecast", *three_runs, "--devices-per-node", "16", "--json", cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        view, rows = read_rows(answer)
        assert [row["origin"] for row in rows.values()] == ["measured"] * 3 + ["forecast"] * 2
        assert list(rows) == [1, 2, 4, 8, 16]
        assert rows[4]["entries"]["rate"]["value"] == pytest.approx(4 * 8 / 0.11, rel=0.001)
        assert rows[4]["entries"]["rate"]["low"] < rows[4]["entries"]["rate"]["value"]
        assert rows[4]["entries"]["step"]["value"] == pytest.approx(0.11, rel=0.001)
        assert rows[4]["entries"]["rate"]["unit"] == "image/s"
        assert rows[4]["entries"]["speedup"]["n"] == 1
        assert view["rigs"] == [f"from 3 points of resnet50 in {', '.join(three_runs)}"]
        assert all(row["runs"] == three_runs for row in rows.values())
        assert view["warnings"] == []

    def test_paths_names_and_repetitions_give_the_same_forecast(self, tmp_path, three_runs):
        by_name = here("forecast", *three_runs, "--devices-per-node", "16", "--json", cwd=tmp_path)
        paths = [f"runs/{name}" for name in three_runs]
        by_path = here("forecast", *paths, *three_runs, "--devices-per-node", "16", "--json", cwd=tmp_path)
        assert by_path.stdout == by_name.stdout

    def test_measured_rows_show_their_interval_on_80_columns(self, tmp_path, three_runs):
        text = here("forecast", *three_runs, "--devices-per-node", "16", NO_COLOR="1", cwd=tmp_path).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "95 % interval, geometric mean of 3 processes' throughputs" in text
        assert "90 % interval, forecast from the points above" in text
        assert "\x1b" not in text

    def test_sizes_on_other_nodes_need_a_link(self, tmp_path, three_runs):
        answer = here("forecast", *three_runs, cwd=tmp_path)
        assert answer.returncode == 2
        assert "Measure 8 devices on 2 nodes" in answer.stderr
        answer = here("forecast", *three_runs, *LINK, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        assert "8, 16 devices rest on the given link" in answer.stdout

    def test_a_run_without_figures_is_named(self, tmp_path, three_runs, store_scaling_run):
        skipped = store_scaling_run(8, 120.0, outcome=Skipped(reason="too few cards"))
        view, _ = read_rows(here("forecast", *three_runs, skipped, "--devices-per-node", "16", "--json", cwd=tmp_path))
        assert view["warnings"] == ["left out: resnet50 batch_size=8 ddp x 8 (SKIPPED: too few cards)"]

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"image_size": 64}, "these runs are not one curve: image_size is 224 and 64"),
            ({"head": {"system": a_system(memory_bytes=16_000_000_000)}}, "different machines"),
        ],
    )
    def test_runs_that_are_not_one_curve_are_rejected(self, tmp_path, three_runs, store_scaling_run, changes, said):
        other = store_scaling_run(8, 120.0, name="other", **changes)
        check_one_line(here("forecast", *three_runs, other, cwd=tmp_path), said)

    def test_bad_runs_print_one_line_and_exit_with_2(self, tmp_path, three_runs):
        (tmp_path / "points.csv").write_text(K80)
        for arguments, said in {
            (three_runs[0], "points.csv"): "points.csv is no run folder; give one CSV file, or only run folders",
            (*three_runs, "nowhere"): "nowhere is no run folder",
            ("runs",): "runs is not a run folder: it has no head.json",
            tuple(
                three_runs[:2]
            ): "run `rigdyno run resnet50 --set batch_size=8 --threads 1 --ranks 4`, and name all runs",
            (*three_runs, "--batch", "16"): "--batch says 16, but resnet50 in ",
        }.items():
            check_one_line(here("forecast", *arguments, cwd=tmp_path), said)


def check_one_line(answer, said):
    assert answer.returncode == 2
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_points_of_two_curves_are_a_warning(forecast):
    forward = (164, 195.89, 389.07, 760.66, 1262, 2233, 4323, 8394)
    text = "devices,throughput\n" + "".join(f"{2**i},{rate}\n" for i, rate in enumerate(forward))
    view, rows = read_rows(forecast("--json", text=text))
    assert "not one curve: between 1 and 2 devices" in view["warnings"][0]
    assert min(rows) == 2


def test_sizes_beyond_the_validated_range_are_a_warning(forecast):
    view, _ = read_rows(forecast("--devices", "64,1024", "--json"))
    assert view["warnings"] == [
        "1024 devices are more than 4 times the largest that was measured (32): intervals are only known to hold up to "
        "there"
    ]


@pytest.mark.parametrize(
    ("flags", "text", "said"),
    [
        ((), "devices,throughput\n1,2\n2,4\n", "k80.csv has 2 sizes; a forecast needs at least 3"),
        ((), "devices,throughput\n1,2\n2,x\n", "k80.csv:3: 'throughput' must be a number, not 'x'"),
        (("--devices", "many"), K80, "--devices takes whole numbers, not 'many'; try 16,32,64"),
        (("--devices", "0,4"), K80, "--devices must be between 1 and 1,000,000"),
        (("--watts", "300"), K80, "--watts needs a job to compute the energy of; add --images"),
        (("--images", "-1"), K80, "--images must be above zero, not -1"),
        (("--batch", "0"), K80, "0 is not in the range"),
        (LINK[:2], K80, "says nothing without how quick it is; add --link-gbit-s"),
        (LINK[2:], K80, "says nothing without what goes over it; add --bytes-per-step"),
        (("--link-gbit-s", "nan", *LINK[:2]), K80, "--link-gbit-s must be a number above zero, not nan"),
        (("--bytes-per-step", "-5", *LINK[2:]), K80, "--bytes-per-step must be a number above zero, not -5"),
        (LINK, ONE_NODE, "to use the given link add --batch, the items that one device does in a step"),
        (("--devices-per-node", "4"), K80, "--devices-per-node says 4, but one node of the points holds 8"),
        ((), K80.replace("nodes", "link_gbit_s"), "'link_gbit_s' is 1 and 4; a machine has only one"),
    ],
)
def test_bad_input_prints_one_line_and_exits_with_2(forecast, flags, text, said):
    check_one_line(forecast(*flags, text=text), said)
