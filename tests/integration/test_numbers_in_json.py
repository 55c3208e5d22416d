"""Test the JSON of every command: numbers are numbers, with unit and metric."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from driving import here, rigdyno
from numbers_in_views import complaints, reads_as_a_number
from stored_duels import stored_duel, stored_suite
from stored_runs import stored_run
from support import a_stored_run

TESTS = Path(__file__).parents[1]
SCHEMA = json.loads((TESTS.parent / "docs" / "view.schema.json").read_text(encoding="utf-8"))
POINTS = "devices,throughput,nodes\n1,41.49,1\n8,303.5,1\n16,608,2\n"
ONE_NODE = "devices,throughput,nodes\n1,41.49,1\n4,154.2,1\n8,303.5,1\n"


def check_view(answer):
    """Return the view, after checking that it matches its schema and has no complaints."""
    assert answer.returncode == 0, answer.stderr
    view = json.loads(answer.stdout)
    jsonschema.validate(view, SCHEMA)
    assert complaints(view) == []
    return view


@pytest.mark.parametrize(
    "made",
    [
        a_stored_run,
        lambda root: a_stored_run(root, suite="device"),
        lambda root: a_stored_run(root, suite="quick"),
        lambda root: stored_duel(root, (0.968, 0.971, 0.969, 0.966, 0.972, 0.968)),
        lambda root: stored_duel(root, (1.9, 2.1, 2.0, 1.95, 2.05, 2.0)),
        lambda root: stored_suite(root, (1.01, 0.99, 1.012, 0.988)),
    ],
    ids=["workload", "device", "quick", "duel", "duel far apart", "suite with its noise"],
)
def test_reports_of_stored_runs_have_valid_numbers(tmp_path, made):
    view = check_view(here("report", str(made(tmp_path / "runs")), "--format", "json", cwd=tmp_path))
    assert any(row["entries"] for table in view["tables"] for row in table["rows"])


def test_a_sweep_has_numbers_in_its_columns(tmp_path):
    sweep = ("--sweep", "size=64,128", "--set", "variant=corrected", "--steps", "50")
    view = check_view(rigdyno("run", "tensor_add", *sweep, "--json", cwd=tmp_path))
    (table,) = view["tables"]
    assert [row["entries"]["by_size"]["value"] for row in table["rows"]] == [64, 128]
    assert table["columns"][1]["metric"] == {
        "name": "throughput", "unit": "it/s", "better": "higher", "across": "sum",
    }  # fmt: skip


def test_compare_has_valid_numbers(tmp_path):
    one, two = (stored_run(tmp_path, name, [30.0, 30.1, 29.9]) for name in ("one", "two"))
    [comparison] = check_view(here("compare", str(one), str(two), "--json", cwd=tmp_path))["comparisons"]
    assert (comparison["metric"]["unit"], comparison["metric"]["better"]) == ("it/s", "higher")


def test_the_leaderboard_has_valid_numbers(tmp_path):
    stored_run(tmp_path / "runs", "mine", [30.0, 30.1])
    view = check_view(here("leaderboard", "device", "--format", "json", cwd=tmp_path))
    origins = {row["origin"] for table in view["tables"] for row in table["rows"]}
    assert origins == {"measured", "published"}


@pytest.mark.parametrize(
    ("points", "options"),
    [
        (POINTS, ("--images", "1.28e6", "--epochs", "90", "--watts", "300", "--batch", "32")),
        (ONE_NODE, ("--batch", "32", "--bytes-per-step", "102e6", "--link-gbit-s", "10")),
    ],
    ids=["job", "link"],
)
def test_a_forecast_has_valid_numbers(tmp_path, points, options):
    (tmp_path / "points.csv").write_text(points)
    view = check_view(here("forecast", "points.csv", *options, "--json", cwd=tmp_path))
    predicted = [row["entries"] for row in view["tables"][0]["rows"] if row["origin"] == "forecast"]
    for entries in predicted:
        assert entries["efficiency"]["low"] < entries["efficiency"]["value"] < entries["efficiency"]["high"]
        by_link = entries["rate"]["method"].endswith("given link")
        assert entries["rate"]["confidence"] == (None if by_link else 0.9)


def test_the_noise_of_a_suite_is_a_number(tmp_path):
    run = stored_suite(tmp_path / "runs", (1.01, 0.99, 1.012, 0.988))
    noise = check_view(here("report", str(run), "--format", "json", cwd=tmp_path))["noise"]
    assert 0 < noise["figure"]["value"] < 1
    assert noise["figure"]["unit"] == "share"


def test_list_has_no_numbers_as_text(tmp_path):
    items = json.loads(here("list", "--json", cwd=tmp_path).stdout)
    assert not any(reads_as_a_number(value) for item in items for value in item.values() if isinstance(value, str))
