"""Test the exports literally, as the other tools read them."""

import importlib

import pytest
from msgspec.structs import replace

from rigdyno import api
from rigdyno.schema.metric import STEP_TIME
from rigdyno.schema.record import Failed
from stored_runs import stored_run


def document(name, run):
    return importlib.import_module(f"rigdyno.report.exports.{name}").document(api.load(run).measurements)


def test_github_action_benchmark_gets_value_range_and_unit(tmp_path):
    [entry] = document("github_action_benchmark", stored_run(tmp_path, "new", [20.0, 25.0]))
    assert set(entry) == {"name", "unit", "value", "range", "extra"}
    assert (entry["name"], entry["unit"]) == ("tensor_add variant=as_published", "it/s")
    assert entry["value"] == pytest.approx(1000 / (20 * 25) ** 0.5, rel=1e-3)
    low, high = map(float, entry["range"].split(" to "))
    assert low < entry["value"] < high
    assert "2 processes" in entry["extra"]


def test_github_action_benchmark_gets_only_figures_of_which_more_is_better(tmp_path, monkeypatch):
    """The step time would be exported too if longer steps were better."""
    run = stored_run(tmp_path, "new", [20.0, 25.0])
    assert [entry["unit"] for entry in document("github_action_benchmark", run)] == ["it/s"]
    longer_is_better = replace(STEP_TIME, better="higher")
    monkeypatch.setattr("rigdyno.schema.measured.STEP_TIME", longer_is_better)
    assert [entry["unit"] for entry in document("github_action_benchmark", run)] == ["it/s", "s"]


def test_bencher_gets_throughput_and_latency(tmp_path):
    found = document("bencher", stored_run(tmp_path, "new", [20.0, 25.0]))
    assert set(found) == {"tensor_add variant=as_published"}
    [measures] = found.values()
    assert set(measures) == {"throughput", "latency"}
    assert measures["latency"]["value"] == pytest.approx(1e6 * (20 * 25) ** 0.5, rel=1e-3)
    for metric in measures.values():
        assert metric["lower_value"] < metric["value"] < metric["upper_value"]


@pytest.mark.parametrize("name", ["bencher", "github_action_benchmark"])
def test_a_failed_run_has_nothing_to_export(name, tmp_path):
    failed = Failed(kind="signal", phase="measure", message="killed by SIGKILL")
    assert len(document(name, stored_run(tmp_path, "new", [20.0, 25.0], outcome=failed))) == 0
