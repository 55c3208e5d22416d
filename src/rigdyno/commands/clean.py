"""`rigdyno clean`: delete runs after listing them."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from rigdyno.base.clock import utc_now
from rigdyno.base.errors import EXIT_DONE, RigdynoError, UsageError
from rigdyno.base.files import disk_errors
from rigdyno.base.units import seconds_from, show_bytes
from rigdyno.commands.common.output import out_option
from rigdyno.schema.record import Completed
from rigdyno.store.campaign import CampaignFolder, stored_folders
from rigdyno.store.folder import RunFolder
from rigdyno.store.location import root_of


@click.command("clean", short_help="Delete runs after listing them.")
@click.option("--older-than", metavar="TIME", help="Also delete runs older than this: 30d, 12h.")
@click.option("--all", "everything", is_flag=True, help="Delete all runs.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@out_option
def command(older_than: str | None, everything: bool, yes: bool, out: str | None) -> int:
    """Delete runs without a finished measurement; with --older-than or --all, other runs too.

    Runs that are under way are never deleted. The runs are listed before you are asked to confirm.

    \b
    Examples:
      rigdyno clean
      rigdyno clean --older-than 30d --yes
    """
    if older_than and everything:
        raise UsageError("--all includes --older-than; choose one")
    before = utc_now() - timedelta(seconds=seconds_from(older_than)) if older_than else None
    to_delete = [folder for folder in stored_folders(root_of(out)) if _is_to_delete(folder, before, everything)]
    if not to_delete:
        click.echo("nothing to delete")
        return EXIT_DONE
    for folder in to_delete:
        click.echo(f"  {folder.path}  {show_bytes(_size(folder.path))}")
    if not yes and not _confirm(len(to_delete)):
        click.echo("nothing was deleted; add --yes to delete them")
        return EXIT_DONE
    for folder in to_delete:
        with disk_errors(folder.path), folder.locked():
            shutil.rmtree(folder.path)
    click.echo(f"deleted {len(to_delete)} run{'s' if len(to_delete) != 1 else ''}")
    return EXIT_DONE


def _confirm(count: int) -> bool:
    return sys.stdin.isatty() and click.confirm(f"delete {'these' if count > 1 else 'this'}?")


def _is_to_delete(folder: RunFolder | CampaignFolder, before: datetime | None, everything: bool) -> bool:
    if folder.is_running() or (
        isinstance(folder, CampaignFolder) and any(r.is_running() for r in folder.run_folders())
    ):
        return False
    if everything or not _has_result(folder):
        return True
    changed = datetime.fromtimestamp(folder.path.stat().st_mtime, UTC)
    return before is not None and changed < before


def _has_result(folder: RunFolder | CampaignFolder) -> bool:
    """Return whether a folder has a result, or files that can't be read.

    Those could be of a newer version, or be repaired, so they are kept. A campaign is kept or deleted as a whole.
    """
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
