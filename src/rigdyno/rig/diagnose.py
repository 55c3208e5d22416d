"""Everything that `rigdyno doctor` wants to know, in one go."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from rigdyno.clock import Clock
from rigdyno.contracts import Probe
from rigdyno.rig.devices import find_accelerators
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.meters import check_meter
from rigdyno.rig.noise import noise_now
from rigdyno.rig.system import describe_system
from rigdyno.rig.traps import TRAPS
from rigdyno.schema.diagnosis import Diagnosis, Finding
from rigdyno.schema.system import System

Progress = Callable[[str], None]  # told what is being looked at


def diagnose(probes: Mapping[str, Probe], clock: Clock, quick: bool, progress: Progress) -> Diagnosis:
    environment = describe_environment()  # first: its load average should not be ours
    progress("asking frameworks for their devices")
    found = find_accelerators()
    system = describe_system(found.accelerators)
    progress("reading the meters")
    meters = tuple(check_meter(name, probe, clock) for name, probe in probes.items())
    progress("listening for noise")
    noise = _noise(probes, clock, system, environment.load_average)
    return Diagnosis(
        system=system,
        environment=msgspec.structs.replace(environment, threads=found.threads, framework=found.versions),
        accelerators_reason=found.reason,
        meters=meters,
        noise=noise,
        traps=None if quick else tuple(_try_traps(progress)),
    )


def _noise(
    probes: Mapping[str, Probe], clock: Clock, system: System, load_average: float | None
) -> tuple[Finding, ...]:
    if "host" not in probes:
        return (Finding(name="noise", status="unknown", sentence="the host probe is not installed"),)
    return noise_now(probes["host"], clock, system.cpu.usable_cores, load_average)


def _try_traps(progress: Progress) -> list[Finding]:
    findings = []
    for name, attempt in TRAPS.items():
        progress(f"trying {name}")
        findings.append(attempt())
    return findings
