"""The folder of the output, before anything is in it: may it be used, and what of it may be removed."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rigdyno.engines.blockwise.errors import BadOutput, BadSetting
from rigdyno.engines.blockwise.plan_file import TAKEN, disk_errors
from rigdyno.engines.blockwise.volumes.ome_zarr_output import ARRAY, BESIDE, METADATA

FOLDER = BESIDE  # in the output: its plan, and which blocks are done
PLAN = "plan.json"
OURS = (METADATA, f"{METADATA}.__lock", ARRAY, FOLDER)


def require_usable(output: str, inputs: Iterable[str], *, overwrite: bool) -> None:
    """Said before anything is planned, which may take minutes."""
    if "://" in output:
        raise BadOutput(f"{output} is a URL, and outputs are written to a local folder: give a path")
    folder = Path(output)
    with disk_errors(folder, "look at"):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise BadOutput(f"{output} is a file: take another name")
        for given in inputs:
            if folder.resolve() in (Path(given).resolve(), *Path(given).resolve().parents):
                raise BadSetting(f"{given} lies in the output {output}: take another output")
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in OURS)
        if overwrite:
            _require_removable(folder, foreign)
        elif foreign and not (folder / FOLDER / PLAN).exists():  # else somebody may have added to what we made
            raise BadOutput(f"{output} holds {foreign[0]}, which isn't of this program: take another name")


def remove_output(folder: Path) -> None:
    """All that a run has left there, the plan first: what is half removed must not look as if it were done."""
    with disk_errors(folder, "remove what is in"):
        (folder / FOLDER / PLAN).unlink(missing_ok=True)
        for name in OURS:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that aren't there yet, itself first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """A run that was refused leaves nothing behind, unless somebody else has put something there meanwhile."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _require_removable(folder: Path, foreign: list[str]) -> None:
    if foreign or (any(folder.iterdir()) and not (folder / FOLDER).is_dir()):
        what = f"{folder} holds {foreign[0]}, which" if foreign else folder
        raise BadSetting(f"{what} wasn't made by this program, so --overwrite leaves it alone; remove it by hand")
    if any(_is_locked(folder / FOLDER / name) for name in ("lock", "blocks")):
        raise BadSetting(f"another process is at work on {folder}, so --overwrite leaves it alone; end that one first")


def _is_locked(file: Path) -> bool:
    """By another process: locks of one's own don't show."""
    try:
        with file.open("rb+") as opened:
            fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in TAKEN:
            return True
        raise
    return False
