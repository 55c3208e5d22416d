"""Join the processes of each configuration into one measurement: its figures with intervals, and its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from rigdyno.analyse.energy_figures import energy_figures, net_of
from rigdyno.analyse.phases import job_time, phases_over_processes
from rigdyno.analyse.process import CellData, ProcessFigures, analyse_process
from rigdyno.analyse.statistics import across_processes
from rigdyno.analyse.validity.verdict import Finding, check_precision, merge_findings, merge_over_processes, validity_of
from rigdyno.schema.estimate import Estimate, Missing, Validity
from rigdyno.schema.measured import EnergyFigures, KindFigures, Measurement
from rigdyno.schema.record import Completed, Facts, Outcome, RunRecord
from rigdyno.schema.spec import IDLE


def measurements(cells: Sequence[CellData]) -> list[Measurement]:
    """Return one measurement per configuration, in the order of first appearance; repeats are its processes."""
    groups: dict[str, list[CellData]] = {}
    for cell in cells:
        groups.setdefault(cell.record.spec.key(), []).append(cell)
    return [_measurement(group) for group in groups.values()]


def without_idle(found: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements net of the idle power, without the idle cell itself unless it is the only one."""
    idle = next((each for each in found if each.spec.workload == IDLE), None)
    others = [each for each in found if each.spec.workload != IDLE]
    if idle is None or not others:
        return list(found)
    drawn = idle.energy if idle.kinds else Missing(reason=f"the idle machine was not measured: {idle.why_missing()}")
    return [
        each
        if not isinstance(each.energy, EnergyFigures)
        else msgspec.structs.replace(each, energy=net_of(each.energy, drawn))
        for each in others
    ]


def _measurement(group: Sequence[CellData]) -> Measurement:
    records = tuple(cell.record for cell in group)
    processes = [analyse_process(cell) for cell in group if isinstance(cell.record.outcome, Completed)]
    kinds = _add_verdicts(_join_kinds([process.kinds for process in processes if process.kinds]), processes)
    facts = _facts(group)
    energy = energy_figures([each.energy for each in processes if each.energy is not None], facts.unit)
    return Measurement(
        spec=records[0].spec,
        records=records,
        outcome=_outcome(records),
        facts=facts,
        kinds=_add_energy(kinds, energy),
        validity=_validity(processes, kinds),
        soak=next((process.soak for process in processes if process.soak is not None), None),
        phases=phases_over_processes([process.phases for process in processes if process.phases is not None]),
        energy=energy,
        job=job_time([process.spent for process in processes if process.spent is not None]),
        usage=next((process.usage for process in processes if process.usage is not None), None),
    )


def _join_kinds(processes: Sequence[dict[str, KindFigures]]) -> dict[str, KindFigures]:
    """Keep the figures of a single process; of several, take the mean with the interval of the spread between them."""
    if len(processes) < 2:
        return processes[0] if processes else {}
    shared = [kind for kind in processes[0] if all(kind in process for process in processes)]
    return {kind: _mean_figures([process[kind] for process in processes]) for kind in shared}


def _mean_figures(figures: Sequence[KindFigures]) -> KindFigures:
    return KindFigures(
        throughput=_mean((figure.throughput for figure in figures), "processes' throughputs"),
        step_seconds=_mean((figure.step_seconds for figure in figures), "processes' medians"),
        steps=_mean((figure.steps for figure in figures if figure.steps is not None), "processes' step rates"),
        process_rates=tuple(figure.throughput.value for figure in figures),
        warm_up_seconds=fmean(figure.warm_up_seconds for figure in figures),
    )


def _mean(estimates: Iterable[Estimate], of: str) -> Estimate:
    found = list(estimates)
    return across_processes([estimate.value for estimate in found], found[0].unit, of=of)


def _add_verdicts(kinds: Mapping[str, KindFigures], processes: Sequence[ProcessFigures]) -> dict[str, KindFigures]:
    """Give each kind of step its own verdict where there are several kinds."""
    if len(kinds) < 2:
        return dict(kinds)
    found = {kind: merge_over_processes([each.by_kind.get(kind, []) for each in processes]) for kind in kinds}
    return {
        kind: msgspec.structs.replace(
            figures, validity=validity_of(merge_findings([*found[kind], *_spread(kind, figures, kinds, processes)]))
        )
        for kind, figures in kinds.items()
    }


def _add_energy(kinds: dict[str, KindFigures], energy: EnergyFigures | Missing | None) -> dict[str, KindFigures]:
    """Add the energy per item where there is one kind of step; several kinds take turns and share the energy."""
    if len(kinds) != 1 or not isinstance(energy, EnergyFigures) or isinstance(energy.per_item, Missing):
        return kinds
    return {kind: msgspec.structs.replace(figures, energy=energy.per_item) for kind, figures in kinds.items()}


def _validity(processes: Sequence[ProcessFigures], kinds: Mapping[str, KindFigures]) -> Validity | None:
    """Return the verdict over all kinds; None if no process completed."""
    if not processes:
        return None
    found = merge_over_processes([process.findings for process in processes])
    spread = [_spread(kind, figures, kinds, processes) for kind, figures in kinds.items()]
    return validity_of(merge_findings(finding for each in (found, *spread) for finding in each))


def _spread(
    kind: str, figures: KindFigures, kinds: Mapping[str, KindFigures], processes: Sequence[ProcessFigures]
) -> list[Finding]:
    """Return a finding if the processes differ too much."""
    if len(processes) < 2:
        return []
    name = f"processes' {kind} steps" if len(kinds) > 1 else "processes"
    found = check_precision(figures.throughput, name)
    return [] if found is None else [found]


def _outcome(records: Sequence[RunRecord]) -> Outcome:
    return next((record.outcome for record in records if not isinstance(record.outcome, Completed)), records[0].outcome)


def _facts(group: Sequence[CellData]) -> Facts:
    """Return the facts of a completed process if there is one: only that has built its workload to the end."""
    return next((cell for cell in group if isinstance(cell.record.outcome, Completed)), group[0]).facts
