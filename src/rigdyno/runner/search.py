"""A search as cells: what was tried for a cell, the next attempt, and the cell with what it came to."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

from msgspec.structs import replace

from rigdyno.analyse.attempts import THOROUGH_STEPS, as_tries, attempts_of, most_of
from rigdyno.analyse.search import Next, NothingFits, Settled, next_of
from rigdyno.errors import DamagedRun
from rigdyno.plan.budget import TRY_SECONDS, start_seconds
from rigdyno.schema.spec import Budget, Cell, RunSpec
from rigdyno.store.folder import RunFolder
from rigdyno.units import show_bytes

TRY_STEPS = 4  # behind two for warming up: the peak of the first steps is lower


def next_attempt(cell: Cell, alike: Collection[str], stored: RunFolder) -> Cell:
    """The next try; or the cell itself once it is settled, or refused because nothing fits. `alike`: names of all cells
    that share one search."""
    if len(cell.spec.largest) != 1:
        raise DamagedRun(f"{stored.path}: {cell.name} has several options that are to be as large as fits")
    [(option, allowed)] = cell.spec.largest.items()
    records = [each.record for each in stored.cells([])]
    attempts = attempts_of(records, alike, option, allowed)
    if any(each.fits and each.memory_bytes is None for each in attempts):
        return replace(cell, refusal="how much memory a process has taken can't be read on this system")
    found = next_of(as_tries(attempts), allowed, most_of(records, alike, option))
    cell = replace(cell, allowed_bytes=allowed)
    if isinstance(found, Next):
        return _attempt(cell, option, found, stored)
    if isinstance(found, Settled):
        return _settled(cell, option, found)
    return replace(cell, refusal=_too_large(option, found, allowed))


def _attempt(cell: Cell, option: str, found: Next, stored: RunFolder) -> Cell:
    steps = THOROUGH_STEPS if found.thorough else TRY_STEPS
    spec = replace(
        cell.spec,
        options={**cell.spec.options, option: found.value},
        largest={},
        share=1.0,
        budget=Budget(seconds=(3 if found.thorough else 1) * TRY_SECONDS, max_steps=steps),
    )
    # Behind all that have a record, one that can't be read included: its folder is not to be used again.
    number = next(n for n in count(1) if not stored.has_record(f"{cell.name}-try{n:02d}"))
    name = f"{cell.name}-try{number:02d}"
    return _with_spec(replace(cell, name=name, attempt_of=cell.name), spec)


def _settled(cell: Cell, option: str, found: Settled) -> Cell:
    value = int(found.value * cell.spec.share)
    if value < 1:
        return replace(cell, refusal=f"a part of {option}={found.value} would be less than one")
    return _with_spec(cell, replace(cell.spec, options={**cell.spec.options, option: value}))


def _with_spec(cell: Cell, spec: RunSpec) -> Cell:
    return replace(cell, spec=spec, seconds=start_seconds(spec) + spec.budget.seconds)


def _too_large(option: str, found: NothingFits, allowed: int) -> str:
    taken = "" if found.memory_bytes is None else f" takes {show_bytes(found.memory_bytes)}, which"
    return f"even {option}=1{taken} doesn't fit into {show_bytes(allowed)}"
