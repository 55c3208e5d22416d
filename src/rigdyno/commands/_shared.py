"""What several commands have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rigdyno import catalogue
from rigdyno.errors import UsageError
from rigdyno.report.page import page_of
from rigdyno.schema.view import View
from rigdyno.store.folder import run_folders
from rigdyno.store.location import VARIABLE, runs_root

Command = TypeVar("Command", bound=Callable[..., Any])


def out_option(function: Command) -> Command:
    text = f"Where runs are kept (else ${VARIABLE}, the configuration file, ./runs)."
    return click.option("--out", type=click.Path(file_okay=False), help=text)(function)


def root_of(out: str | None) -> Path:
    return runs_root(Path(out) if out else None)


def rendered(view: View, form: str) -> str:
    text: str = catalogue.load("format", form)(view, page_of())
    return text


def newest_or(runs: tuple[str, ...], out: str | None) -> list[Path]:
    """The runs that were named, as paths or as names in the store; else the newest."""
    root = root_of(out)
    if runs:
        return [path if (path := Path(name)).exists() else root / name for name in runs]
    folders = run_folders(root)
    if not folders:
        raise UsageError(f"there is no run in {root} yet; `rigdyno` makes one in a minute")
    return [folders[-1].path]
