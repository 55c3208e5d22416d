"""What the tries of a search say, from their records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from rigdyno.analyse.search import MOST, Try
from rigdyno.schema.measured import Attempt, Measurement
from rigdyno.schema.record import PHYSICAL_BATCH, Completed, Failed, RunRecord, Skipped
from rigdyno.schema.spec import BATCHES

THOROUGH_STEPS = 30  # allocators keep more after a while than after the first steps


def attempts_of(records: Sequence[RunRecord], names: Collection[str], option: str, allowed: int) -> list[Attempt]:
    """Of the cells with these names, in the order that they were made in."""
    told = [record for record in records if record.attempt_of in names and _is_told(record, option)]
    return [_attempt(record, option, allowed, _smallest_that_ran(told, option)) for record in told]


def as_tries(attempts: Sequence[Attempt]) -> list[Try]:
    return [Try(each.value, each.fits, each.memory_bytes, each.thorough) for each in attempts]


def most_of(records: Sequence[RunRecord], names: Collection[str], option: str) -> int:
    """A batch has at most all samples."""
    if option.rpartition(".")[2] not in BATCHES:
        return MOST
    epochs = (record.facts.epoch_items for record in records if record.attempt_of in names)
    return max(1, min((items for items in epochs if items is not None), default=MOST))


def with_attempts(measurements: Sequence[Measurement], records: Sequence[RunRecord]) -> list[Measurement]:
    """Each search with the configuration that it was for."""
    return [_with_own(measurement, records) for measurement in measurements]


def _with_own(measurement: Measurement, records: Sequence[RunRecord]) -> Measurement:
    if len(measurement.spec.largest) != 1:
        return measurement
    [(option, allowed)] = measurement.spec.largest.items()
    own = {record.cell for record in measurement.records}
    return replace(measurement, attempts=tuple(attempts_of(records, own, option, allowed)))


def _is_told(record: RunRecord, option: str) -> bool:
    """Whether it says something: not where its nodes were lost, or somebody has changed the file."""
    return not record.is_to_run_again and type(record.spec.options.get(option)) is int


def _smallest_that_ran(records: Sequence[RunRecord], option: str) -> int:
    values = [int(record.spec.options[option]) for record in records if isinstance(record.outcome, Completed)]
    return min(values, default=MOST)


def _attempt(record: RunRecord, option: str, allowed: int, smallest: int) -> Attempt:
    value = int(record.spec.options[option])
    physical = record.facts.settled.get(PHYSICAL_BATCH)
    completed = isinstance(record.outcome, Completed)
    return Attempt(
        value=value,
        fits=_fits(record, value, allowed, smallest),
        memory_bytes=record.memory_bytes if completed else None,  # else it wasn't at its peak
        thorough=record.spec.budget.max_steps == THOROUGH_STEPS,
        physical=physical if type(physical) is int and physical != value else None,
        why=_why(record),
        ran_out=_ran_out(record),
    )


def _fits(record: RunRecord, value: int, allowed: int, smallest: int) -> bool | None:
    """What fails for another reason is a matter of size where a smaller value ran: a batch of more than all samples, a
    kernel that counts too far."""
    if isinstance(record.outcome, Completed):
        return (record.memory_bytes or 0) <= allowed
    return False if _ran_out(record) or value > smallest else None


def _ran_out(record: RunRecord) -> bool:
    return isinstance(record.outcome, Failed) and record.outcome.kind == "out_of_memory"


def _why(record: RunRecord) -> str:
    if isinstance(record.outcome, Skipped):
        return record.outcome.reason
    return record.outcome.message if isinstance(record.outcome, Failed) else ""
