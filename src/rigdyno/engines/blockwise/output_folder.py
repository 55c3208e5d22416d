"""Checks of the output folder before a run: may it be used, and what in it may be removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rigdyno.base.files import lock_file
from rigdyno.engines.blockwise.errors import BadOutput, BadSetting
from rigdyno.engines.blockwise.plan_file import disk_errors
from rigdyno.engines.blockwise.volumes.ome_zarr_output import ARRAY, METADATA, RUN_FOLDER

FOLDER = RUN_FOLDER  # inside the output: the plan, and the state of each block

PLAN = "plan.json"

OURS = (METADATA, f"{METADATA}.__lock", ARRAY, FOLDER)


def require_usable(output: str, inputs: Iterable[str], *, overwrite: bool) -> None:
    """Raise an error if the output can't be written there. Call this before planning, which may take minutes."""
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
                raise BadSetting(f"{given} is inside the output {output}: take another output")
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in OURS)
        if overwrite:
            _require_removable(folder, foreign)
        elif (
            foreign and not (folder / FOLDER / PLAN).exists()
        ):  # with a plan, the user may have added files to our output
            raise BadOutput(f"{output} holds {foreign[0]}, which this program didn't make: take another name")


def remove_output(folder: Path) -> None:
    """Remove everything that a run left there, the plan first: an output removed in part must not look finished."""
    with disk_errors(folder, "remove what is in"):
        (folder / FOLDER / PLAN).unlink(missing_ok=True)
        for name in OURS:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def missing_folders(folder: Path) -> list[Path]:
    """Return the folder and its parents that don't exist yet, the folder first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that a refused run created, unless another process has put something there meanwhile."""
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
    """Return whether another process holds a lock on the file or on a byte of it; locks of this one don't show."""
    try:
        with lock_file(file, "posix") as is_free:
            return not is_free
    except FileNotFoundError:
        return False
