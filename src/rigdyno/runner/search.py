"""A search as cells: what was tried for a cell, the next attempt, and the cell with what it came to."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

from msgspec.structs import replace

from rigdyno.analyse.search import Next, NothingFits, Settled, Try, next_of
from rigdyno.errors import DamagedRun
from rigdyno.plan.budget import TRY_SECONDS, start_seconds
from rigdyno.schema.record import Completed, Failed, RunRecord
from rigdyno.schema.spec import Budget, Cell, RunSpec
from rigdyno.store.folder import RunFolder
from rigdyno.units import show_bytes

TRY_STEPS = 3
THOROUGH_STEPS = 30  # allocators keep more after a while than after the first steps


def next_attempt(cell: Cell, alike: Collection[str], stored: RunFolder) -> Cell:
    """The next try; or the cell itself once it is settled, or refused because nothing fits. `alike`: names of all cells
    of this configuration, which share their attempts."""
    if len(cell.spec.largest) != 1:
        raise DamagedRun(f"{stored.path}: {cell.name} has several options that are to be as large as fits")
    [(option, allowed)] = cell.spec.largest.items()
    made = [each.record for each in stored.cells([]) if each.record.attempt_of in alike]
    tries = [_tried(record, option, allowed) for record in made if _is_told(record, option)]
    if any(each.fits and each.memory_bytes is None for each in tries):
        return replace(cell, refusal="how much memory a process has taken can't be read on this system")
    found = next_of(tries, allowed)
    if isinstance(found, Next):
        return _attempt(cell, option, found, stored)
    if isinstance(found, Settled):
        return _settled(cell, option, found)
    return replace(cell, refusal=_too_large(option, found, allowed))


def _is_told(record: RunRecord, option: str) -> bool:
    """Whether it says something: not where its nodes were lost, or somebody has changed the file."""
    return not record.is_to_run_again and type(record.spec.options.get(option)) is int


def _tried(record: RunRecord, option: str, allowed: int) -> Try:
    return Try(
        value=int(record.spec.options[option]),
        fits=_fits(record, allowed),
        memory_bytes=record.memory_bytes,
        thorough=record.spec.budget.max_steps == THOROUGH_STEPS,
    )


def _fits(record: RunRecord, allowed: int) -> bool | None:
    if isinstance(record.outcome, Completed):
        return (record.memory_bytes or 0) <= allowed
    return False if isinstance(record.outcome, Failed) and record.outcome.kind == "out_of_memory" else None


def _attempt(cell: Cell, option: str, found: Next, stored: RunFolder) -> Cell:
    steps = THOROUGH_STEPS if found.thorough else TRY_STEPS
    spec = replace(
        cell.spec,
        options={**cell.spec.options, option: found.value},
        largest={},
        budget=Budget(seconds=(3 if found.thorough else 1) * TRY_SECONDS, max_steps=steps),
    )
    # Behind all that have a record, one that can't be read included: its folder is not to be used again.
    number = next(n for n in count(1) if not stored.has_record(f"{cell.name}-try{n:02d}"))
    name = f"{cell.name}-try{number:02d}"
    return _with_spec(replace(cell, name=name, attempt_of=cell.name), spec)


def _settled(cell: Cell, option: str, found: Settled) -> Cell:
    return _with_spec(cell, replace(cell.spec, options={**cell.spec.options, option: found.value}))


def _with_spec(cell: Cell, spec: RunSpec) -> Cell:
    return replace(cell, spec=spec, seconds=start_seconds(spec) + spec.budget.seconds)


def _too_large(option: str, found: NothingFits, allowed: int) -> str:
    taken = "" if found.memory_bytes is None else f" takes {show_bytes(found.memory_bytes)}, which"
    return f"even {option}=1{taken} doesn't fit into {show_bytes(allowed)}"
