"""How disturbed this machine is right now: a load on every core for a second, and how long it had to wait."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from rigdyno.clock import Clock
from rigdyno.contracts import Probe
from rigdyno.schema.diagnosis import Finding
from rigdyno.schema.estimate import Number
from rigdyno.units import show_number, show_percent

SECONDS = 1.0
# Chosen by judgement, not calibrated: a quiet 2-core VM showed about 0.5 % wait, 0.5 % steal, 1 % pressure.
WAIT_SHARE = 0.02
STEAL_SHARE = 0.01
PRESSURE_SHARE = 0.05
LOAD_PER_CORE = 0.3
FIXES = {
    "run queue": "end what else runs here (top shows it), or measure on a machine of your own",
    "steal": "the host is shared: take a dedicated machine, or measure at a quieter hour",
    "cpu pressure": "end what else runs here (top shows it)",
    "memory pressure": "end what fills the memory (top shows it), or take smaller sizes",
    "io pressure": "end what reads and writes (sudo iotop shows it)",
    "load": "end what else runs here (top shows it), and wait for a minute",
}
BLOCK = bytes(1 << 20)  # hashing it takes about a millisecond, in which the interpreter's lock is free


def noise_now(
    probe: Probe, clock: Clock, cores: int, load_average: float | None, seconds: float = SECONDS
) -> tuple[Finding, ...]:
    """`probe` is the host's. Only under load is there a queue to stand in."""
    unavailable = probe.availability()
    if unavailable is not None:
        return (Finding(name="noise", status="unknown", sentence=unavailable.reason, fix=unavailable.fix),)
    return judge(_under_load(probe, clock, cores, seconds), cores, load_average)


def _under_load(probe: Probe, clock: Clock, cores: int, seconds: float) -> Mapping[str, float]:
    with _busy(cores):
        channels = probe.open(lambda: [os.getpid()])
        try:
            clock.sleep(seconds)
            return dict(zip([channel.name for channel in channels], probe.read(), strict=True))
        finally:
            probe.close()


@contextmanager
def _busy(cores: int) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            hashlib.sha256(BLOCK).digest()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(cores)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def judge(values: Mapping[str, float], cores: int, load_average: float | None) -> tuple[Finding, ...]:
    wait_share = values.get("run_queue_wait_share", math.nan) / cores
    return (
        _finding("run queue", "a load on every core stood in line for {} of the time", wait_share, WAIT_SHARE),
        _finding("steal", "the hypervisor kept {} of the cores' time", values.get("steal_share"), STEAL_SHARE),
        *(_pressure(values, *resource) for resource in (("cpu", "a core"), ("memory", "memory"), ("io", "disks"))),
        _load(load_average, cores),
    )


def _pressure(values: Mapping[str, float], resource: str, words: str) -> Finding:
    sentence = f"tasks waited for {words} during {{}} of the time"
    return _finding(f"{resource} pressure", sentence, values.get(f"psi_{resource}_some"), PRESSURE_SHARE)


def _finding(name: str, sentence: str, share: float | None, limit: float) -> Finding:
    if share is None or math.isnan(share):
        return Finding(name=name, status="unknown", sentence="can't be read here")
    return _judged(name, sentence.format(show_percent(share)), Number(value=share, unit="share"), noisy=share > limit)


def _judged(name: str, sentence: str, figure: Number, noisy: bool) -> Finding:
    status: Literal["trap", "fine"] = "trap" if noisy else "fine"
    return Finding(name=name, status=status, sentence=sentence, figure=figure, fix=FIXES[name] if noisy else None)


def _load(load_average: float | None, cores: int) -> Finding:
    if load_average is None:
        return Finding(name="load", status="unknown", sentence="can't be read here")
    sentence = f"{show_number(load_average)} tasks wanted to run in the last minute; usable cores: {cores}"
    return _judged("load", sentence, Number(value=load_average), noisy=load_average > LOAD_PER_CORE * cores)
