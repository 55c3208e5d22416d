"""`rigdyno forecast` from outside, on a published table."""

import json

import jsonschema
import msgspec
import pytest

from driving import rigdyno
from rigdyno.schema.view import View

K80 = """devices,throughput,nodes
1,41.49,1
2,77.65,1
4,154.2,1
8,303.5,1
16,608,2
32,1120,4
"""


@pytest.fixture
def forecast(tmp_path):
    def run(*flags, text=K80):
        (tmp_path / "k80.csv").write_text(text)
        return rigdyno("forecast", "k80.csv", *flags, cwd=tmp_path)

    return run


def rows_of(answer, table=0):
    view = json.loads(answer.stdout)
    jsonschema.validate(view, msgspec.json.schema(View))
    return view, {int(row["entries"]["devices"]["text"]): row for row in view["tables"][table]["rows"]}


def test_foretells_what_was_published(forecast):
    answer = forecast("--devices", "64,128", "--json")
    assert answer.returncode == 0, answer.stderr
    _, rows = rows_of(answer)
    for devices, truth in ((64, 2209), (128, 4231)):
        rate = rows[devices]["entries"]["rate"]
        assert rate["value"] == pytest.approx(truth, rel=0.08)
        assert rate["low"] < truth < rate["high"]
        assert rate["confidence"] == 0.9


def test_measured_and_foretold_rows_are_told_apart_everywhere(forecast):
    _, rows = rows_of(forecast("--json"))
    assert [row["origin"] for row in rows.values()] == ["measured"] * 6 + ["forecast"] * 2
    assert list(rows)[-2:] == [64, 128]
    text = forecast().stdout
    assert max(map(len, text.splitlines())) <= 80
    assert sum(line.endswith("  forecast") for line in text.splitlines()) == 2
    assert "│ the largest that was measured; behind it a forecast" in text
    assert forecast("--format", "csv").stdout.count(",forecast,") >= 2


def test_the_time_and_the_energy_of_a_job(forecast):
    job = ("--images", "1.28e6", "--epochs", "90", "--watts", "300")
    answer = forecast("--devices", "64", *job, "--json")
    hours = 1.28e6 * 90 / rows_of(answer)[1][64]["entries"]["rate"]["value"] / 3600
    entries = rows_of(answer, table=1)[1][64]["entries"]
    assert entries["time"]["text"].startswith(f"{int(hours)} h")
    energy = float(entries["energy"]["text"].split()[0].replace(",", ""))
    assert energy == pytest.approx(0.3 * 64 * hours, rel=0.01)


def test_a_link_that_no_point_has_crossed_is_refused_with_what_to_measure(forecast):
    one_node = "".join(K80.splitlines(keepends=True)[:5])
    answer = forecast(text=one_node)
    assert answer.returncode == 2
    assert "no point has crossed that link. Measure 16 devices on 2 nodes" in answer.stderr
    assert forecast("--devices-per-node", "16", text=one_node).returncode == 0


def test_two_mechanisms_are_said_to_be_two(forecast):
    forward = (164, 195.89, 389.07, 760.66, 1262, 2233, 4323, 8394)
    text = "devices,throughput\n" + "".join(f"{2**i},{rate}\n" for i, rate in enumerate(forward))
    view, rows = rows_of(forecast("--json", text=text))
    assert "not one curve: between 1 and 2 devices" in view["warnings"][0]
    assert min(rows) == 2


def test_further_than_the_intervals_are_known_to_hold_is_said(forecast):
    view, _ = rows_of(forecast("--devices", "64,1024", "--json"))
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
        (("--devices", "0,4"), K80, "--devices must lie between 1 and 1,000,000"),
        (("--watts", "300"), K80, "--watts needs a job to count the energy of; add --images"),
        (("--images", "-1"), K80, "--images must be above zero, not -1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(forecast, flags, text, said):
    answer = forecast(*flags, text=text)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
