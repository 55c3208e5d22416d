"""Find the folder for runs: the flag, else RIGDYNO_RUNS, else the configuration file, else ./runs."""

from __future__ import annotations

import os
from pathlib import Path

from rigdyno.base.errors import BadValue
from rigdyno.base.toml import config_file, find_line, read_toml

VARIABLE = "RIGDYNO_RUNS"


def runs_root(flag: Path | None = None) -> Path:
    if flag is not None:
        return flag
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return _read_configured_root() or Path("runs")


def _read_configured_root() -> Path | None:
    try:
        path = config_file()
    except RuntimeError:  # the user of a container may have no home folder
        return None
    if not path.is_file():
        return None
    runs = read_toml(path).get("runs")
    if runs is None:
        return None
    if not isinstance(runs, str) or not runs:
        raise BadValue(f"{path}:{find_line(path, 'runs')}: 'runs' must be a folder in quotes, not {runs!r}")
    try:
        return Path(runs).expanduser()
    except RuntimeError:
        raise BadValue(f"{path}:{find_line(path, 'runs')}: no home folder found for {runs!r}") from None


def utf8(text: str) -> str:
    """Replace bytes that are not UTF-8: a folder name may have any bytes, a report may not."""
    return os.fsencode(text).decode("utf-8", "replace")


def root_of(out: str | None) -> Path:
    return runs_root(Path(out) if out else None)
