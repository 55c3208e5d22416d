"""Reads TOML files, with errors that name the file and the line."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from rigdyno.base.errors import BadValue, os_error_reason


def read_toml(path: Path) -> dict[str, Any]:
    """Return a file's tables and values; raise BadValue if it is missing, unreadable or not TOML."""
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadValue(f"no file {path}") from None
    except UnicodeDecodeError as error:
        raise BadValue(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise BadValue(f"can't read {path}: {os_error_reason(error)}") from None
    except (ValueError, RecursionError) as error:  # a ValueError may also be a number with too many digits
        raise BadValue(f"{path}: {error}") from None
    return document


def config_file() -> Path:
    """Return the path of the user's configuration, which need not exist. Raises RuntimeError if there is no home."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "rigdyno" / "config.toml"


def find_line(path: Path, key: str, table: str = "") -> int | None:
    """Return the number of the first line that sets a key, or a table that contains it; the parser doesn't say."""
    wanted, inside = f"{table}.{key}" if table else key, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]+", line):
            inside = name = _normalize_key(header[1])
        elif setting := re.match(r"([^=#]+)=", line):
            name = f"{inside}.{_normalize_key(setting[1])}" if inside else _normalize_key(setting[1])
            if wanted.startswith(f"{name}."):  # table = { key = 1 }
                return number
        else:
            continue
        if name == wanted or name.startswith(f"{wanted}."):
            return number
    return None


def _normalize_key(name: str) -> str:
    """Return a dotted key without quotes and without blanks around its dots."""
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
