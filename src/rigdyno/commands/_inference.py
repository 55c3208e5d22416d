"""Carries out an inference, leaves a record of it, and says what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from rigdyno.clock import SystemClock
from rigdyno.commands._shared import view_text
from rigdyno.errors import EXIT_DONE, EXIT_FAILED, Interrupted
from rigdyno.plan.inference import inference_plan
from rigdyno.report.infer import detail_lines, facts_of, failures_of, view_without_record
from rigdyno.report.page import page_of
from rigdyno.report.plan_text import plan_lines
from rigdyno.report.progress import observer_for
from rigdyno.runner.signals import termination_as_interrupt
from rigdyno.schema.view import View

if TYPE_CHECKING:
    from rigdyno.engines.blockwise import Done, Inference, Plan
    from rigdyno.engines.blockwise.journal import Counts
    from rigdyno.runner.block_run import BlockRun
    from rigdyno.schema.record import Facts, RunHead

WAITING = "rigdyno: another process is making the plan"


@dataclass(frozen=True)
class Manner:
    """Where the record is kept, and how much is said."""

    root: Path
    label: str | None
    as_json: bool
    quiet: bool

    def is_silent(self, inference: Inference) -> bool:
        """Of several processes, the first speaks for all."""
        return self.quiet or self.as_json or inference.job.rank > 0


@dataclass(frozen=True)
class End:
    run: BlockRun
    done: Done | None = None  # None: it was stopped, by
    error: BaseException | None = None

    @property
    def is_failed(self) -> bool:
        return self.done is None or self.done.counts.failed > 0

    @property
    def gave_numbers(self) -> bool:
        return self.done is None or not self.done.not_numbers

    @property
    def before(self) -> Counts:
        assert self.run.before is not None
        return self.run.before

    def facts(self) -> Facts:
        assert self.run.summary is not None
        return facts_of(self.before, self.run.summary, self.done)


def only_plan(inference: Inference, manner: Manner) -> int:
    plan = inference.plan()
    if manner.as_json:
        click.echo(json.dumps({"plan": plan.to_json()}, indent=2))
    else:
        lines = plan_lines(_head(inference, plan, manner), manner.root, page_of(), every_cell=True)
        click.echo("\n".join(lines + _details(inference, plan, resumed=inference.is_begun)))
    return EXIT_DONE


def run(inference: Inference, manner: Manner) -> int:
    from rigdyno.engines.blockwise.errors import BlockwiseError

    with termination_as_interrupt():
        end = _carried_out(inference, manner)
        path = end.run.end(end.error, end.facts(), correct=None if end.gave_numbers else False)
    if isinstance(end.error, KeyboardInterrupt):
        raise Interrupted(f"interrupted; {_how_to_go_on(inference)}")
    if isinstance(end.error, BlockwiseError):
        raise end.error
    if manner.as_json or not manner.is_silent(inference) or end.is_failed or not end.gave_numbers:
        view = _with_the_volume(_view(path, end), end, inference)
        click.echo(view_text(view, as_json=manner.as_json, quiet=manner.quiet), nl=False)
    return EXIT_FAILED if end.is_failed else EXIT_DONE


def _head(inference: Inference, plan: Plan, manner: Manner) -> RunHead:
    from rigdyno.runner.run_here import head_here

    return head_here(inference_plan(inference, plan, manner.label))


def _details(inference: Inference, plan: Plan, *, resumed: bool) -> list[str]:
    return detail_lines(plan, inference.loaded.name, inference.job.output, page_of(), resumed=resumed)


def _carried_out(inference: Inference, manner: Manner) -> End:
    from rigdyno.runner.block_run import BlockRun

    silent = manner.is_silent(inference)
    begun: list[BlockRun] = []

    def watch(plan: Plan, resumed: bool) -> BlockRun:
        head = _head(inference, plan, manner)
        if not silent:
            _tell(plan_lines(head, manner.root, page_of()) + _details(inference, plan, resumed=resumed))
        run = BlockRun(manner.root, head, observer_for(quiet=silent), SystemClock(), prod(plan.shape), plan.blocks)
        begun.append(run)
        return run

    try:
        done = inference.run(watch, waiting=_once(lambda: _tell([WAITING], err=True)))
    except (Exception, KeyboardInterrupt) as error:  # recorded, and then shown or raised again
        if not begun or begun[0].summary is None:
            raise
        return End(begun[0], error=error)
    return End(begun[0], done)


def _tell(lines: list[str], *, err: bool = False) -> None:
    """Whoever reads it may have gone away (`| head`): a run of hours goes on without."""
    with suppress(OSError):
        click.echo("\n".join(lines), err=err)


def _once(call: Callable[[], None]) -> Callable[[], None]:
    calls = iter((call,))
    return lambda: next(calls, lambda: None)()


def _view(path: Path | None, end: End) -> View:
    from rigdyno import api

    if path is not None:
        return api.load(path).view()
    return view_without_record(end.facts(), nothing_left=not end.before.to_do and not end.before.failed)


def _with_the_volume(view: View, end: End, inference: Inference) -> View:
    """Where it is, and what is missing in it."""
    failures = () if end.done is None else failures_of(end.done)
    stopped = () if end.error is None else (f"stopped by {_words(end.error)}; {_how_to_go_on(inference)}",)
    closing = (*view.closing, *failures, *stopped)
    return replace(view, closing=closing, saved_in=(inference.job.output, *view.saved_in))


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _how_to_go_on(inference: Inference) -> str:
    how = "go on without --overwrite" if inference.job.overwrite else "run the same command again, and it goes on"
    return f"what is done stays in {inference.job.output}: {how}"
