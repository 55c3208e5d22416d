"""`rigdyno watch`: show the readings of this machine's probes live."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigdyno.base.clock import Clock, SystemClock
from rigdyno.base.errors import EXIT_DONE, EXIT_INTERRUPTED, BadValue, StoreError, UsageError, os_error_reason
from rigdyno.base.units import NS_PER_S, seconds_from, seconds_of_ns
from rigdyno.commands.common.output import probes_here
from rigdyno.features.watch.display import MeterDisplay
from rigdyno.features.watch.prometheus import MeterCollector, serve
from rigdyno.probes.common.probe_set import ProbeSet
from rigdyno.report.text import Page, detect_page
from rigdyno.schema.channel import STATES
from rigdyno.schema.spec import sampler_of

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


@click.command("watch", epilog=EXAMPLES, short_help="Show power, usage and temperatures live.")
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Time between two readings.")
@click.option("--for", "duration", metavar="TIME", help="Stop after this time.")
@click.option("--record", type=click.Path(dir_okay=False), metavar="FILE", help="Store all readings, as a run does.")
@click.option("--prometheus", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve them to Prometheus.")
@click.option("--listen", metavar="ADDRESS", help=f"Address for --prometheus. [default: {LOOPBACK}]")
def command(interval: str, duration: str | None, record: str | None, port: int | None, listen: str | None) -> int:
    """Show power, usage, memory, clocks and temperatures of this machine live, each with a small chart.

    In a pipe, print a line for every reading. Sensors that can't be read are listed with a remedy."""
    seconds = seconds_from(interval)
    if seconds < LEAST_SECONDS:
        raise BadValue(f"--interval must be at least {LEAST_SECONDS} s: reading more often would disturb the machine")
    if listen is not None and port is None:
        raise UsageError("--listen is the address for --prometheus; add --prometheus PORT")
    from rigdyno.base.processes import termination_as_interrupt

    clock = SystemClock()
    until_ns = None if duration is None else clock.now_ns() + int(seconds_from(duration) * NS_PER_S)
    try:
        with ExitStack() as stack, termination_as_interrupt():
            probes = ProbeSet(probes_here(), lambda: [os.getpid()], clock)
            stack.callback(probes.close)
            read = _make_reader(probes, clock, record, stack)
            update = _start_server(probes, port, listen or LOOPBACK, stack)
            display = MeterDisplay(probes.channels, probes.absent)
            show = stack.enter_context(_open_display(display, detect_page()))
            _loop(clock, int(seconds * NS_PER_S), until_ns, lambda: _read_once(read, update, display, clock, show))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _read_once(
    read: Read, update: Callable[[Sequence[float]], None], display: MeterDisplay, clock: Clock, show: Show
) -> None:
    at_ns, values = clock.now_ns(), read()
    update(values)
    display.add(at_ns, values, STATES)
    show()


def _loop(clock: Clock, interval_ns: int, until_ns: int | None, once: Callable[[], None]) -> None:
    """Call `once` at fixed intervals. After a late call the schedule shifts, so that calls don't pile up."""
    due_ns = clock.now_ns()
    while until_ns is None or due_ns < until_ns:
        once()
        due_ns = max(due_ns + interval_ns, clock.now_ns())
        end_ns = due_ns if until_ns is None else min(due_ns, until_ns)
        clock.sleep(max(0.0, seconds_of_ns(end_ns - clock.now_ns())))


def _make_reader(probes: ProbeSet, clock: Clock, record: str | None, stack: ExitStack) -> Read:
    if record is None:
        return probes.read
    from rigdyno.runner.sampler import Sampler

    path = Path(record)
    try:
        sampler = Sampler(path, sampler_of(0), clock, probes)
    except FileExistsError:
        raise UsageError(f"{path} exists already and is not overwritten; choose another name") from None
    except OSError as error:
        raise StoreError(f"can't write {path}: {os_error_reason(error)}") from None
    stack.callback(sampler.close)
    return sampler.read


def _start_server(
    probes: ProbeSet, port: int | None, address: str, stack: ExitStack
) -> Callable[[Sequence[float]], None]:
    """Serve the readings if there is a port; return the function that updates them."""
    if port is None:
        return lambda values: None
    collector = MeterCollector(probes.channels)
    listening, end = serve(collector, port, address)
    stack.callback(end)
    click.echo(f"rigdyno: http://{address}:{listening}/metrics", err=True)
    return collector.update


@contextmanager
def _open_display(display: MeterDisplay, page: Page) -> Iterator[Show]:
    """Yield the function that shows the readings: as a table that is redrawn in a terminal, as lines in a pipe."""
    if not sys.stdout.isatty():
        for note in display.notes():
            click.echo(f"rigdyno: {note}", err=True)
        yield lambda: click.echo(display.line(f"{datetime.now():%H:%M:%S}"))
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False, no_color=not page.colour), auto_refresh=False) as live:
        yield lambda: live.update(_draw(display), refresh=True)


def _draw(display: MeterDisplay) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for title, chart, value in display.rows():
        table.add_row(title, chart, Text(value, justify="right"))
    return Group(table, *(Text(note, style="dim") for note in display.notes()))
