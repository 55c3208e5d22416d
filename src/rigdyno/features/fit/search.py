"""Search for the largest value of an option that fits into a given memory.

Memory is nearly linear in the value: a part of the network, and a part per sample. Two small tries give a first line,
and each further try a better one. The next try follows from the earlier tries alone, so an interrupted search continues
where it stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from rigdyno.base.errors import DamagedRun
from rigdyno.base.units import show_bytes
from rigdyno.plan.budget import TRY_SECONDS, start_seconds
from rigdyno.schema.measured import Attempt, Measurement
from rigdyno.schema.record import PHYSICAL_BATCH, Completed, Failed, RunRecord, Skipped
from rigdyno.schema.spec import BATCHES, Budget, Cell, RunSpec
from rigdyno.store.folder import RunFolder

FIRST = 1

MOST = 2**20

STRIDE = 16  # largest factor to the largest fitting value: a line through two small values isn't exact

LEAST_STRIDE = 8  # while nothing has failed: noise hides the difference between close values

NEAR, NEARLY = 3, 0.85  # factor to the largest fitting value, and share of the memory, for a thorough try at once

# Shares of the memory: the target, what counts as full, and the most that a confirmed value may take. The peak of the
# same process differs by a few percent from start to start.
AIM, FULL, CONFIRMED = 0.935, 0.91, 0.96

EASE, NARROW = 0.02, 1.06  # a failure that took less than NARROW of the memory lowers the target by EASE

MORE = 1.5  # if this many times the value may fit, memory isn't full even if nearly all is taken

BOLDNESS = 2  # times the memory that a try may take in the worst case

NOISE = 0.05  # share by which a measured peak may be too low

CLOSE = 1 / 32  # relative distance to the smallest value that didn't fit, at which the search ends

LOCAL = 32  # the line uses values down to this fraction of the largest: smaller ones may follow another line

ENOUGH_TRIES = 8  # after which the largest confirmed value is the result

TRUSTED_FAILURES = 2  # failures after which bisection replaces the line

THOROUGH_STEPS = 30  # allocators hold more memory later than after the first steps

TRY_STEPS = 4  # after two of warm-up: the peak of the first steps is lower


@dataclass(frozen=True)
class Next:
    """The next value to try; `thorough`: with more steps, to confirm it."""

    value: int
    thorough: bool = False


@dataclass(frozen=True)
class SearchResult:
    value: int


@dataclass(frozen=True)
class NothingFits:
    memory_bytes: int | None  # taken by the smallest value


@dataclass(frozen=True)
class MemoryLine:
    """Memory as a linear function of the value."""

    fixed_bytes: float
    each_bytes: float

    def at(self, value: float) -> float:
        return self.fixed_bytes + self.each_bytes * value

    def end(self, size: float) -> float:
        """Return the value at which the memory reaches `size`."""
        return (size - self.fixed_bytes) / self.each_bytes if self.each_bytes > 0 else MOST


def next_attempt(cell: Cell, alike: Collection[str], stored: RunFolder) -> Cell:
    """Return the cell of the next try, or the cell itself with the value found or with a refusal if nothing fits.

    `alike`: names of all cells that share the search.
    """
    if len(cell.spec.largest) != 1:
        raise DamagedRun(f"{stored.path}: {cell.name} has several options that are to be as large as fits")
    [(option, allowed)] = cell.spec.largest.items()
    records = [each.record for each in stored.cells([])]
    attempts = attempts_of(records, alike, option, allowed)
    if any(each.fits and each.memory_bytes is None for each in attempts):
        return replace(cell, refusal="how much memory a process has taken can't be read on this system")
    found = next_of(attempts, allowed, most_of(records, alike, option))
    cell = replace(cell, allowed_bytes=allowed)
    if isinstance(found, Next):
        return _next_cell(cell, option, found, stored)
    if isinstance(found, SearchResult):
        return _settle(cell, option, found)
    return replace(cell, refusal=_too_large_message(option, found, allowed))


def _next_cell(cell: Cell, option: str, found: Next, stored: RunFolder) -> Cell:
    steps = THOROUGH_STEPS if found.thorough else TRY_STEPS
    spec = replace(
        cell.spec,
        options={**cell.spec.options, option: found.value},
        largest={},
        share=1.0,
        budget=Budget(seconds=(3 if found.thorough else 1) * TRY_SECONDS, max_steps=steps),
    )
    # Number it after all that have a record, even an unreadable one: folders are never used again.
    number = next(n for n in count(1) if not stored.has_record(f"{cell.name}-try{n:02d}"))
    name = f"{cell.name}-try{number:02d}"
    return _replace_spec(replace(cell, name=name, attempt_of=cell.name), spec)


def _settle(cell: Cell, option: str, found: SearchResult) -> Cell:
    value = int(found.value * cell.spec.share)
    if value < 1:
        return replace(cell, refusal=f"a part of {option}={found.value} would be less than one")
    return _replace_spec(cell, replace(cell.spec, options={**cell.spec.options, option: value}))


def _replace_spec(cell: Cell, spec: RunSpec) -> Cell:
    return replace(cell, spec=spec, seconds=start_seconds(spec) + spec.budget.seconds)


def _too_large_message(option: str, found: NothingFits, allowed: int) -> str:
    taken = "" if found.memory_bytes is None else f" takes {show_bytes(found.memory_bytes)}, which"
    return f"even {option}=1{taken} doesn't fit into {show_bytes(allowed)}"


def next_of(tries: Sequence[Attempt], allowed_bytes: int, most: int = MOST) -> Next | SearchResult | NothingFits:
    """Decide what follows from the tries. `most`: the largest value that makes sense, such as all samples."""
    broken = next((each.value for each in tries if each.fits is None), None)
    if broken is not None:
        return SearchResult(broken)  # the size isn't the cause: the measured cell will report it
    points = _by_value(tries, allowed_bytes)
    if not points:
        return Next(min(FIRST, most))
    too_large = min((value for value, each in points.items() if not each.fits), default=most + 1)
    fitting = [points[value] for value in sorted(points) if value < too_large]
    if not fitting:
        return NothingFits(points[too_large].memory_bytes)
    best, left = fitting[-1], ENOUGH_TRIES - len(tries)
    line = line_of(points.values(), at_least=best.value / LOCAL)
    full = _is_full(best, line, too_large, allowed_bytes)
    confirmed = [each.value for each in fitting if each.thorough]
    if confirmed and (left <= 0 or (best.thorough and full)):
        return SearchResult(max(confirmed))
    failed = [each for each in points.values() if not each.fits]
    value = _guess(line, fitting, failed, too_large, allowed_bytes)
    to_confirm = left <= 0 or (left == 1 and value > NEAR * best.value) or value <= best.value * (1 + CLOSE)
    if not best.thorough and (to_confirm or full):
        return Next(best.value, thorough=True)
    is_near = value <= NEAR * best.value and line is not None and line.at(value) >= NEARLY * allowed_bytes
    return Next(value, thorough=bool(failed) or left <= 2 or is_near)


def _by_value(tries: Sequence[Attempt], allowed_bytes: int) -> dict[int, Attempt]:
    """Merge the tries of each value: it fits if it always did, and takes its largest peak.

    A thorough try must leave a margin, because the peak varies between starts.
    """
    points: dict[int, Attempt] = {}
    for each in tries:
        before = points.get(each.value, each)
        memory = max(before.memory_bytes or 0, each.memory_bytes or 0) or None
        margin = each.thorough and (each.memory_bytes or 0) > CONFIRMED * allowed_bytes
        fits = bool(before.fits and each.fits and not margin)
        points[each.value] = Attempt(each.value, fits, memory, before.thorough or each.thorough)
    return points


def _is_full(best: Attempt, line: MemoryLine | None, too_large: int, allowed_bytes: int) -> bool:
    """Tell whether no larger value is worth a try.

    Nearly full memory isn't enough: if the network alone takes most of it, many more samples may fit into the rest.
    """
    if too_large - best.value <= max(1, CLOSE * best.value):
        return True
    taken = best.memory_bytes is not None and best.memory_bytes >= FULL * allowed_bytes
    return taken and line is not None and line.end(allowed_bytes) <= MORE * best.value


def _guess(
    line: MemoryLine | None, fitting: Sequence[Attempt], failed: Sequence[Attempt], too_large: int, allowed_bytes: int
) -> int:
    """Return the value at which the line reaches the target, which each narrow failure lowers for noise."""
    best = fitting[-1]
    narrow = sum((each.memory_bytes or MOST * allowed_bytes) < NARROW * allowed_bytes for each in failed)
    value = MOST if line is None else int(min(MOST, line.end((AIM - EASE * narrow) * allowed_bytes)))
    if failed and (len(failed) > TRUSTED_FAILURES or value >= too_large):
        value = (best.value + too_large) // 2
    return max(best.value + 1, min(value, _largest_safe_try(fitting, allowed_bytes), too_large - 1))


def line_of(tries: Iterable[Attempt], at_least: float = 0.0) -> MemoryLine | None:
    """Fit a line by least squares of relative errors; None if the values are too close together."""
    known = [(each.value, each.memory_bytes) for each in tries if each.memory_bytes and each.value >= at_least]
    if not known or max(known)[0] < 2 * min(known)[0]:
        return None
    weights = [1 / memory**2 for _, memory in known]
    total = sum(weights)
    middle = sum(w * value for w, (value, _) in zip(weights, known, strict=True)) / total
    level = sum(w * memory for w, (_, memory) in zip(weights, known, strict=True)) / total
    spread = sum(w * (value - middle) ** 2 for w, (value, _) in zip(weights, known, strict=True))
    shared = sum(w * (value - middle) * (memory - level) for w, (value, memory) in zip(weights, known, strict=True))
    each = max(0.0, shared / spread)
    return MemoryLine(level - each * middle, each)


def _largest_safe_try(fitting: Sequence[Attempt], allowed_bytes: int) -> int:
    """Return the largest value that takes at most BOLDNESS times the memory even if peaks were measured too low.

    A try that is far too large wastes time and the memory of others. After a single try its whole memory may grow with
    the value, because the fixed part is unknown.
    """
    best, *smaller = reversed(fitting)
    if not best.memory_bytes:
        return STRIDE * best.value
    grown = best.memory_bytes if not smaller else NOISE * best.memory_bytes + _growth(best, smaller[-1])
    each = grown / (best.value - (smaller[-1].value if smaller else 0))
    room = BOLDNESS * allowed_bytes - best.memory_bytes
    return int(min(STRIDE * best.value, max(best.value + room / each, LEAST_STRIDE * best.value)))


def _growth(best: Attempt, smallest: Attempt) -> int:
    return max(0, (best.memory_bytes or 0) - (smallest.memory_bytes or 0))


def attempts_of(records: Sequence[RunRecord], names: Collection[str], option: str, allowed: int) -> list[Attempt]:
    """Return the attempts of the cells with these names, in chronological order."""
    informative = [record for record in records if record.attempt_of in names and _is_informative(record, option)]
    return [_attempt_of(record, option, allowed, _smallest_that_ran(informative, option)) for record in informative]


def most_of(records: Sequence[RunRecord], names: Collection[str], option: str) -> int:
    """Return the largest value that makes sense: for a batch, the number of samples."""
    if option.rpartition(".")[2] not in BATCHES:
        return MOST
    epochs = (record.facts.epoch_items for record in records if record.attempt_of in names)
    return max(1, min((items for items in epochs if items is not None), default=MOST))


def add_attempts(measurements: Sequence[Measurement], records: Sequence[RunRecord]) -> list[Measurement]:
    """Add the attempts of each search to the configuration that it was for."""
    return [_add_own_attempts(measurement, records) for measurement in measurements]


def _add_own_attempts(measurement: Measurement, records: Sequence[RunRecord]) -> Measurement:
    if len(measurement.spec.largest) != 1:
        return measurement
    [(option, allowed)] = measurement.spec.largest.items()
    own = {record.cell for record in measurement.records}
    return replace(measurement, attempts=tuple(attempts_of(records, own, option, allowed)))


def _is_informative(record: RunRecord, option: str) -> bool:
    """Tell whether a record counts: not if its nodes were lost, or its value isn't a whole number."""
    return not record.is_to_run_again and type(record.spec.options.get(option)) is int


def _smallest_that_ran(records: Sequence[RunRecord], option: str) -> int:
    values = [int(record.spec.options[option]) for record in records if isinstance(record.outcome, Completed)]
    return min(values, default=MOST)


def _attempt_of(record: RunRecord, option: str, allowed: int, smallest: int) -> Attempt:
    value = int(record.spec.options[option])
    physical = record.facts.settled.get(PHYSICAL_BATCH)
    completed = isinstance(record.outcome, Completed)
    return Attempt(
        value=value,
        fits=_fits(record, value, allowed, smallest),
        memory_bytes=record.memory_bytes if completed else None,  # else it hadn't reached its peak
        thorough=record.spec.budget.max_steps == THOROUGH_STEPS,
        physical=physical if type(physical) is int and physical != value else None,
        why=_why(record),
        ran_out=_ran_out_of_memory(record),
    )


def _fits(record: RunRecord, value: int, allowed: int, smallest: int) -> bool | None:
    """Tell whether a value fits; None if it failed for a reason other than its size.

    Any failure counts as a matter of size if a smaller value ran: a batch of more than all samples, an index overflow.
    """
    if isinstance(record.outcome, Completed):
        return (record.memory_bytes or 0) <= allowed
    return False if _ran_out_of_memory(record) or value > smallest else None


def _ran_out_of_memory(record: RunRecord) -> bool:
    return isinstance(record.outcome, Failed) and record.outcome.kind == "out_of_memory"


def _why(record: RunRecord) -> str:
    if isinstance(record.outcome, Skipped):
        return record.outcome.reason
    return record.outcome.message if isinstance(record.outcome, Failed) else ""
