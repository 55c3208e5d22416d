"""`rigdyno clean`: deletes runs, after saying which."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from rigdyno.clock import utc_now
from rigdyno.commands._shared import out_option, root_of
from rigdyno.errors import EXIT_DONE, RigdynoError, UsageError
from rigdyno.schema.record import Completed
from rigdyno.store.campaign import CampaignFolder, stored_folders
from rigdyno.store.files import disk_errors
from rigdyno.store.folder import RunFolder
from rigdyno.units import seconds_from, show_bytes


@click.command("clean", short_help="Delete runs, after saying which.")
@click.option("--older-than", metavar="TIME", help="Also runs that are older: 30d, 12h.")
@click.option("--all", "everything", is_flag=True, help="Every run.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@out_option
def command(older_than: str | None, everything: bool, yes: bool, out: str | None) -> int:
    """Deletes runs without a single finished measurement; with --older-than or --all, others too.

    Runs that are under way are never touched. Says what it would delete, then asks.

    \b
    Examples:
      rigdyno clean
      rigdyno clean --older-than 30d --yes
    """
    if older_than and everything:
        raise UsageError("--all includes --older-than; choose one")
    before = utc_now() - timedelta(seconds=seconds_from(older_than)) if older_than else None
    doomed = [folder for folder in stored_folders(root_of(out)) if _is_doomed(folder, before, everything)]
    if not doomed:
        click.echo("nothing to delete")
        return EXIT_DONE
    for folder in doomed:
        click.echo(f"  {folder.path}  {show_bytes(_size(folder.path))}")
    if not yes and not _agreed(len(doomed)):
        click.echo("nothing was deleted; add --yes to delete them")
        return EXIT_DONE
    for folder in doomed:
        with disk_errors(folder.path), folder.locked():
            shutil.rmtree(folder.path)
    click.echo(f"deleted {len(doomed)} run{'s' if len(doomed) != 1 else ''}")
    return EXIT_DONE


def _agreed(count: int) -> bool:
    return sys.stdin.isatty() and click.confirm(f"delete {'these' if count > 1 else 'this'}?")


def _is_doomed(folder: RunFolder | CampaignFolder, before: datetime | None, everything: bool) -> bool:
    if folder.is_running() or (
        isinstance(folder, CampaignFolder) and any(r.is_running() for r in folder.run_folders())
    ):
        return False
    if everything or not _has_result(folder):
        return True
    changed = datetime.fromtimestamp(folder.path.stat().st_mtime, UTC)
    return before is not None and changed < before


def _has_result(folder: RunFolder | CampaignFolder) -> bool:
    """What can't be read might be a result of a newer version, or be mended: it is not ours to delete. A campaign goes
    as a whole, or stays."""
    if isinstance(folder, CampaignFolder):
        return any(map(_has_result, folder.run_folders()))
    warnings: list[str] = []
    try:
        folder.head()
        return any(isinstance(cell.record.outcome, Completed) for cell in folder.cells(warnings)) or bool(warnings)
    except RigdynoError:
        return True


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
