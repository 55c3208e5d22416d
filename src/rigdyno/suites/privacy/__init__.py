"""The privacy suite: the cost of each kind of privacy, at the largest batch that fits into a given memory.

With the option `audit`, further cells try to refute the epsilon that each private update claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.base.errors import UsageError
from rigdyno.contracts import Machine, Suite, Wanted
from rigdyno.contracts.options import Share
from rigdyno.plan.request import Request
from rigdyno.plan.user_file import require_function
from rigdyno.schema.estimate import Missing, Number
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import COUNT, EPSILON
from rigdyno.schema.record import Completed
from rigdyno.schema.spec import OF_UPDATE, Budget, RunSpec, Value
from rigdyno.schema.view import Column, Entry, Presentation, Row, Table, Text
from rigdyno.suites.privacy import figures, tables, until, words
from rigdyno.suites.privacy.systems import BATCH, EFFICIENTNET, OWN, PrivacySystem, select_systems

SECONDS = 8.0

SMALL_BYTES, CHEAP_BYTES = 1_000_000_000, 900_000_000  # memory of the smaller default on a CPU

PRESETS_BYTES = (8_000_000_000, 16_000_000_000, 40_000_000_000)  # sizes in the document: RAM, V100, A100

EPOCH = 50_000

EPOCH_SECONDS = 1200.0  # of a whole epoch; an estimate for planning

NOISE = 1.0

AUDIT = "dp_audit"

AUDIT_RUNS, FULL_AUDIT_RUNS = 300, 1000

AUDIT_RUN_SECONDS = 0.05  # of one audited training; an estimate for planning


@dataclass(frozen=True, kw_only=True)
class PrivacySuite(Suite):
    """EfficientNet-B0 on CIFAR-100, plain and under each DP engine, at the largest batch that fits"""

    searches_memory: ClassVar[bool] = True

    workload: str = ""  # FILE.py:FUNCTION of your own training, which returns model, loss, optimizer and batches
    until: Share = 0.0  # accuracy to which each update trains; 0: time one epoch instead
    audit: bool = False  # audit each private update: try to refute its epsilon

    def cells(self, request: Request, machine: Machine) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            instead = "`rigdyno run efficientnet_cifar100 --update dp_fast --soak 10m`"
            raise UsageError(f"the privacy suite has no soak; try {instead}", key="soak")
        if self.until:
            self._require_alone(request)
            return until.cells(self.until, request, machine)
        workload = OWN if self.workload else EFFICIENTNET
        asked = select_systems(workload, full=request.full, cheap=request.cheap)
        specs = [_spec(request, machine, system, workload, self._options(system)) for system in asked]
        audited = _audit_specs(asked, request) if self.audit else []
        return [Wanted(spec, request.repeat or 1, request.repeat or 1) for spec in (*specs, *audited)]

    def _require_alone(self, request: Request) -> None:
        """Training to an accuracy has its own data, batches and length."""
        given = {"memory": request.memory_bytes, "full": request.full}
        options = {"workload": self.workload, "audit": self.audit}
        wrong = [(f"--{name}", name) for name, value in given.items() if value]
        wrong += [(f"--set {name}", f"set.{name}") for name, value in options.items() if value]
        if wrong:
            flag, key = wrong[0]
            raise UsageError(f"until has its own data, batches and length: leave out {flag}", key=key)

    def _options(self, system: PrivacySystem) -> dict[str, Value]:
        if not self.workload:
            return dict(system.options)
        if ".py:" not in self.workload:
            raise UsageError(
                f"workload takes FILE.py:FUNCTION, not '{self.workload}'; for a workload of the catalogue, try "
                "`rigdyno run NAME --set batch_size=largest --memory 1GB --update dp_fast`",
                key="set.workload",
            )
        require_function(self.workload)
        file, _, function = self.workload.rpartition(":")
        return {"file": file, "function": function}

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        if until.is_asked(measurements):
            return Presentation(
                title="privacy: what it costs at equal utility",
                tables=tuple(until.tables(measurements)),
                figures=until.make_figures(measurements),
                closing=until.closing(measurements),
            )
        results = tables.collect_results(measurements)
        found = (tables.results_table(results), _audit_table(measurements), *tables.published_tables())
        return Presentation(
            title="privacy: what it costs, at the largest batch that fits",
            headline=words.headline(results),
            tables=tuple(table for table in found if table is not None and table.rows),
            figures=figures.make_figures(results),
            standing=words.introduction(results),
            closing=words.closing(results),
        )


def _spec(
    request: Request, machine: Machine, system: PrivacySystem, workload: str, options: dict[str, Value]
) -> RunSpec:
    return RunSpec(
        workload=workload,
        options={**options, **_update_options(system)},
        largest={BATCH: memory_bytes(request, machine)},
        update=system.update,
        device=machine.device,
        threads=request.threads,
        budget=Budget(seconds=EPOCH_SECONDS, job_items=EPOCH) if request.full else Budget(seconds=SECONDS),
    )


def _update_options(system: PrivacySystem) -> dict[str, Value]:
    if system.update == "plain":
        return {}
    mode: dict[str, Value] = {} if system.mode is None else {f"{OF_UPDATE}mode": system.mode}
    return {f"{OF_UPDATE}noise_multiplier": NOISE, f"{OF_UPDATE}group_norm": True, **mode}


def memory_bytes(request: Request, machine: Machine) -> int:
    """Return the requested memory; else a small default on a CPU, or the largest published size that the GPU has."""
    if request.memory_bytes is not None:
        return request.memory_bytes
    if machine.device == "cpu":
        return PRESETS_BYTES[0] if request.full else CHEAP_BYTES if request.cheap else SMALL_BYTES
    has = [each.memory_bytes for each in machine.system.accelerators_for(machine.device) if each.memory_bytes]
    return max((size for size in PRESETS_BYTES if has and size <= min(has)), default=PRESETS_BYTES[0])


def _audit_specs(systems: Sequence[PrivacySystem], request: Request) -> list[RunSpec]:
    runs = FULL_AUDIT_RUNS if request.full else AUDIT_RUNS
    return [
        RunSpec(
            workload=AUDIT,
            options=_audit_options(system, runs),
            device="cpu",
            threads=1,
            budget=Budget(seconds=runs * AUDIT_RUN_SECONDS, job_steps=1),
        )
        for system in systems
        if system.update != "plain"
    ]


def _audit_options(system: PrivacySystem, runs: int) -> dict[str, Value]:
    mode: dict[str, Value] = {} if system.mode is None else {"mode": system.mode}
    return {"update": system.update, **mode, "runs": runs}


def _audit_table(measurements: Sequence[Measurement]) -> Table | None:
    found = [each for each in measurements if each.spec.workload == AUDIT]
    if not found:
        return None
    return Table(
        title="Held against the auditor: canaries in a small network, two steps of Poisson batches",
        columns=(
            Column(key="update", title="update", numeric=False),
            Column(key="claimed", title="claims", metric=EPSILON),
            Column(key="shown", title="at least", metric=EPSILON),
            Column(key="runs", title="runs", metric=COUNT),
            Column(key="verdict", title="the claim", numeric=False),
        ),
        rows=tuple(_audit_row(each) for each in found),
        notes=("an audit finds faults, not their absence; at least: what it showed with 95 % confidence",),
    )


def _audit_row(each: Measurement) -> Row:
    options = each.spec.resolved
    name = " ".join(str(options[key]) for key in ("update", "mode") if options.get(key))
    entries: dict[str, Entry] = {"update": Text(text=name), "runs": Number(value=int(options.get("runs", 0)))}
    quality = each.outcome.quality if isinstance(each.outcome, Completed) else None
    if quality is None or quality.shown_epsilon is None:
        entries["shown"] = Missing(reason=each.why_missing())
        return Row(entries=entries, status=each.status)
    entries["shown"] = Number(value=quality.shown_epsilon)
    claimed = each.facts.settled.get("claimed_epsilon")
    if isinstance(claimed, float):
        entries["claimed"] = Number(value=claimed)
    entries["verdict"] = Text(text="not refuted" if quality.correct else "REFUTED")
    return Row(entries=entries, facts=each.records[-1].columns())
