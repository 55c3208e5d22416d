"""From the stored samples of all cells to the figures of each configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from rigdyno.analyse.cards import throttled_cards
from rigdyno.analyse.evidence import Evidence
from rigdyno.analyse.job import Spent, job_time, spent
from rigdyno.analyse.joules import ProcessEnergy, disagreements, energy_figures, net_of, process_energy
from rigdyno.analyse.phases import phases_of, phases_over_processes, unexplained
from rigdyno.analyse.soak import soak
from rigdyno.analyse.statistics import across_processes, across_ranks, median_estimate, throughput_estimate
from rigdyno.analyse.steady import Steady, steady_window
from rigdyno.analyse.streams import (
    Rows,
    TimeRanBackwards,
    check_telemetry,
    items,
    measured_from,
    pace_seconds,
    row_seconds,
    step_seconds,
    streams,
)
from rigdyno.analyse.telemetry import Span, by_meaning, span_of
from rigdyno.analyse.usage import usage_of
from rigdyno.analyse.validity import findings, over_ranks
from rigdyno.analyse.verdict import (
    Finding,
    imprecise,
    merged,
    merged_over_processes,
    validity_of,
)
from rigdyno.errors import DamagedRun
from rigdyno.schema.energy import EnergyFigures
from rigdyno.schema.estimate import Estimate, Missing, Validity
from rigdyno.schema.measured import KindFigures, Measurement, Phases, Soak, Usage
from rigdyno.schema.metric import STEP_TIME, THROUGHPUT
from rigdyno.schema.participant import Participant, sampler_of
from rigdyno.schema.record import COUNTED, UNNAMED, Completed, Facts, Outcome, Quality, RunRecord
from rigdyno.schema.samples import Header
from rigdyno.schema.spec import IDLE
from rigdyno.units import rate_unit, show_percent

Samples = tuple[Header, Rows]
T = TypeVar("T")

STEPS_OF_ONE = "the steps of one process"


@dataclass(frozen=True)
class CellData:
    """One process group, as it was stored."""

    record: RunRecord
    steps: tuple[Samples, ...] = ()  # one a rank
    telemetry: tuple[Samples, ...] = ()  # one a node that was sampled
    phases: tuple[Samples, ...] = ()  # one a rank, where they were timed

    @property
    def facts(self) -> Facts:
        return facts_of(self.record, [rows for _, rows in self.steps])

    def telemetry_of(self, who: Participant) -> Rows | None:
        """Of the node that it ran on, by the same clock: times of another one mean nothing here."""
        for header, rows in self.telemetry:
            if (header.participant.node, header.participant.clock) == (who.node, who.clock):
                return by_meaning(header.channels, rows)
        return None


class Settled(NamedTuple):
    """The steps of one kind of one rank, and where they are steady."""

    who: Participant
    rows: Rows
    steady: Steady

    @property
    def kept(self) -> Rows:
        return self.rows[self.steady.start :]

    @property
    def warm_up_seconds(self) -> float:
        """By which the steps before the steady ones took longer than as many of those."""
        early, of_one = self.rows[: self.steady.start], row_seconds(self.kept).sum() / items(self.kept).sum()
        return float(row_seconds(early).sum() - items(early).sum() * of_one)


@dataclass(frozen=True)
class Process:
    """What one completed cell gives."""

    kinds: dict[str, KindFigures]
    findings: list[Finding]
    by_kind: dict[str, list[Finding]] = field(default_factory=dict)
    soak: Soak | None = None
    phases: Phases | None = None
    energy: ProcessEnergy | None = None
    spent: Spent | None = None
    usage: Usage | None = None


def facts_of(record: RunRecord, steps: Iterable[Rows]) -> Facts:
    """With the unit as the rows tell it: a count that nobody named is of items, not of steps."""
    known = record.facts
    if known.unit != UNNAMED or not any(_counts(rows) for rows in steps):
        return known
    return msgspec.structs.replace(known, unit=COUNTED)


def _counts(rows: Rows) -> bool:
    """Whether a step was more than one item somewhere; what is no count at all is damage, and found out elsewhere."""
    sound = (rows["items"] > 0) & np.isfinite(rows["items"])
    return bool(np.any(rows["items"][sound] != rows["steps"][sound]))


def measurements(cells: Sequence[CellData]) -> list[Measurement]:
    """One a configuration, in the order of first appearance; repeats of it are its processes."""
    groups: dict[str, list[CellData]] = {}
    for cell in cells:
        groups.setdefault(cell.record.spec.key(), []).append(cell)
    return [_measurement(group) for group in groups.values()]


def without_idle(found: Sequence[Measurement]) -> list[Measurement]:
    """Net of what the idle rig drew, which is no figure of its own beside others."""
    idle = next((each for each in found if each.spec.workload == IDLE), None)
    others = [each for each in found if each.spec.workload != IDLE]
    if idle is None or not others:
        return list(found)
    drawn = idle.energy if idle.kinds else Missing(reason=f"the idle rig was not measured: {idle.why_missing()}")
    return [
        each
        if not isinstance(each.energy, EnergyFigures)
        else msgspec.structs.replace(each, energy=net_of(each.energy, drawn))
        for each in others
    ]


def steady_of(rows: Rows) -> Steady:
    """The steady window of one stream, never with the meter's own warm-up: blocks may have had another size there."""
    found = steady_window(pace_seconds(rows))
    return found._replace(start=max(found.start, measured_from(rows)))


def _measurement(group: Sequence[CellData]) -> Measurement:
    records = tuple(cell.record for cell in group)
    processes = [process_figures(cell) for cell in group if isinstance(cell.record.outcome, Completed)]
    kinds = _judged(_over_processes([process.kinds for process in processes if process.kinds]), processes)
    facts = _facts(group)
    energy = energy_figures([each.energy for each in processes if each.energy is not None], facts.unit)
    return Measurement(
        spec=records[0].spec,
        records=records,
        outcome=_outcome(records),
        facts=facts,
        kinds=_with_energy(kinds, energy),
        validity=_validity(processes, kinds),
        soak=next((process.soak for process in processes if process.soak is not None), None),
        phases=phases_over_processes([process.phases for process in processes if process.phases is not None]),
        energy=energy,
        job=job_time([process.spent for process in processes if process.spent is not None]),
        usage=next((process.usage for process in processes if process.usage is not None), None),
    )


def _with_energy(kinds: dict[str, KindFigures], energy: EnergyFigures | Missing | None) -> dict[str, KindFigures]:
    """Of one kind of step alone: those that take turns share what is drawn."""
    if len(kinds) != 1 or not isinstance(energy, EnergyFigures) or isinstance(energy.per_item, Missing):
        return kinds
    return {kind: msgspec.structs.replace(figures, energy=energy.per_item) for kind, figures in kinds.items()}


def _validity(processes: Sequence[Process], kinds: Mapping[str, KindFigures]) -> Validity | None:
    """Of all kinds together."""
    if not processes:
        return None
    found = merged_over_processes([process.findings for process in processes])
    spread = [_spread(kind, figures, kinds, processes) for kind, figures in kinds.items()]
    return validity_of(merged(finding for each in (found, *spread) for finding in each))


def _judged(kinds: Mapping[str, KindFigures], processes: Sequence[Process]) -> dict[str, KindFigures]:
    """Each with its own verdict, where there are several."""
    if len(kinds) < 2:
        return dict(kinds)
    found = {kind: merged_over_processes([each.by_kind.get(kind, []) for each in processes]) for kind in kinds}
    return {
        kind: msgspec.structs.replace(
            figures, validity=validity_of(merged([*found[kind], *_spread(kind, figures, kinds, processes)]))
        )
        for kind, figures in kinds.items()
    }


def _spread(
    kind: str, figures: KindFigures, kinds: Mapping[str, KindFigures], processes: Sequence[Process]
) -> list[Finding]:
    """Whether its processes differ too much."""
    if len(processes) < 2:
        return []
    name = f"processes' {kind} steps" if len(kinds) > 1 else "processes"
    found = imprecise(figures.throughput, name)
    return [] if found is None else [found]


def _outcome(records: Sequence[RunRecord]) -> Outcome:
    return next((record.outcome for record in records if not isinstance(record.outcome, Completed)), records[0].outcome)


def _facts(group: Sequence[CellData]) -> Facts:
    """Of a process that built its workload to the end, if there is one."""
    return next((cell for cell in group if isinstance(cell.record.outcome, Completed)), group[0]).facts


def process_figures(cell: CellData) -> Process:
    """Damaged samples give no figure and a reason, so that other cells are still shown."""
    try:
        for _, rows in cell.telemetry:
            check_telemetry(rows)
        ranks = [(header.participant, streams(header, rows)) for header, rows in cell.steps]
        kinds = {kind: _settled(ranks, kind) for kind in dict.fromkeys(kind for _, rank in ranks for kind in rank)}
        judged = [_kind(cell, kind, settled, len(kinds)) for kind, settled in kinds.items()]
        soaked = _soak(cell, ranks)
        phases = _phases(cell, list(kinds.values()))
        windows, sampled = _windows(cell, list(kinds.values())), _sampled(cell, list(kinds.values()))
        energy = _energy(sampled, windows, [figure for figure, _ in judged])
        job = spent(cell.record, cell.steps, cell.phases)
        usage = usage_of(cell.steps, cell.telemetry) if job is not None or _is_idle(cell) else None
    except TimeRanBackwards as error:
        return Process({}, [Finding("INVALID", "clock_jumped", str(error))])
    except DamagedRun as error:
        return Process({}, [Finding("INVALID", "damaged_samples", f"{cell.record.cell}: {error}")])
    if not judged:
        return Process({}, [Finding("INVALID", "too_few_steps", "no step was recorded")])
    figures = {kind: figure for kind, (figure, _) in zip(kinds, judged, strict=True)}
    of_all = _fallen(soaked) + unexplained(phases) + disagreements(energy) + throttled_cards(sampled, windows)
    by_kind = dict(zip(kinds, throttled_alike([found for _, found in judged]), strict=True))
    everything = merged(finding for found in (*by_kind.values(), of_all) for finding in found)
    judgements = {kind: found + of_all for kind, found in by_kind.items()}
    return Process(figures, everything, judgements, soaked, phases, energy, job, usage)


def _is_idle(cell: CellData) -> bool:
    return cell.record.spec.workload == IDLE


def throttled_alike(kinds: Sequence[Sequence[Finding]]) -> list[list[Finding]]:
    """Kinds of step take turns: what slows the machine slows all of them. One that falls alone has another reason."""
    if all(any(finding.code == "throttled" for finding in found) for found in kinds):
        return [list(found) for found in kinds]
    return [[_fell_alone(each) if each.code == "throttled" else each for each in found] for found in kinds]


def _fell_alone(finding: Finding) -> Finding:
    sentence = f"{finding.sentence.removeprefix('throttled: ')}, and other kinds of step didn't"
    return Finding("SUSPECT", "slowed_down", sentence)


Ranks = Sequence[tuple[Participant, dict[str, Rows]]]


def _settled(ranks: Ranks, kind: str) -> list[Settled]:
    return [Settled(who, kinds[kind], steady_of(kinds[kind])) for who, kinds in ranks if kind in kinds]


def _kind(cell: CellData, kind: str, ranks: Sequence[Settled], kinds: int) -> tuple[KindFigures, list[Finding]]:
    unit = rate_unit(cell.facts.unit)
    rates = [throughput_estimate(items(rank.kept), row_seconds(rank.kept), unit) for rank in ranks]
    # Ranks step together, so the steps of one are the steps of all.
    steps = throughput_estimate(ranks[0].kept["steps"], row_seconds(ranks[0].kept), rate_unit("step"))
    medians = [median_estimate(step_seconds(rank.kept), "s", of=STEPS_OF_ONE) for rank in ranks]
    name = f"{kind} steps" if kinds > 1 else "steps"
    found = over_ranks([(rank.who, _of_rank(cell, rank, rate, name)) for rank, rate in zip(ranks, rates, strict=True)])
    rate, step = across_ranks(THROUGHPUT, rates), across_ranks(STEP_TIME, medians)
    longest = max(rank.warm_up_seconds for rank in ranks)
    return KindFigures(
        throughput=rate, step_seconds=step, steps=steps, process_rates=(rate.value,), warm_up_seconds=longest
    ), found


def _of_rank(cell: CellData, rank: Settled, rate: Estimate, steps_name: str) -> list[Finding]:
    too_wide = imprecise(rate, steps_name)
    return findings(_evidence(cell, rank, steps_name)) + ([] if too_wide is None else [too_wide])


def _evidence(cell: CellData, rank: Settled, steps_name: str) -> Evidence:
    record, telemetry = cell.record, cell.telemetry_of(rank.who)
    return Evidence(
        rows=rank.rows,
        steady=rank.steady,
        telemetry=telemetry,
        unsampled=telemetry is None and bool(cell.telemetry),
        quality=record.outcome.quality if isinstance(record.outcome, Completed) else Quality(),
        sampler_exit_code=record.exit_codes.get(sampler_of(rank.who.node).id),
        steps_name=steps_name,
        has_budget=record.spec.has_budget,
        memory_bytes=record.memory_bytes,
        largest=record.spec.largest,
    )


def _soak(cell: CellData, ranks: Ranks) -> Soak | None:
    """Of the first rank's first kind: what heats one heats all."""
    if cell.record.spec.budget.stop != "clock" or not ranks or not ranks[0][1]:
        return None
    who, kinds = ranks[0]
    return soak(next(iter(kinds.values())), cell.telemetry_of(who))


def _phases(cell: CellData, kinds: Sequence[Sequence[Settled]]) -> Phases | None:
    """Of training, which has one kind of step."""
    timed = {header.participant.rank: streams(header, rows) for header, rows in cell.phases}
    steady = {rank.who.rank: rank.kept for kind in kinds[:1] for rank in kind}
    if len(kinds) != 1 or not timed or timed.keys() != steady.keys():
        return None
    return phases_of(_numbered(steady), _numbered(timed), rate_unit(cell.facts.unit))


def _windows(cell: CellData, kinds: Sequence[Sequence[Settled]]) -> dict[int, Span]:
    """By node the time that is steady for all of its ranks; an idle rig is idle all the time."""
    spans: dict[int, list[Span]] = {}
    for rank in (rank for kind in kinds for rank in kind if len(rank.kept)):
        rows = rank.rows if _is_idle(cell) else rank.kept
        spans.setdefault(rank.who.node, []).append(span_of(rows))
    return {
        node: Span(max(each.start_ns for each in found), min(each.end_ns for each in found))
        for node, found in spans.items()
    }


def _sampled(cell: CellData, kinds: Sequence[Sequence[Settled]]) -> list[Samples]:
    """By clocks that ranks have as well: times of another one mean nothing."""
    clocks = {rank.who.clock for kind in kinds for rank in kind}
    return [samples for samples in cell.telemetry if samples[0].participant.clock in clocks]


def _energy(
    telemetry: Sequence[Samples], windows: Mapping[int, Span], figures: Sequence[KindFigures]
) -> ProcessEnergy | None:
    (only,) = figures if len(figures) == 1 else (None,)
    steps = None if only is None or only.steps is None else only.steps.value
    return process_energy(telemetry, windows, None if only is None else only.throughput.value, steps)


def _numbered(by_rank: Mapping[int | None, T]) -> dict[int, T]:
    return {rank: value for rank, value in by_rank.items() if rank is not None}


def _fallen(soaked: Soak | None) -> list[Finding]:
    """A loss that the throttling rule can't vouch for, because the soak was short or others were busy too."""
    if soaked is None or soaked.throttled or not soaked.fell:
        return []
    kept = show_percent(soaked.sustained / soaked.burst)
    return [Finding("SUSPECT", "slowed_down", f"at the end the rate was {kept} of what it was at first")]


def _over_processes(processes: Sequence[dict[str, KindFigures]]) -> dict[str, KindFigures]:
    """One process speaks for itself; of several, the spread between them is what counts."""
    if len(processes) < 2:
        return processes[0] if processes else {}
    shared = [kind for kind in processes[0] if all(kind in process for process in processes)]
    return {kind: _repeated([process[kind] for process in processes]) for kind in shared}


def _repeated(figures: Sequence[KindFigures]) -> KindFigures:
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
