"""All suites as one: carried out, killed and resumed at every point, on a clock that is moved by hand."""

import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from rigdyno import api
from rigdyno.base.errors import DamagedRun, Interrupted, NewerStore, StoreError, UsageError
from rigdyno.commands.run import campaign_exit_code
from rigdyno.features.campaign import run as campaigns
from rigdyno.report.progress import ProgressLines, SilentObserver, Stage
from rigdyno.schema.record import Completed
from rigdyno.store.campaign import CampaignFolder, CampaignHead, find_run, stored_folders
from rigdyno.store.folder import RunFolder
from scripted_campaign import MEASURE, START, Workers, a_cell, a_plan, begun, conduct
from scripted_sessions import Killed
from support import ManualClock, a_stored_run

EVERY_CELL = ["device/01-add", "device/02-add", "scaling/01-add", "scaling/02-add"]


@pytest.fixture
def campaign(tmp_path):
    return begun(tmp_path / "runs", a_plan("device"), a_plan("scaling"))


def again(campaign):
    """Load the campaign as another process does."""
    return api.load_campaign(campaign.folder.path)


def records(campaign):
    return {
        f"{suite}/{record.cell}": type(record.outcome).__name__
        for suite, run in again(campaign).runs.items()
        for record in run.records
    }


def test_it_runs_every_cell_of_every_suite_in_their_order(campaign):
    assert conduct(campaign) == (EVERY_CELL, True)
    assert records(campaign) == dict.fromkeys(EVERY_CELL, "Completed")
    assert campaign_exit_code(campaign) == 0


@pytest.mark.parametrize("with_files", [False, True])
@pytest.mark.parametrize("kill_at", [1, 2, 3, 4])
def test_killed_at_any_cell_it_goes_on_with_what_is_missing(campaign, kill_at, with_files):
    started, ended = conduct(campaign, kill_at=kill_at, with_files=with_files)
    assert (started, ended) == (EVERY_CELL[:kill_at], False)
    assert list(records(campaign)) == EVERY_CELL[: kill_at - 1]
    assert conduct(again(campaign)) == (EVERY_CELL[kill_at - 1 :], True)
    assert records(campaign) == dict.fromkeys(EVERY_CELL, "Completed")
    assert conduct(again(campaign)) == ([], True)


def test_killed_again_and_again_every_cell_is_run_to_its_end_once(campaign):
    started = []
    for _ in range(20):
        now, ended = conduct(again(campaign), kill_at=2)
        started += now[: len(now) if ended else -1]
        if ended:
            break
    assert started == EVERY_CELL


def test_killed_before_its_file_is_written_it_is_no_campaign_and_the_next_one_is_whole(tmp_path, monkeypatch):
    def kill(folder, head):
        raise Killed

    monkeypatch.setattr(CampaignFolder, "write_head", kill)
    with pytest.raises(Killed):
        begun(tmp_path, a_plan("device"))
    monkeypatch.undo()
    assert stored_folders(tmp_path) == []
    assert conduct(begun(tmp_path, a_plan("device")))[1]
    assert len(stored_folders(tmp_path)) == 1


def test_ctrl_c_says_how_to_go_on_with_the_whole(campaign):
    with pytest.raises(Interrupted, match="1 of 2 suites are finished") as caught:
        conduct(campaign, kill_at=4, error=KeyboardInterrupt())
    assert str(caught.value).endswith(f"Go on with: rigdyno run --resume {campaign.folder.path}")
    assert caught.value.exit_code == 130
    assert conduct(again(campaign)) == (["scaling/02-add"], True)


def test_a_suite_that_fails_does_not_take_the_others_along(campaign):
    conduct(campaign, fails=("device/01-add",))
    assert records(campaign)["device/01-add"] == "Failed"
    assert [records(campaign)[name] for name in EVERY_CELL[1:]] == ["Completed"] * 3
    assert campaign_exit_code(again(campaign)) == 1


def test_a_suite_that_cannot_go_on_does_not_take_the_others_along(campaign):
    """Another process holds its lock."""
    with campaign.runs["device"].folder.locked():
        started, _ = conduct(campaign)
    assert started == EVERY_CELL[2:]
    assert "is being run by another rigdyno" in campaign.troubles["device"]
    assert campaign_exit_code(campaign) == 1
    card = campaign.views()[0]
    assert any("is being run by another rigdyno" in warning for warning in card.warnings)


def test_a_damaged_suite_is_named_and_the_others_are_read(campaign):
    conduct(campaign)
    (campaign.runs["device"].path / "head.json").write_text("{")
    found = again(campaign)
    assert list(found.runs) == ["scaling"]
    card, *others = found.views()
    assert len(others) == 1
    assert next(row.status for row in card.tables[0].rows if row.origin == "measured") == "FAILED"
    assert "is not readable JSON" in " ".join(card.warnings)
    assert campaign_exit_code(found) == 1


def test_a_full_disk_ends_it(campaign):
    with pytest.raises(StoreError, match="the disk is full"):
        conduct(campaign, kill_at=2, error=StoreError("can't write x: the disk is full"))


def test_a_second_one_keeps_off(campaign):
    with campaign.folder.locked(), pytest.raises(UsageError, match="is being run by another rigdyno"):
        conduct(again(campaign))


class TestTheTime:
    def test_what_one_suite_takes_too_long_is_taken_from_the_next(self, tmp_path):
        """Its two cells took 24 s instead of 16: of the 8 that are left, 2 are a start each, and 2 are for steps."""
        campaign = begun(tmp_path, a_plan("device"), a_plan("scaling"))
        workers = Workers(ManualClock(), seconds=12.0)
        conduct(campaign, workers=workers)
        assert workers.started == EVERY_CELL[:3]
        [first] = [cell.record.spec.budget.seconds for cell in again(campaign).runs["scaling"].cells]
        assert first == pytest.approx((32 - 24 - 2 * START) / 2)
        assert "scaling: 1 of 2 cells are not finished" in again(campaign).views()[0].warnings

    def test_where_no_time_is_left_a_suite_is_not_begun_and_said_so(self, tmp_path):
        campaign = begun(tmp_path, a_plan("device", cells=1), a_plan("scaling", cells=1))
        workers = Workers(ManualClock(), seconds=40.0)
        conduct(campaign, workers=workers)
        assert workers.started == ["device/01-add"]
        assert campaign.troubles == {"scaling": "no time was left for it"}
        assert campaign_exit_code(campaign) == 1
        assert conduct(again(campaign)) == (["scaling/01-add"], True)

    def test_what_one_leaves_goes_to_the_next(self, tmp_path):
        """Eight seconds for spare processes, of which the first suite used none."""
        spare = {"budget_seconds": 16.0, "spare_seconds": 8.0}
        campaign = begun(tmp_path, a_plan("device", cells=1, **spare), a_plan("scaling", cells=1, **spare))
        workers, within = Workers(ManualClock()), []
        conductor = campaigns.CampaignRunner(campaign, api.carry_out_within, clock=workers.clock)
        conductor.carry_out = lambda folder, head, observer, seconds: (
            within.append(seconds),
            workers.clock.advance(8.0),
        )
        conductor.conduct()
        assert within == [16.0, 24.0]

    def test_resumed_it_has_the_time_of_what_is_left(self, campaign):
        conduct(campaign, kill_at=4)
        within = []
        conductor = campaigns.CampaignRunner(again(campaign), api.carry_out_within, clock=ManualClock())
        conductor.carry_out = lambda folder, head, observer, seconds: within.append(seconds)
        conductor.conduct()
        assert within == [0.0, START + MEASURE]


def test_one_display_counts_through_all_suites(campaign, capsys):
    conduct(campaign, observe=lambda stage: ProgressLines(sys.stderr, stage))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("]")[0] for line in lines] == [
        "[device 1/2", "[device 2/2", "[scaling 1/2", "[scaling 2/2",
    ]  # fmt: skip


def test_stages_know_what_came_before_and_what_is_to_come(campaign):
    stages = []
    conduct(campaign, observe=lambda stage: stages.append(stage) or SilentObserver())
    assert stages == [Stage("device", 0.0, 16.0), Stage("scaling", 16.0, 0.0)]


def test_cells_that_the_plan_refused_are_recorded(tmp_path):
    half = a_plan("scaling", budget_seconds=8.0, cells=1)
    refused = replace(half, cells=(*half.cells, a_cell(2, refusal="not here")))
    campaign = begun(tmp_path, a_plan("device", cells=1), refused)
    conduct(campaign)
    assert records(campaign)["scaling/02-add"] == "Skipped"
    assert campaign_exit_code(campaign) == 0


class TestTheFile:
    def test_a_newer_one_is_refused(self, campaign):
        path = campaign.folder.path / "campaign.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "campaign_version": 99}))
        with pytest.raises(NewerStore, match="newer Rigdyno"):
            again(campaign)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"campaign_version": true}', '{"campaign_version": 1}'])
    def test_a_damaged_one_is_one_line(self, campaign, text):
        (campaign.folder.path / "campaign.json").write_text(text)
        with pytest.raises(DamagedRun):
            again(campaign)

    @pytest.mark.parametrize("name", ["../../elsewhere", "/etc", "..", ".", "a/b", ""])
    def test_it_names_no_folder_but_those_beside_it(self, campaign, name):
        path = campaign.folder.path / "campaign.json"
        document = json.loads(path.read_text())
        document["runs"][0]["run"] = name
        path.write_text(json.dumps(document))
        with pytest.raises(DamagedRun):
            again(campaign)

    def test_it_holds_names_and_no_plans(self, campaign):
        assert set(CampaignHead.__struct_fields__) == set(
            json.loads((campaign.folder.path / "campaign.json").read_text())
        )
        assert (campaign.folder.path / "campaign.json").stat().st_size < 1000

    def test_a_folder_that_cannot_be_written_leaves_nothing(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match=r"a part of that path is a file|a file of that name is in the way"):
            begun(tmp_path / "file", a_plan("device"))

    def test_a_disk_that_fills_up_while_it_is_made_leaves_nothing(self, tmp_path, monkeypatch):
        def full(folder, head):
            raise StoreError("can't write: the disk is full")

        monkeypatch.setattr(RunFolder, "write_head", full)
        with pytest.raises(StoreError):
            begun(tmp_path / "runs", a_plan("device"))
        assert list((tmp_path / "runs").iterdir()) == []


class TestTheStore:
    def test_a_campaign_is_one_among_the_stored_and_its_runs_are_found_by_name(self, campaign):
        root = campaign.folder.path.parent
        single = a_stored_run(root)
        assert [folder.path for folder in stored_folders(root)] == [campaign.folder.path, single]
        run = campaign.runs["device"].path
        assert find_run(root, run.name) == run
        assert find_run(root, campaign.folder.name) == campaign.folder.path
        assert find_run(root, "nothing") == root / "nothing"
        assert find_run(root, "runs/nothing") == Path("runs/nothing")
        assert find_run(root, str(single)) == single

    def test_the_index_has_its_cells(self, campaign):
        from rigdyno.store.index import find

        conduct(campaign)
        entries, warnings = find(campaign.folder.path.parent, suite="device")
        assert warnings == []
        assert [entry.path.name for entry in entries] == ["01-add", "02-add"]
        assert all(Path(entry.path).is_dir() for entry in entries)

    def test_one_of_its_runs_is_an_ordinary_run(self, campaign):
        from rigdyno import api

        conduct(campaign)
        run = api.load(campaign.runs["device"].path)
        assert [type(record.outcome) for record in run.records] == [Completed, Completed]
        with pytest.raises(UsageError, match="is a campaign of several suites; name one of the runs in it"):
            api.load(campaign.folder.path)
