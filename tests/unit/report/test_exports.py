"""Exports: literally what the tools behind them read."""

import pytest
from msgspec.structs import replace

from rigdyno import api, catalogue
from rigdyno.schema.metric import STEP_TIME
from rigdyno.schema.record import Failed
from stored_runs import stored_run


def document(name, run):
    return catalogue.load("export", name)(api.load(run).measurements)


def test_github_action_benchmark(tmp_path):
    [entry] = document("github_action_benchmark", stored_run(tmp_path, "new", [20.0, 25.0]))
    assert set(entry) == {"name", "unit", "value", "range", "extra"}
    assert (entry["name"], entry["unit"]) == ("tensor_add variant=as_published", "it/s")
    assert entry["value"] == pytest.approx(1000 / (20 * 25) ** 0.5, rel=1e-3)
    low, high = map(float, entry["range"].split(" to "))
    assert low < entry["value"] < high
    assert "2 processes" in entry["extra"]


def test_only_what_is_better_the_bigger_goes_to_a_tool_that_thinks_so(tmp_path, monkeypatch):
    """Both figures of a step, had a shorter one been called worse."""
    run = stored_run(tmp_path, "new", [20.0, 25.0])
    assert [entry["unit"] for entry in document("github_action_benchmark", run)] == ["it/s"]
    longer_is_better = replace(STEP_TIME, better="higher")
    monkeypatch.setattr("rigdyno.schema.measured.STEP_TIME", longer_is_better)
    assert [entry["unit"] for entry in document("github_action_benchmark", run)] == ["it/s", "s"]


def test_bencher(tmp_path):
    found = document("bencher", stored_run(tmp_path, "new", [20.0, 25.0]))
    assert set(found) == {"tensor_add variant=as_published"}
    [measures] = found.values()
    assert set(measures) == {"throughput", "latency"}
    assert measures["latency"]["value"] == pytest.approx(1e6 * (20 * 25) ** 0.5, rel=1e-3)
    for metric in measures.values():
        assert metric["lower_value"] < metric["value"] < metric["upper_value"]


@pytest.mark.parametrize("name", catalogue.names("export"))
def test_a_failed_run_has_nothing_to_export(name, tmp_path):
    failed = Failed(kind="signal", phase="measure", message="killed by SIGKILL")
    assert len(document(name, stored_run(tmp_path, "new", [20.0, 25.0], outcome=failed))) == 0
