"""The privacy suite: what each kind of privacy costs, at the largest batch that fits into a stated memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.contracts import SuiteRequest, Wanted
from rigdyno.errors import UsageError
from rigdyno.plan.user_file import require_function
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import OF_UPDATE, Budget, RunSpec, Value
from rigdyno.schema.view import Presentation
from rigdyno.suites import _privacy_audit as audits
from rigdyno.suites import _privacy_figures as figures
from rigdyno.suites import _privacy_tables as tables
from rigdyno.suites import _privacy_until as until
from rigdyno.suites import _privacy_words as words
from rigdyno.suites._privacy_systems import BATCH, EFFICIENTNET, OWN, System, wanted

SECONDS = 8.0
SMALL_BYTES, CHEAP_BYTES = 1_000_000_000, 900_000_000  # of the declared smaller form, on a CPU
PRESETS_BYTES = (8_000_000_000, 16_000_000_000, 40_000_000_000)  # of the document: RAM, V100, A100
EPOCH = 50_000
EPOCH_SECONDS = 1200.0  # of whole ones, to plan by
NOISE = 1.0


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """EfficientNet-B0 on CIFAR-100, plain and under each DP engine, at the largest batch that fits"""

    excerpt: ClassVar[bool] = False
    takes: ClassVar[tuple[str, ...]] = ("memory", "workload", "audit", "until")

    def cells(self, request: SuiteRequest) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            instead = "`rigdyno run efficientnet_cifar100 --update dp_fast --soak 10m`"
            raise UsageError(f"the privacy suite has no soak; try {instead}", key="soak")
        if request.until is not None:
            return _until(request)
        workload = OWN if request.workload else EFFICIENTNET
        asked = wanted(workload, full=request.full, cheap=request.cheap)
        specs = [_spec(request, system, workload) for system in asked]
        audited = audits.cells(asked, request) if request.audit else []
        return [Wanted(spec, request.repeat or 1, request.repeat or 1) for spec in (*specs, *audited)]

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        if until.is_asked(measurements):
            return Presentation(
                title="privacy: what it costs at equal utility",
                tables=tuple(until.tables(measurements)),
                figures=until.figures(measurements),
                closing=until.closing(measurements),
            )
        shown = tables.shown(measurements)
        found = (tables.measured(shown), audits.table(measurements), *tables.published())
        return Presentation(
            title="privacy: what it costs, at the largest batch that fits",
            headline=words.headline(shown),
            tables=tuple(table for table in found if table is not None and table.rows),
            figures=figures.all_of(shown),
            standing=words.introduction(shown),
            closing=words.closing(shown),
        )


def _until(request: SuiteRequest) -> Sequence[Wanted]:
    for name in ("memory_bytes", "workload", "audit", "full"):
        if getattr(request, name):
            flag = name.partition("_")[0]
            raise UsageError(f"--until has its own data, batches and length: leave out --{flag}", key=flag)
    return until.cells(request)


def _spec(request: SuiteRequest, system: System, workload: str) -> RunSpec:
    return RunSpec(
        workload=workload,
        options={**_own(request, system), **_of_update(system)},
        largest={BATCH: memory_bytes(request)},
        update=system.update,
        device=request.device,
        threads=request.threads,
        budget=Budget(seconds=EPOCH_SECONDS, job_items=EPOCH) if request.full else Budget(seconds=SECONDS),
    )


def _own(request: SuiteRequest, system: System) -> dict[str, Value]:
    if request.workload is None:
        return dict(system.options)
    if ".py:" not in request.workload:
        raise UsageError(
            f"--workload takes FILE.py:FUNCTION, not '{request.workload}'; for a workload of the catalogue, try "
            "`rigdyno run NAME --set batch_size=largest --memory 1GB --update dp_fast`",
            key="workload",
        )
    require_function(request.workload)
    file, _, function = request.workload.rpartition(":")
    return {"file": file, "function": function}


def _of_update(system: System) -> dict[str, Value]:
    if system.update == "plain":
        return {}
    mode: dict[str, Value] = {} if system.mode is None else {f"{OF_UPDATE}mode": system.mode}
    return {f"{OF_UPDATE}noise_multiplier": NOISE, f"{OF_UPDATE}group_norm": True, **mode}


def memory_bytes(request: SuiteRequest) -> int:
    """As asked for; else small on a CPU, and of the document's sizes the largest that the device has."""
    if request.memory_bytes is not None:
        return request.memory_bytes
    if request.device == "cpu":
        return PRESETS_BYTES[0] if request.full else CHEAP_BYTES if request.cheap else SMALL_BYTES
    has = [each.memory_bytes for each in request.system.accelerators_for(request.device) if each.memory_bytes]
    return max((size for size in PRESETS_BYTES if has and size <= min(has)), default=PRESETS_BYTES[0])
