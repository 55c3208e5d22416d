"""Test `rigdyno run all` from outside: real processes of two small suites, killed, resumed and reported."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from driving import cell_folders, ended, here, none_left, rigdyno, started, until
from rigdyno.api import load_campaign
from rigdyno.schema.record import Completed
from rigdyno.schema.spec import Budget, Cell, RunSpec, assign_participants
from rigdyno.store.campaign import stored_folders
from scripted_campaign import a_plan, begun, conduct
from support import a_stored_run

PACKAGE = Path(__file__).parent / "other_framework"  # its steps take milliseconds, and no torch is loaded
# The real suites take a minute at least: these replace them, and keep the helpers that reports need.
SITE = """
import importlib, pkgutil
import rigdyno.suites
for module in pkgutil.iter_modules(rigdyno.suites.__path__):
    if module.name.startswith("_"):
        importlib.import_module(f"rigdyno.suites.{module.name}")
rigdyno.suites.__path__ = [SUITES]
"""
SUITE = '''
"""A suite of a test."""
from dataclasses import dataclass
from msgspec.structs import replace
from rigdyno.contracts import Suite, Wanted
from rigdyno.report import generic
from rigdyno.schema.spec import Budget, RunSpec

@dataclass(frozen=True, kw_only=True)
class Made(Suite):
    """A suite with little to do, for a test"""
    excerpt = EXCERPT
    def cells(self, request, machine):
        assert request.cheap
        spec = RunSpec(workload="made_up_steps", device=machine.device, budget=Budget(seconds=1.0, stop="clock"))
        return [Wanted(replace(spec, threads=number)) for number in CELLS]
    def present(self, measurements):
        return generic.presentation(measurements)
'''


@pytest.fixture
def site(tmp_path):
    suites = tmp_path / "suites"
    suites.mkdir()
    texts = {"early": ("False", "(1, 2)"), "late": ("False", "(3,)"), "short": ("True", "(4,)")}
    for name, (excerpt, cells) in texts.items():
        (suites / f"{name}.py").write_text(SUITE.replace("EXCERPT", excerpt).replace("CELLS", cells))
    (suites / "unable.py").write_text(SUITE.replace("EXCERPT", "False").replace("CELLS", "()"))
    (tmp_path / "sitecustomize.py").write_text(SITE.replace("SUITES", repr(str(suites))))
    source = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), str(PACKAGE), source)))}


def test_a_killed_campaign_is_resumed_and_reported(site, tmp_path):
    command = ("run", "all", "--device", "dream", "--budget", "9s")
    planned = rigdyno(*command, "--dry-run", cwd=tmp_path, **site)
    assert planned.returncode == 0, planned.stderr
    assert "Plan: 2 suites in 9.0 s (--budget)" in planned.stdout
    assert "not run: unable: it has nothing to run" in planned.stdout
    assert "short" not in planned.stdout
    assert not (tmp_path / "runs").exists()

    (tmp_path / "hold").touch()
    process = started(*command, cwd=tmp_path, **site)
    until(lambda: any((tmp_path / "runs").glob("all.*/*/cells/02-*/rank0/steps.rows")), "the second cell was stepping")
    process.kill()
    ended(process)
    (tmp_path / "hold").unlink()
    [folder] = stored_folders(tmp_path / "runs")
    for cell in cell_folders(folder.path):
        none_left(cell)

    resumed = rigdyno("run", "--resume", str(folder.path), "--html", "page.html", cwd=tmp_path, **site)
    assert resumed.returncode == 0, resumed.stderr
    assert [line.partition("]")[0] for line in resumed.stderr.splitlines()] == ["[early 2/2", "[late 1/1"]
    assert "Every suite in a line" in resumed.stdout
    assert f"rigdynoshare{folder.path}" in "".join(resumed.stdout.split())
    assert "<title" in (tmp_path / "page.html").read_text(encoding="utf-8")
    outcomes = [record.outcome for run in load_campaign(folder.path).runs.values() for record in run.records]
    assert all(isinstance(outcome, Completed) for outcome in outcomes)
    assert len(outcomes) == 3

    exported = rigdyno("export", "--to", "sqlite", "--out", "all.db", cwd=tmp_path, **site)
    assert exported.returncode == 0, exported.stderr
    with closing(sqlite3.connect(tmp_path / "all.db")) as database:
        assert database.execute("select count(*) from runs").fetchone() == (2,)
        assert database.execute("select count(*) from steps").fetchone()[0] > 10


class TestWithStoredCampaigns:
    """Commands that only read a campaign, which scripted processes have written."""

    @pytest.fixture
    def campaign(self, tmp_path):
        found = begun(tmp_path / "runs", a_plan("device"), a_plan("scaling"), left_out=[("privacy", "no opacus")])
        conduct(found)
        return found

    def test_report_starts_with_the_card_and_contains_every_suite(self, campaign, tmp_path):
        done = here("report", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("All suites\n")
        assert "no opacus" in done.stdout
        titles = [view["title"] for view in json.loads(here("report", "--format", "json", cwd=tmp_path).stdout)]
        assert titles[0] == "All suites"
        assert len(titles) == 3
        assert "6.1" in here("report", "--column", "kernel", cwd=tmp_path).stdout
        header, *lines = here("report", "--format", "csv", cwd=tmp_path).stdout.splitlines()
        assert header.startswith("run,table,row")
        assert lines

    def test_show_prints_the_details_of_each_suite(self, campaign, tmp_path):
        done = here("show", campaign.folder.name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("The machine and its environment") == 2

    def test_a_run_of_a_campaign_is_found_by_its_name(self, campaign, tmp_path):
        done = here("report", campaign.runs["device"].folder.name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("device: ")

    def test_clean_keeps_or_deletes_a_campaign_as_a_whole(self, campaign, tmp_path):
        begun(tmp_path / "runs", a_plan("device"))
        with begun(tmp_path / "runs", a_plan("device")).folder.locked():
            done = here("clean", "--yes", cwd=tmp_path)
        assert done.stdout.endswith("deleted 1 run\n")
        assert len(stored_folders(tmp_path / "runs")) == 2
        assert list(load_campaign(campaign.folder.path).runs) == ["device", "scaling"]
        here("clean", "--all", "--yes", cwd=tmp_path)
        assert stored_folders(tmp_path / "runs") == []

    def test_clean_keeps_a_campaign_with_an_active_run(self, campaign, tmp_path):
        with campaign.runs["device"].folder.locked():
            assert here("clean", "--all", "--yes", cwd=tmp_path).stdout == "nothing to delete\n"

    def test_two_campaigns_are_compared_suite_by_suite(self, campaign, tmp_path):
        other = begun(tmp_path / "runs", a_plan("scaling"))
        conduct(other)
        done = here("compare", str(campaign.folder.path), str(other.folder.path), cwd=tmp_path)
        assert done.stdout.startswith("Two stored runs\n")
        assert f"baseline: {campaign.folder.name}: scaling." in " ".join(done.stdout.split())
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("tensor_add") >= 2

    def test_a_campaign_and_a_run_without_a_common_suite_are_not_compared(self, campaign, tmp_path):
        done = here("compare", campaign.folder.name, str(a_stored_run(tmp_path / "runs")), cwd=tmp_path)
        assert done.returncode == 2
        assert "have no suite in common" in done.stderr

    def test_resume_continues_after_a_suite_that_can_no_longer_run(self, tmp_path):
        gone = RunSpec(workload="no_longer_there", budget=Budget(seconds=1.0))
        cells = (Cell(name="01-gone", spec=gone, seconds=2.0, participants=assign_participants(1, 1, "cpu")),)
        campaign = begun(tmp_path / "runs", a_plan("device"), a_plan("scaling", cells=1))
        conduct(campaign)
        run = campaign.runs["scaling"]
        run.folder.write_head(replace(run.head, plan=replace(run.head.plan, cells=cells)))
        done = here("run", "--resume", str(campaign.folder.path), cwd=tmp_path)
        assert done.returncode == 1
        assert "scaling: no workload named 'no_longer_there'" in " ".join(done.stdout.split())
        assert "device " in done.stdout

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_share_writes_a_png(self, campaign, tmp_path, theme):
        pytest.importorskip("vl_convert")
        done = here("share", "--out", "card.png", "--theme", theme, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "Wrote card.png.\n")
        picture = (tmp_path / "card.png").read_bytes()
        assert (int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")) == (1200, 630)

    def test_png_needs_the_extra_and_svg_does_not(self, campaign, tmp_path, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        done = here("share", "--out", "card.png", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "pip install 'rigdyno[figures]'" in done.stderr
        assert here("share", "--out", "card.svg", cwd=tmp_path).returncode == 0

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("share", "--out", "card.gif"), "takes a .png or an .svg file"),
            (("share", "nothing", "--out", "card.svg"), "no run folder at"),
            (("share", "--out", "missing/card.svg"), "can't write missing/card.svg"),
            (("run", "all", "--set", "size=4"), "--set is not for all suites at once"),
            (("run", "all", "--budget", "1s"), "a budget of 1.0 s is too short"),
            (("run", "--resume", "CAMPAIGN", "--budget", "1m"), "leave out --budget"),
            (("run", "--resume", "CAMPAIGN", "--dry-run"), "--dry-run shows a new plan"),
            (("forecast", "CAMPAIGN"), "name one of the runs in it"),
        ],
    )
    def test_wrong_use_prints_one_line_and_exits_with_2(self, campaign, tmp_path, arguments, words):
        given = [str(campaign.folder.path) if word == "CAMPAIGN" else word for word in arguments]
        done = here(*given, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert words in done.stderr

    def test_a_hostile_label_stays_text_everywhere(self, tmp_path):
        label = "<img src=x onerror=alert(1)> [bold]x[/bold] | \\"
        plan = a_plan("device", label=label)
        conduct(begun(tmp_path / "runs", plan, label=label))
        assert "<img src=x" in here("report", cwd=tmp_path).stdout
        here("report", "--html", "page.html", cwd=tmp_path)
        assert "<img src=x" not in (tmp_path / "page.html").read_text(encoding="utf-8")
        here("share", "--out", "card.svg", cwd=tmp_path)
        assert "<img" not in (tmp_path / "card.svg").read_text(encoding="utf-8")


def test_python_run_rejects_all():
    from rigdyno import run
    from rigdyno.base.errors import UsageError

    with pytest.raises(UsageError, match="`rigdyno run all`"):
        run("all")
