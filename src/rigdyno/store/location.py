"""Where runs are kept: the flag, then RIGDYNO_RUNS, then the configuration file, then ./runs."""

from __future__ import annotations

import os
from pathlib import Path

from rigdyno.errors import BadValue
from rigdyno.toml import config_file, line_of, read_toml

VARIABLE = "RIGDYNO_RUNS"


def runs_root(flag: Path | None = None) -> Path:
    if flag is not None:
        return flag
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return _configured() or Path("runs")


def _configured() -> Path | None:
    try:
        path = config_file()
    except RuntimeError:  # a container's user may have no home
        return None
    if not path.is_file():
        return None
    runs = read_toml(path).get("runs")
    if runs is None:
        return None
    if not isinstance(runs, str) or not runs:
        raise BadValue(f"{path}:{line_of(path, 'runs')}: 'runs' must be a folder in quotes, not {runs!r}")
    try:
        return Path(runs).expanduser()
    except RuntimeError:
        raise BadValue(f"{path}:{line_of(path, 'runs')}: nobody's home is in {runs!r}") from None


def utf8(text: str) -> str:
    """A folder's name may be any bytes; a report is UTF-8."""
    return os.fsencode(text).decode("utf-8", "replace")
