"""The reports of a duel, and of a suite with its noise."""

from pathlib import Path

import pytest
from golden_files import check_golden, declare

from rigdyno import api, catalogue
from rigdyno.report.text import Page
from rigdyno.schema.record import Failed
from stored_duels import stored_duel, stored_suite

STUCK = Failed(kind="timeout", phase="measure", message="no end after 1 min 30 s")

SLOWER = (0.968, 0.971, 0.969, 0.966, 0.972, 0.968)

MADE = {
    "duel_slower": lambda root: stored_duel(root, SLOWER, planned=10, label="my box"),
    "duel_undecided": lambda root: stored_duel(
        root, (1.05, 0.95, 1.02, 0.99, 1.06), planned=10, outcomes={(5, "b"): STUCK}
    ),
    "suite_with_noise": lambda root: stored_suite(root, (1.01, 0.99, 1.012, 0.988)),
}  # fmt: skip
FORMS = ("terminal", "markdown")
declare(f"{name}.{form}.txt" for name in MADE for form in FORMS)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("form", FORMS)
def test_report_is_unchanged_in_every_format(tmp_path, monkeypatch, name, form):
    monkeypatch.chdir(tmp_path)
    view = api.load(MADE[name](Path("runs"))).view()
    text = catalogue.load("format", form)(view, Page(width=80))
    assert form != "terminal" or max(map(len, text.splitlines())) <= 80
    check_golden(f"{name}.{form}.txt", text)
