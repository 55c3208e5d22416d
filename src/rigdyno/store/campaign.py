"""A campaign's folder: a store of its own, with one run for each suite, and the file that says which."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from rigdyno.errors import DamagedRun, NewerStore
from rigdyno.schema.campaign import CAMPAIGN_VERSION, CampaignHead
from rigdyno.schema.layout import CAMPAIGN, HEAD
from rigdyno.store.files import converted, read_raw, write_json
from rigdyno.store.folder import RunFolder, StoredFolder, folders_with, fresh_folder, run_folders


class CampaignFolder(StoredFolder):
    @classmethod
    def create(cls, root: Path, name: str, now: datetime) -> CampaignFolder:
        return cls(fresh_folder(root, name, now))

    def write_head(self, head: CampaignHead) -> None:
        """Once all of its runs are there: before, it is no campaign."""
        write_json(self.path / CAMPAIGN, head)

    def head(self) -> CampaignHead:
        path = self.path / CAMPAIGN
        raw = read_raw(path)
        version = raw.get("campaign_version") if isinstance(raw, dict) else None
        if not isinstance(version, int) or version < 1:
            raise DamagedRun(f"{path} has no campaign_version")
        if version > CAMPAIGN_VERSION:
            raise NewerStore(f"{path} was written by a newer Rigdyno (form {version}); upgrade it")
        return converted(raw, CampaignHead, path)

    def run_folders(self) -> list[RunFolder]:
        """All that lie in it."""
        return run_folders(self.path)


def is_campaign(path: Path) -> bool:
    return (path / CAMPAIGN).is_file()


def stored_folders(root: Path) -> list[RunFolder | CampaignFolder]:
    """Runs and campaigns, newest last."""
    return [
        CampaignFolder(path) if is_campaign(path) else RunFolder(path) for path in folders_with(root, HEAD, CAMPAIGN)
    ]


def located(root: Path, name: str) -> Path:
    """A folder by its path, by its name in the store, or in one of the store's campaigns; else where it would lie."""
    given, below = Path(name), root / name
    if given.exists() or below.exists():
        return given if given.exists() else below
    inside = (path / name for path in folders_with(root, CAMPAIGN))
    return next((path for path in inside if path.is_dir()), given if len(given.parts) > 1 else below)
