"""The auditor beside the private updates: cells that try to refute what each claims, and their table."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.contracts import SuiteRequest
from rigdyno.schema.estimate import Missing, Number
from rigdyno.schema.measured import Measurement
from rigdyno.schema.metric import COUNT, EPSILON
from rigdyno.schema.record import Completed
from rigdyno.schema.spec import Budget, RunSpec, Value
from rigdyno.schema.view import Column, Entry, Row, Table, Text
from rigdyno.suites._privacy_systems import System

AUDIT = "dp_audit"
RUNS, FULL_RUNS = 300, 1000
RUN_SECONDS = 0.05  # of one audited training, to plan by


def cells(systems: Sequence[System], request: SuiteRequest) -> list[RunSpec]:
    runs = FULL_RUNS if request.full else RUNS
    return [
        RunSpec(
            workload=AUDIT,
            options=_options(system, runs),
            device="cpu",
            threads=1,
            budget=Budget(seconds=runs * RUN_SECONDS, job_steps=1),
        )
        for system in systems
        if system.update != "plain"
    ]


def _options(system: System, runs: int) -> dict[str, Value]:
    mode: dict[str, Value] = {} if system.mode is None else {"mode": system.mode}
    return {"update": system.update, **mode, "runs": runs}


def table(measurements: Sequence[Measurement]) -> Table | None:
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
        rows=tuple(_row(each) for each in found),
        notes=("an audit finds faults, not their absence; at least: what it showed with 95 % confidence",),
    )


def _row(each: Measurement) -> Row:
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
