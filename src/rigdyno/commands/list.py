"""`rigdyno list`: what there is, and whether it can run here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from rigdyno import catalogue
from rigdyno.contracts import Unavailable
from rigdyno.errors import EXIT_DONE, CatalogueError
from rigdyno.report.listing import Item, listing_text
from rigdyno.report.page import page_of
from rigdyno.rig.likely import likely_device
from rigdyno.rig.system import describe_system
from rigdyno.schema.system import System

KINDS = ("suite", "workload", "update", "arrangement", "framework", "probe", "launcher")


@click.command("list", short_help="What there is, and whether it can run here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(as_json: bool) -> int:
    """Suites, workloads, updates, arrangements, frameworks, probes and launchers: one line each, and whether it can run
    here."""
    system, device = describe_system(), likely_device()
    items = [item for kind in KINDS for item in _items(kind, system, device)]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(items), indent=2).decode())
    else:
        click.echo(listing_text(items, page_of()), nl=False)
    return EXIT_DONE


def _items(kind: str, system: System, device: str) -> Iterator[Item]:
    for name in catalogue.names(kind):
        try:
            entry = catalogue.load(kind, name)
        except CatalogueError as error:  # somebody's installed package: the rest is still listed
            yield Item(kind=kind, name=name, summary="", runs_here=False, reason=str(error))
            continue
        lacking = _lacking(kind, entry, system, device)
        yield Item(
            kind=kind,
            name=name,
            summary=catalogue.summary(entry),
            runs_here=lacking is None,
            reason=lacking.reason if lacking else None,
            fix=lacking.fix if lacking else None,
        )


def _lacking(kind: str, entry: Any, system: System, device: str) -> Unavailable | None:
    lacking = catalogue.missing(getattr(entry, "requires", ()))
    if lacking is not None:
        return lacking
    if kind == "probe":
        found: Unavailable | None = entry().availability()
        return found
    objection = entry().refuses(system, device) if kind == "workload" else None
    return Unavailable(objection) if objection else None
