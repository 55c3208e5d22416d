"""Turn the stored samples of one cell into the figures of that process group, with what the validity rules found.

A cell is one process, or the ranks of one job. `measurements.py` joins the cells of a configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from rigdyno.analyse.energy_figures import ProcessEnergy, disagreements, process_energy
from rigdyno.analyse.phases import JobSeconds, check_explained, job_seconds, phases_of
from rigdyno.analyse.soak import soak
from rigdyno.analyse.statistics import across_ranks, median_estimate, throughput_estimate
from rigdyno.analyse.steady import Steady, steady_window
from rigdyno.analyse.streams import (
    Rows,
    TimeRanBackwards,
    TimeSpan,
    by_meaning,
    check_telemetry,
    items,
    measured_from,
    pace_seconds,
    row_seconds,
    span_of,
    step_durations,
    streams,
)
from rigdyno.analyse.usage import usage_of
from rigdyno.analyse.validity.disturbances import throttled_cards
from rigdyno.analyse.validity.evidence import Evidence
from rigdyno.analyse.validity.rules import findings, over_ranks
from rigdyno.analyse.validity.verdict import Finding, check_precision, merge_findings
from rigdyno.base.errors import DamagedRun
from rigdyno.base.units import rate_unit, show_percent
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import KindFigures, Phases, Soak, Usage
from rigdyno.schema.metric import STEP_TIME, THROUGHPUT
from rigdyno.schema.record import COUNTED, UNNAMED, Completed, Facts, Quality, RunRecord
from rigdyno.schema.samples import Header
from rigdyno.schema.spec import IDLE, Participant, sampler_of

STEPS_OF_ONE = "the steps of one process"

Samples = tuple[Header, Rows]

Ranks = Sequence[tuple[Participant, dict[str, Rows]]]

T = TypeVar("T")


@dataclass(frozen=True)
class CellData:
    """The stored record and samples of one cell."""

    record: RunRecord
    steps: tuple[Samples, ...] = ()  # one per rank
    telemetry: tuple[Samples, ...] = ()  # one per node that was sampled
    phases: tuple[Samples, ...] = ()  # one per rank whose phases were timed

    @property
    def facts(self) -> Facts:
        return facts_of(self.record, [rows for _, rows in self.steps])

    def telemetry_of(self, who: Participant) -> Rows | None:
        """Return the telemetry of the participant's node by the same clock; times of other clocks can't be compared."""
        for header, rows in self.telemetry:
            if (header.participant.node, header.participant.clock) == (who.node, who.clock):
                return by_meaning(header.channels, rows)
        return None


class SteadyStream(NamedTuple):
    """The steps of one kind of one rank, and from where on they are steady."""

    who: Participant
    rows: Rows
    steady: Steady

    @property
    def kept(self) -> Rows:
        return self.rows[self.steady.start :]

    @property
    def warm_up_seconds(self) -> float:
        """Return how much longer the warm-up took than steady steps with as many items."""
        early, of_one = self.rows[: self.steady.start], row_seconds(self.kept).sum() / items(self.kept).sum()
        return float(row_seconds(early).sum() - items(early).sum() * of_one)


@dataclass(frozen=True)
class ProcessFigures:
    """The figures of one completed cell."""

    kinds: dict[str, KindFigures]
    findings: list[Finding]
    by_kind: dict[str, list[Finding]] = field(default_factory=dict)
    soak: Soak | None = None
    phases: Phases | None = None
    energy: ProcessEnergy | None = None
    spent: JobSeconds | None = None
    usage: Usage | None = None


def analyse_process(cell: CellData) -> ProcessFigures:
    """Return the figures of a cell. Damaged samples give a finding instead of an error: other cells are still shown."""
    try:
        for _, rows in cell.telemetry:
            check_telemetry(rows)
        ranks = [(header.participant, streams(header, rows)) for header, rows in cell.steps]
        names = dict.fromkeys(kind for _, rank in ranks for kind in rank)
        kinds = {kind: _steady_streams(ranks, kind) for kind in names}
        judged = [_analyse_kind(cell, kind, streams_of_kind, len(kinds)) for kind, streams_of_kind in kinds.items()]
        soaked = _soak(cell, ranks)
        phases = _phases(cell, list(kinds.values()))
        windows, telemetry = _windows(cell, list(kinds.values())), _comparable_telemetry(cell, list(kinds.values()))
        energy = _energy(telemetry, windows, [figure for figure, _ in judged])
        job = job_seconds(cell.record, cell.steps, cell.phases)
        usage = usage_of(cell.steps, cell.telemetry) if job is not None or _is_idle(cell) else None
    except TimeRanBackwards as error:
        return ProcessFigures({}, [Finding("INVALID", "clock_jumped", str(error))])
    except DamagedRun as error:
        return ProcessFigures({}, [Finding("INVALID", "damaged_samples", f"{cell.record.cell}: {error}")])
    if not judged:
        return ProcessFigures({}, [Finding("INVALID", "too_few_steps", "no step was recorded")])
    figures = {kind: figure for kind, (figure, _) in zip(kinds, judged, strict=True)}
    of_all = (
        _slowed_down(soaked) + check_explained(phases) + disagreements(energy) + throttled_cards(telemetry, windows)
    )
    by_kind = dict(zip(kinds, confirm_throttling([found for _, found in judged]), strict=True))
    everything = merge_findings(finding for found in (*by_kind.values(), of_all) for finding in found)
    judgements = {kind: found + of_all for kind, found in by_kind.items()}
    return ProcessFigures(figures, everything, judgements, soaked, phases, energy, job, usage)


def facts_of(record: RunRecord, steps: Iterable[Rows]) -> Facts:
    """Return the record's facts. If the unit has no name and the rows count more than steps, the unit is 'item'."""
    known = record.facts
    if known.unit != UNNAMED or not any(_counts_items(rows) for rows in steps):
        return known
    return msgspec.structs.replace(known, unit=COUNTED)


def _counts_items(rows: Rows) -> bool:
    """Tell whether some step was more than one item; counts that aren't valid are reported as damage elsewhere."""
    sound = (rows["items"] > 0) & np.isfinite(rows["items"])
    return bool(np.any(rows["items"][sound] != rows["steps"][sound]))


def steady_of(rows: Rows) -> Steady:
    """Return the steady window of a stream, without the meter's warm-up: blocks may have had another size there."""
    found = steady_window(pace_seconds(rows))
    return found._replace(start=max(found.start, measured_from(rows)))


def confirm_throttling(kinds: Sequence[Sequence[Finding]]) -> list[list[Finding]]:
    """Keep 'throttled' only if all kinds of step show it: they take turns, so a slower machine slows all of them."""
    if all(any(finding.code == "throttled" for finding in found) for found in kinds):
        return [list(found) for found in kinds]
    return [[_as_slowed_down(each) if each.code == "throttled" else each for each in found] for found in kinds]


def _as_slowed_down(finding: Finding) -> Finding:
    sentence = f"{finding.sentence.removeprefix('throttled: ')}, and other kinds of step didn't"
    return Finding("SUSPECT", "slowed_down", sentence)


def _is_idle(cell: CellData) -> bool:
    return cell.record.spec.workload == IDLE


def _steady_streams(ranks: Ranks, kind: str) -> list[SteadyStream]:
    return [SteadyStream(who, kinds[kind], steady_of(kinds[kind])) for who, kinds in ranks if kind in kinds]


def _analyse_kind(
    cell: CellData, kind: str, ranks: Sequence[SteadyStream], kinds: int
) -> tuple[KindFigures, list[Finding]]:
    unit = rate_unit(cell.facts.unit)
    rates = [throughput_estimate(items(rank.kept), row_seconds(rank.kept), unit) for rank in ranks]
    # Ranks step together, so the steps of one are the steps of all.
    steps = throughput_estimate(ranks[0].kept["steps"], row_seconds(ranks[0].kept), rate_unit("step"))
    medians = [median_estimate(step_durations(rank.kept), "s", of=STEPS_OF_ONE) for rank in ranks]
    name = f"{kind} steps" if kinds > 1 else "steps"
    found = over_ranks(
        [(rank.who, _judge_rank(cell, rank, rate, name)) for rank, rate in zip(ranks, rates, strict=True)]
    )
    rate, step = across_ranks(THROUGHPUT, rates), across_ranks(STEP_TIME, medians)
    longest = max(rank.warm_up_seconds for rank in ranks)
    return KindFigures(
        throughput=rate, step_seconds=step, steps=steps, process_rates=(rate.value,), warm_up_seconds=longest
    ), found


def _judge_rank(cell: CellData, rank: SteadyStream, rate: Estimate, steps_name: str) -> list[Finding]:
    too_wide = check_precision(rate, steps_name)
    return findings(_evidence(cell, rank, steps_name)) + ([] if too_wide is None else [too_wide])


def _evidence(cell: CellData, rank: SteadyStream, steps_name: str) -> Evidence:
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
    """Return the soak of the first rank's first kind: heat slows all ranks and kinds alike."""
    if cell.record.spec.budget.stop != "clock" or not ranks or not ranks[0][1]:
        return None
    who, kinds = ranks[0]
    return soak(next(iter(kinds.values())), cell.telemetry_of(who))


def _slowed_down(soaked: Soak | None) -> list[Finding]:
    """Report a loss that can't be called throttling, because the soak was short or other processes were busy."""
    if soaked is None or soaked.throttled or not soaked.fell:
        return []
    kept = show_percent(soaked.sustained / soaked.burst)
    return [Finding("SUSPECT", "slowed_down", f"at the end the rate was {kept} of what it was at first")]


def _phases(cell: CellData, kinds: Sequence[Sequence[SteadyStream]]) -> Phases | None:
    """Return the phases of a training step; None if there are several kinds of step, or ranks without phases."""
    timed = {header.participant.rank: streams(header, rows) for header, rows in cell.phases}
    steady = {rank.who.rank: rank.kept for kind in kinds[:1] for rank in kind}
    if len(kinds) != 1 or not timed or timed.keys() != steady.keys():
        return None
    return phases_of(_without_none(steady), _without_none(timed), rate_unit(cell.facts.unit))


def _without_none(by_rank: Mapping[int | None, T]) -> dict[int, T]:
    return {rank: value for rank, value in by_rank.items() if rank is not None}


def _windows(cell: CellData, kinds: Sequence[Sequence[SteadyStream]]) -> dict[int, TimeSpan]:
    """Return, by node, the time in which all of its ranks are steady; of an idle cell, all of the time."""
    spans: dict[int, list[TimeSpan]] = {}
    for rank in (rank for kind in kinds for rank in kind if len(rank.kept)):
        rows = rank.rows if _is_idle(cell) else rank.kept
        spans.setdefault(rank.who.node, []).append(span_of(rows))
    return {
        node: TimeSpan(max(each.start_ns for each in found), min(each.end_ns for each in found))
        for node, found in spans.items()
    }


def _comparable_telemetry(cell: CellData, kinds: Sequence[Sequence[SteadyStream]]) -> list[Samples]:
    """Return the telemetry by the clocks of the ranks; times of other clocks can't be compared with the steps."""
    clocks = {rank.who.clock for kind in kinds for rank in kind}
    return [samples for samples in cell.telemetry if samples[0].participant.clock in clocks]


def _energy(
    telemetry: Sequence[Samples], windows: Mapping[int, TimeSpan], figures: Sequence[KindFigures]
) -> ProcessEnergy | None:
    (only,) = figures if len(figures) == 1 else (None,)
    steps = None if only is None or only.steps is None else only.steps.value
    return process_energy(telemetry, windows, None if only is None else only.throughput.value, steps)
