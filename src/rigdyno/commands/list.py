"""`rigdyno list`: list suites, workloads and other entries and whether they can run here, or the options of one."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import EXIT_DONE, CatalogueError, UnknownName
from rigdyno.contracts import Unavailable
from rigdyno.report.text import Page, detect_page
from rigdyno.rig.system import describe_system, guess_device
from rigdyno.schema.system import System

KINDS = ("suite", "workload", "update", "arrangement", "framework", "probe", "launcher")


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
        lines.append(_style(f"{kind}s", page, bold=True))
        for item in group:
            lines += _item_lines(item, width, page)
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _item_lines(item: Item, width: int, page: Page) -> list[str]:
    indent = " " * (width + 6)
    sign = _style("+", page, fg="green") if item.runs_here else _style("-", page, fg="yellow")
    summary = textwrap.wrap(item.summary, page.width - len(indent)) or [""]
    lines = [f"  {sign} {item.name:<{width}}  {summary[0]}", *(indent + line for line in summary[1:])]
    if item.reason:
        why = f"not here: {item.reason}" + (f"; try: {item.fix}" if item.fix else "")
        lines += textwrap.wrap(why, page.width, initial_indent=indent, subsequent_indent=indent)
    return lines


def _style(text: str, page: Page, **style: bool | str) -> str:
    return click.style(text, **style) if page.colour else text  # type: ignore[arg-type]


@click.command("list", short_help="List suites, workloads etc. and whether they can run here.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(name: str | None, as_json: bool) -> int:
    """List suites, workloads, updates, arrangements, frameworks, probes and launchers, and whether they can run here.

    With a NAME, list the options of that suite, workload or update: `--set OPTION=VALUE` sets them.
    """
    if name is not None:
        return _list_options(name, as_json=as_json)
    system, device = describe_system(), guess_device()
    items = [item for kind in KINDS for item in _items(kind, system, device)]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(items), indent=2).decode())
    else:
        click.echo(listing_text(items, detect_page()), nl=False)
    return EXIT_DONE


class Option(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str
    default: Any


def _list_options(name: str, *, as_json: bool) -> int:
    from rigdyno.contracts.options import describe_type, option_types

    kinds = [kind for kind in ("suite", "workload", "update") if name in catalogue.names(kind)]
    if not kinds:
        known = {each for kind in ("suite", "workload", "update") for each in catalogue.names(kind)}
        raise UnknownName("suite, workload or update", name, known)
    entry = catalogue.load(kinds[0], name)
    defaults = catalogue.defaults(kinds[0], name)
    options = [
        Option(name=option, type=describe_type(wanted), default=defaults.get(option))
        for option, wanted in option_types(entry).items()
    ]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(options), indent=2).decode())
    else:
        click.echo(_options_text(kinds[0], name, catalogue.summary(entry), options), nl=False)
    return EXIT_DONE


def _options_text(kind: str, name: str, summary: str, options: Sequence[Option]) -> str:
    prefix = "update." if kind == "update" else ""
    lines = [f"{kind} {name}: {summary}"]
    for option in options:
        default = "" if option.default in (None, "", ()) else f"  [default: {option.default}]"
        lines.append(f"  --set {prefix}{option.name}=...  {option.type}{default}")
    return "\n".join([*lines, *(() if options else ("  no options",))]) + "\n"


def _items(kind: str, system: System, device: str) -> Iterator[Item]:
    for name in catalogue.names(kind):
        try:
            entry = catalogue.load(kind, name)
        except CatalogueError as error:  # in an installed package; the other entries are still listed
            yield Item(kind=kind, name=name, summary="", runs_here=False, reason=str(error))
            continue
        lacking = _find_obstacle(kind, entry, system, device)
        yield Item(
            kind=kind,
            name=name,
            summary=catalogue.summary(entry),
            runs_here=lacking is None,
            reason=lacking.reason if lacking else None,
            fix=lacking.fix if lacking else None,
        )


def _find_obstacle(kind: str, entry: Any, system: System, device: str) -> Unavailable | None:
    lacking = catalogue.find_missing(getattr(entry, "requires", ()))
    if lacking is not None:
        return lacking
    if kind == "probe":
        found: Unavailable | None = entry().availability()
        return found
    objection = entry().refuses(system, device) if kind == "workload" else None
    return Unavailable(objection) if objection else None
