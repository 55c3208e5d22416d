"""Reading TOML, with errors that name the file and the line."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from rigdyno.errors import BadValue


def read_toml(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadValue(f"no file {path}") from None
    except UnicodeDecodeError as error:
        raise BadValue(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise BadValue(f"can't read {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:  # a ValueError may also be a number with too many digits
        raise BadValue(f"{path}: {error}") from None
    return document


def config_file() -> Path:
    """The user's own, for all runs; it need not exist. Raises RuntimeError where there is no home."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "rigdyno" / "config.toml"


def line_of(path: Path, key: str, table: str = "") -> int | None:
    """Where a key stands, since the parser doesn't tell: the first line that sets it, or a table that it is in."""
    wanted, inside = f"{table}.{key}" if table else key, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]+", line):
            inside = name = _plain(header[1])
        elif setting := re.match(r"([^=#]+)=", line):
            name = f"{inside}.{_plain(setting[1])}" if inside else _plain(setting[1])
            if wanted.startswith(f"{name}."):  # table = { key = 1 }
                return number
        else:
            continue
        if name == wanted or name.startswith(f"{wanted}."):
            return number
    return None


def _plain(name: str) -> str:
    """Without quotes, and blanks around dots."""
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
