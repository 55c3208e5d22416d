"""`rigdyno watch`: this machine's meters, live."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno.clock import Clock, SystemClock
from rigdyno.commands._prometheus import MeterCollector, serve
from rigdyno.commands._shared import probes_here
from rigdyno.errors import EXIT_DONE, EXIT_INTERRUPTED, BadValue, StoreError, UsageError
from rigdyno.probes._meters import Meters
from rigdyno.report.page import Page, page_of
from rigdyno.report.watch import Watched
from rigdyno.schema.channel import STATES
from rigdyno.schema.participant import sampler_of
from rigdyno.units import NS_PER_S, seconds_from, seconds_of_ns

if TYPE_CHECKING:
    from rich.console import Group

LOOPBACK = "127.0.0.1"
LEAST_SECONDS = 0.05

Show = Callable[[], None]
Read = Callable[[], Sequence[float]]

EXAMPLES = """\b
Examples:
  rigdyno watch
  rigdyno watch --interval 5s | tee meters.txt
  rigdyno watch --record night.rows --for 8h
  rigdyno watch --prometheus 9400

Ctrl-C ends it, with exit code 130.
"""


@click.command("watch", epilog=EXAMPLES, short_help="This machine's meters, live.")
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Between two readings.")
@click.option("--for", "duration", metavar="TIME", help="Ends by itself after so long.")
@click.option("--record", type=click.Path(dir_okay=False), metavar="FILE", help="Keeps all readings, as a run does.")
@click.option("--prometheus", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Serves them to Prometheus.")
@click.option("--listen", metavar="ADDRESS", help=f"Where it serves them; else on {LOOPBACK} alone.")
def command(interval: str, duration: str | None, record: str | None, port: int | None, listen: str | None) -> int:
    """This machine's meters: power, usage, memory, clocks, temperatures, with a small chart each.

    In a pipe a line for every reading. What can't be read is named with what would change that."""
    seconds = seconds_from(interval)
    if seconds < LEAST_SECONDS:
        raise BadValue(f"--interval must be at least {LEAST_SECONDS} s: reading more often would disturb what is read")
    if listen is not None and port is None:
        raise UsageError("--listen says where --prometheus serves; add --prometheus PORT")
    from rigdyno.runner.signals import termination_as_interrupt

    clock = SystemClock()
    until_ns = None if duration is None else clock.now_ns() + int(seconds_from(duration) * NS_PER_S)
    try:
        with ExitStack() as stack, termination_as_interrupt():
            meters = Meters(probes_here(), lambda: [os.getpid()], clock)
            stack.callback(meters.close)
            read = _reader(meters, clock, record, stack)
            update = _served(meters, port, listen or LOOPBACK, stack)
            watched = Watched(meters.channels, meters.absent)
            show = stack.enter_context(_shown(watched, page_of()))
            _loop(clock, int(seconds * NS_PER_S), until_ns, lambda: _once(read, update, watched, clock, show))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _once(read: Read, update: Callable[[Sequence[float]], None], watched: Watched, clock: Clock, show: Show) -> None:
    at_ns, values = clock.now_ns(), read()
    update(values)
    watched.add(at_ns, values, STATES)
    show()


def _loop(clock: Clock, interval_ns: int, until_ns: int | None, once: Callable[[], None]) -> None:
    """At fixed times; one that is late makes nobody catch up."""
    due_ns = clock.now_ns()
    while until_ns is None or due_ns < until_ns:
        once()
        due_ns = max(due_ns + interval_ns, clock.now_ns())
        end_ns = due_ns if until_ns is None else min(due_ns, until_ns)
        clock.sleep(max(0.0, seconds_of_ns(end_ns - clock.now_ns())))


def _reader(meters: Meters, clock: Clock, record: str | None, stack: ExitStack) -> Read:
    if record is None:
        return meters.read
    from rigdyno.runner.sampler import Sampler

    path = Path(record)
    try:
        sampler = Sampler(path, sampler_of(0), clock, meters)
    except FileExistsError:
        raise UsageError(f"{path} exists already, and is not written over; choose another name") from None
    except OSError as error:
        raise StoreError(f"can't write {path}: {(error.strerror or str(error)).lower()}") from None
    stack.callback(sampler.close)
    return sampler.read


def _served(meters: Meters, port: int | None, address: str, stack: ExitStack) -> Callable[[Sequence[float]], None]:
    if port is None:
        return lambda values: None
    collector = MeterCollector(meters.channels)
    listening, end = serve(collector, port, address)
    stack.callback(end)
    click.echo(f"rigdyno: http://{address}:{listening}/metrics", err=True)
    return collector.update


@contextmanager
def _shown(watched: Watched, page: Page) -> Iterator[Show]:
    """A table that is drawn over and over in a terminal, lines in a pipe."""
    if not sys.stdout.isatty():
        for note in watched.notes():
            click.echo(f"rigdyno: {note}", err=True)
        yield lambda: click.echo(watched.line(f"{datetime.now():%H:%M:%S}"))
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False, no_color=not page.colour), auto_refresh=False) as live:
        yield lambda: live.update(_drawn(watched), refresh=True)


def _drawn(watched: Watched) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for title, chart, value in watched.rows():
        table.add_row(title, chart, Text(value, justify="right"))
    return Group(table, *(Text(note, style="dim") for note in watched.notes()))
