"""What `rigdyno list` prints."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

import click
import msgspec

from rigdyno.report.page import Page


class Item(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    name: str
    summary: str
    runs_here: bool
    reason: str | None = None
    fix: str | None = None


def listing_text(items: Sequence[Item], page: Page) -> str:
    width = max((len(item.name) for item in items), default=0)
    lines: list[str] = []
    for kind, group in itertools.groupby(items, key=lambda item: item.kind):
        lines.append(_styled(f"{kind}s", page, bold=True))
        for item in group:
            lines += _item_lines(item, width, page)
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _item_lines(item: Item, width: int, page: Page) -> list[str]:
    indent = " " * (width + 6)
    sign = _styled("+", page, fg="green") if item.runs_here else _styled("-", page, fg="yellow")
    summary = textwrap.wrap(item.summary, page.width - len(indent)) or [""]
    lines = [f"  {sign} {item.name:<{width}}  {summary[0]}", *(indent + line for line in summary[1:])]
    if item.reason:
        why = f"not here: {item.reason}" + (f"; try: {item.fix}" if item.fix else "")
        lines += textwrap.wrap(why, page.width, initial_indent=indent, subsequent_indent=indent)
    return lines


def _styled(text: str, page: Page, **style: bool | str) -> str:
    return click.style(text, **style) if page.colour else text  # type: ignore[arg-type]
