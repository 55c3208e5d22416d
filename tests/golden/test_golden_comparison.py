"""The output of `rigdyno compare` for two stored runs."""

from pathlib import Path

import pytest
from golden_files import check_golden, declare

from rigdyno import cli
from rigdyno.schema.record import Facts
from rigdyno.schema.spec import Cell, RunSpec
from rigdyno.schema.system import Environment
from rigdyno.store.folder import RunFolder
from stored_runs import add_cell, stored_run

MATMUL = RunSpec(workload="matmul_peak", options={"form": "float32"})
FORMS = ("terminal", "markdown")
declare(f"comparison.{form}.txt" for form in FORMS)
NEW = Environment(python="3.12", packages={"torch": "2.14.0"}, variables={"OMP_NUM_THREADS": "1"})


@pytest.fixture
def _two_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, factor, unit, more in (("old", 1.0, "flop", {}), ("new", 1.05, "step", {"environment": NEW})):
        path = stored_run(Path("runs"), name, [30 * factor, 30.1 * factor, 29.9 * factor], **more)
        other = Cell(name="09-other", spec=MATMUL)
        add_cell(RunFolder(path), other, 5.0, facts=Facts(unit=unit), **more)


@pytest.mark.usefixtures("_two_runs")
@pytest.mark.parametrize("form", FORMS)
def test_comparison_is_unchanged_in_every_format(form, capsys):
    names = ("old.20260102-030405", "new.20260102-030405")
    assert cli.main(["compare", *names, "--fail-on", "slower=3%", "--format", form]) == 4
    text = capsys.readouterr().out
    assert form != "terminal" or max(map(len, text.splitlines())) <= 80
    check_golden(f"comparison.{form}.txt", text)
