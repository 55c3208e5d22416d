"""Collect everything that `rigdyno doctor` reports: the system, its probes, its noise now, and its traps.

The data types of `rigdyno doctor --json` and `rigdyno selftest` are here too.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import msgspec

from rigdyno.base.clock import Clock
from rigdyno.base.threads import WorkerThread, describe_trouble
from rigdyno.base.units import show_number, show_percent
from rigdyno.contracts import Probe, Unavailable
from rigdyno.rig.devices import find_accelerators
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.system import describe_system
from rigdyno.rig.traps import TRAPS, TrapResult
from rigdyno.schema.estimate import Number
from rigdyno.schema.system import Environment, System

DIAGNOSIS_VERSION = 1

PATIENCE_SECONDS = 5.0  # timeout for a probe that hangs

LOOK_SECONDS = 0.1  # several ticks of the kernel's counters: a share of no time can't be read

SECONDS = 1.0

# Not calibrated: a quiet virtual machine with 2 cores had about 0.5 % wait, 0.5 % steal and 1 % pressure.
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

BLOCK = bytes(1 << 20)  # hashing it takes about a millisecond and releases the interpreter's lock

Progress = Callable[[str], None]  # receives what is being examined

SELF_TEST_VERSION = 1

Result = Literal["works", "fails", "can't run here", "not tried"]


class MeterState(msgspec.Struct, frozen=True, kw_only=True):
    """The channels that a probe can read here; if there are none, `reason` says why."""

    name: str
    summary: str = ""
    readable: tuple[str, ...] = ()  # channels
    unreadable: dict[str, str | None] = {}  # channel -> how to fix it, if known
    reason: str | None = None
    fix: str | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    version: int = DIAGNOSIS_VERSION
    system: System
    environment: Environment
    accelerators_reason: str | None = None  # why the search failed
    meters: tuple[MeterState, ...] = ()
    noise: tuple[TrapResult, ...] = ()
    traps: tuple[TrapResult, ...] | None = None  # None: not tried


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one path through Rigdyno."""

    name: str
    result: Result
    seconds: float = 0.0
    words: str = ""  # the reason if it doesn't work
    log: tuple[str, ...] = ()  # the last lines of a process that failed


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    version: int = SELF_TEST_VERSION
    rigdyno_version: str
    diagnosis: Diagnosis
    tried: tuple[TrialResult, ...] = ()

    @property
    def fails(self) -> bool:
        return any(each.result == "fails" for each in self.tried)


def diagnose(probes: Mapping[str, Probe], clock: Clock, quick: bool, progress: Progress) -> Diagnosis:
    environment = describe_environment()  # first, so that the load average isn't our own
    progress("asking frameworks for their devices")
    found = find_accelerators()
    system = describe_system(found.accelerators)
    progress("reading the meters")
    meters = tuple(check_meter(name, probe, clock) for name, probe in probes.items())
    progress("listening for noise")
    noise = _check_noise(probes, clock, system, environment.load_average)
    return Diagnosis(
        system=system,
        environment=msgspec.structs.replace(environment, threads=found.threads, framework=found.versions),
        accelerators_reason=found.reason,
        meters=meters,
        noise=noise,
        traps=None if quick else tuple(_try_traps(progress)),
    )


def _check_noise(
    probes: Mapping[str, Probe], clock: Clock, system: System, load_average: float | None
) -> tuple[TrapResult, ...]:
    if "host" not in probes:
        return (TrapResult(name="noise", status="unknown", sentence="the host probe is not installed"),)
    return noise_now(probes["host"], clock, system.cpu.usable_cores, load_average)


def _try_traps(progress: Progress) -> list[TrapResult]:
    findings = []
    for name, attempt in TRAPS.items():
        progress(f"trying {name}")
        findings.append(attempt())
    return findings


def check_meter(name: str, probe: Probe, clock: Clock) -> MeterState:
    """Read a probe once. One that hangs or raises becomes a result, and doesn't affect other probes."""
    summary = (probe.__doc__ or "").strip().partition("\n")[0]
    worker = WorkerThread(f"probe {name}")
    worker.submit(lambda: probe.availability() or _read_once(probe, clock))
    answer = worker.wait_for_result(PATIENCE_SECONDS)
    trouble = describe_trouble(answer, PATIENCE_SECONDS)
    if answer is None or trouble is not None:
        return MeterState(name=name, summary=summary, reason=trouble)
    if isinstance(answer.value, Unavailable):
        return MeterState(name=name, summary=summary, reason=answer.value.reason, fix=answer.value.fix)
    values: dict[str, float] = answer.value
    return MeterState(
        name=name,
        summary=summary,
        readable=tuple(channel for channel, value in values.items() if not math.isnan(value)),
        unreadable={channel: probe.hints.get(channel) for channel, value in values.items() if math.isnan(value)},
    )


def _read_once(probe: Probe, clock: Clock) -> dict[str, float]:
    channels = probe.open(lambda: [os.getpid()])
    try:
        clock.sleep(LOOK_SECONDS)
        return dict(zip([channel.name for channel in channels], probe.read(), strict=True))
    finally:
        probe.close()


def noise_now(
    probe: Probe, clock: Clock, cores: int, load_average: float | None, seconds: float = SECONDS
) -> tuple[TrapResult, ...]:
    """Measure the noise of the machine under load, without which there is no run queue. `probe`: that of the host."""
    unavailable = probe.availability()
    if unavailable is not None:
        return (TrapResult(name="noise", status="unknown", sentence=unavailable.reason, fix=unavailable.fix),)
    return judge(_read_under_load(probe, clock, cores, seconds), cores, load_average)


def _read_under_load(probe: Probe, clock: Clock, cores: int, seconds: float) -> Mapping[str, float]:
    with _keep_busy(cores):
        channels = probe.open(lambda: [os.getpid()])
        try:
            clock.sleep(seconds)
            return dict(zip([channel.name for channel in channels], probe.read(), strict=True))
        finally:
            probe.close()


@contextmanager
def _keep_busy(cores: int) -> Iterator[None]:
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


def judge(values: Mapping[str, float], cores: int, load_average: float | None) -> tuple[TrapResult, ...]:
    wait_share = values.get("run_queue_wait_share", math.nan) / cores
    return (
        _share_result("run queue", "a load on every core stood in line for {} of the time", wait_share, WAIT_SHARE),
        _share_result("steal", "the hypervisor kept {} of the cores' time", values.get("steal_share"), STEAL_SHARE),
        *(
            _pressure_result(values, *resource)
            for resource in (("cpu", "a core"), ("memory", "memory"), ("io", "disks"))
        ),
        _load_result(load_average, cores),
    )


def _pressure_result(values: Mapping[str, float], resource: str, words: str) -> TrapResult:
    sentence = f"tasks waited for {words} during {{}} of the time"
    return _share_result(f"{resource} pressure", sentence, values.get(f"psi_{resource}_some"), PRESSURE_SHARE)


def _share_result(name: str, sentence: str, share: float | None, limit: float) -> TrapResult:
    if share is None or math.isnan(share):
        return TrapResult(name=name, status="unknown", sentence="can't be read here")
    return _trap_result(
        name, sentence.format(show_percent(share)), Number(value=share, unit="share"), noisy=share > limit
    )


def _trap_result(name: str, sentence: str, figure: Number, noisy: bool) -> TrapResult:
    status: Literal["trap", "fine"] = "trap" if noisy else "fine"
    return TrapResult(name=name, status=status, sentence=sentence, figure=figure, fix=FIXES[name] if noisy else None)


def _load_result(load_average: float | None, cores: int) -> TrapResult:
    if load_average is None:
        return TrapResult(name="load", status="unknown", sentence="can't be read here")
    sentence = f"{show_number(load_average)} tasks wanted to run in the last minute; usable cores: {cores}"
    return _trap_result("load", sentence, Number(value=load_average), noisy=load_average > LOAD_PER_CORE * cores)
