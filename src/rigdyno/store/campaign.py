"""Campaign folders: several suites that were run as one.

A campaign's folder holds one run folder for each suite, and a file that lists them and the suites that were left out.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from rigdyno.base.errors import DamagedRun, NewerStore, UsageError
from rigdyno.base.files import decode_json, read_raw, write_json
from rigdyno.schema.layout import CAMPAIGN, HEAD
from rigdyno.store.folder import RunFolder, StoredFolder, folders_with, fresh_folder, run_folders
from rigdyno.store.location import root_of

CAMPAIGN_VERSION = 1

RunName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]  # a folder next to the file


class SuiteRun(msgspec.Struct, frozen=True, kw_only=True):
    suite: str
    run: RunName
    seconds: float  # its share of the budget


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    suite: str
    reason: str


class CampaignHead(msgspec.Struct, frozen=True, kw_only=True):
    """The file that makes a folder of runs a campaign. All results are in the runs."""

    campaign_version: int = CAMPAIGN_VERSION
    rigdyno_version: str
    created_at: str
    label: str | None = None
    rig: str  # one-line description of the machine
    budget_seconds: float
    runs: tuple[SuiteRun, ...]
    left_out: tuple[LeftOut, ...] = ()


class CampaignFolder(StoredFolder):
    @classmethod
    def create(cls, root: Path, name: str, now: datetime) -> CampaignFolder:
        return cls(fresh_folder(root, name, now))

    def write_head(self, head: CampaignHead) -> None:
        """Write the head. Call it when all run folders exist: without a head the folder is no campaign."""
        write_json(self.path / CAMPAIGN, head)

    def head(self) -> CampaignHead:
        path = self.path / CAMPAIGN
        raw = read_raw(path)
        version = raw.get("campaign_version") if isinstance(raw, dict) else None
        if not isinstance(version, int) or version < 1:
            raise DamagedRun(f"{path} has no campaign_version")
        if version > CAMPAIGN_VERSION:
            raise NewerStore(f"{path} was written by a newer Rigdyno (format {version}); upgrade it")
        return decode_json(raw, CampaignHead, path)

    def run_folders(self) -> list[RunFolder]:
        """Return all runs in this campaign."""
        return run_folders(self.path)


def is_campaign(path: Path) -> bool:
    return (path / CAMPAIGN).is_file()


def stored_folders(root: Path) -> list[RunFolder | CampaignFolder]:
    """Return runs and campaigns, newest last."""
    return [
        CampaignFolder(path) if is_campaign(path) else RunFolder(path) for path in folders_with(root, HEAD, CAMPAIGN)
    ]


def find_run(root: Path, name: str) -> Path:
    """Find a folder by its path, by its name in the store, or by its name in one of the store's campaigns.

    If there is none, return the path where it would be."""
    given, below = Path(name), root / name
    if given.exists() or below.exists():
        return given if given.exists() else below
    inside = (path / name for path in folders_with(root, CAMPAIGN))
    return next((path for path in inside if path.is_dir()), given if len(given.parts) > 1 else below)


def named_or_newest_runs(runs: tuple[str, ...], out: str | None) -> list[Path]:
    """Return the named runs (paths, or names in the store); without names, the newest run or campaign."""
    root = root_of(out)
    if runs:
        return [find_run(root, name) for name in runs]
    folders = stored_folders(root)
    if not folders:
        raise UsageError(f"there is no run in {root} yet; `rigdyno` makes one in a minute")
    return [folders[-1].path]
