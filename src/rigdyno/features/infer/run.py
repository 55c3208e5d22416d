"""Run an inference: plan it as one cell, carry it out, store its record and report the result."""

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

from rigdyno.base.clock import SystemClock
from rigdyno.base.errors import EXIT_DONE, EXIT_FAILED, Interrupted, MissingExtra
from rigdyno.base.processes import termination_as_interrupt
from rigdyno.features.infer.report import detail_lines, facts_of, failures_of, view_without_record
from rigdyno.report.plan_text import describe_plan
from rigdyno.report.progress import make_observer
from rigdyno.report.text import detect_page, render_view_or_json
from rigdyno.schema.spec import INFER, Cell, RunPlan, RunSpec, Value, assign_participants
from rigdyno.schema.view import View
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.api import Run
    from rigdyno.engines.blockwise import Done, Inference, Plan
    from rigdyno.engines.blockwise import Plan as VolumePlan
    from rigdyno.engines.blockwise.boxes import Zyx
    from rigdyno.engines.blockwise.journal import BlockCounts
    from rigdyno.features.infer.record import BlockRun
    from rigdyno.schema.record import Facts, RunHead

HASH_DIGITS = 12

WAITING = "rigdyno: another process is making the plan"


@dataclass(frozen=True)
class InferOutput:
    """The place of the record, and how much is printed."""

    root: Path
    label: str | None
    as_json: bool
    quiet: bool

    def is_silent(self, inference: Inference) -> bool:
        """Tell whether to print nothing; of several processes, only the first prints."""
        return self.quiet or self.as_json or inference.job.rank > 0


@dataclass(frozen=True)
class End:
    run: BlockRun
    done: Done | None = None  # None: it was stopped by `error`
    error: BaseException | None = None

    @property
    def is_failed(self) -> bool:
        return self.done is None or self.done.counts.failed > 0

    @property
    def gave_numbers(self) -> bool:
        return self.done is None or not self.done.not_numbers

    @property
    def before(self) -> BlockCounts:
        assert self.run.before is not None
        return self.run.before

    def facts(self) -> Facts:
        assert self.run.summary is not None
        return facts_of(self.before, self.run.summary, self.done)


def run(inference: Inference, output: InferOutput, load: Callable[[Path], Run]) -> int:
    from rigdyno.engines.blockwise.errors import BlockwiseError

    with termination_as_interrupt():
        end = _carry_out(inference, output)
        path = end.run.end(end.error, end.facts(), correct=None if end.gave_numbers else False)
    if isinstance(end.error, KeyboardInterrupt):
        raise Interrupted(f"interrupted; {_resume_hint(inference)}")
    if isinstance(end.error, (BlockwiseError, MissingExtra)):
        raise end.error
    if output.as_json or not output.is_silent(inference) or end.is_failed or not end.gave_numbers:
        view = _add_volume(_view(path, end, load), end, inference)
        click.echo(render_view_or_json(view, as_json=output.as_json, quiet=output.quiet), nl=False)
    return EXIT_FAILED if end.is_failed else EXIT_DONE


def show_plan(inference: Inference, output: InferOutput) -> int:
    plan = inference.plan()
    if output.as_json:
        click.echo(json.dumps({"plan": plan.to_json()}, indent=2))
    else:
        lines = describe_plan(_head(inference, plan, output), output.root, detect_page(), every_cell=True)
        click.echo("\n".join(lines + _plan_details(inference, plan, resumed=inference.is_begun)))
    return EXIT_DONE


def _head(inference: Inference, plan: Plan, output: InferOutput) -> RunHead:
    from rigdyno.runner.here import head_here

    return head_here(inference_plan(inference, plan, output.label))


def _plan_details(inference: Inference, plan: Plan, *, resumed: bool) -> list[str]:
    return detail_lines(plan, inference.loaded.name, inference.job.output, detect_page(), resumed=resumed)


def _carry_out(inference: Inference, output: InferOutput) -> End:
    from rigdyno.features.infer.record import BlockRun

    silent = output.is_silent(inference)
    begun: list[BlockRun] = []

    def watch(plan: Plan, resumed: bool) -> BlockRun:
        head = _head(inference, plan, output)
        if not silent:
            _tell(describe_plan(head, output.root, detect_page()) + _plan_details(inference, plan, resumed=resumed))
        run = BlockRun(output.root, head, make_observer(quiet=silent), SystemClock(), prod(plan.shape), plan.blocks)
        begun.append(run)
        return run

    try:
        done = inference.run(watch, waiting=_call_once(lambda: _tell([WAITING], err=True)))
    except (Exception, KeyboardInterrupt) as error:  # recorded, and then shown or raised again
        if not begun or begun[0].summary is None:
            raise
        return End(begun[0], error=error)
    return End(begun[0], done)


def _tell(lines: list[str], *, err: bool = False) -> None:
    """Print lines; a run of hours continues if the reader is gone (`| head`)."""
    with suppress(OSError):
        click.echo("\n".join(lines), err=err)


def _call_once(call: Callable[[], None]) -> Callable[[], None]:
    calls = iter((call,))
    return lambda: next(calls, lambda: None)()


def _view(path: Path | None, end: End, load: Callable[[Path], Run]) -> View:
    if path is not None:
        return load(path).view()
    return view_without_record(end.facts(), nothing_left=not end.before.to_do and not end.before.failed)


def _add_volume(view: View, end: End, inference: Inference) -> View:
    """Add the path of the volume, and what is missing in it."""
    failures = () if end.done is None else failures_of(end.done)
    stopped = () if end.error is None else (f"stopped by {_error_text(end.error)}; {_resume_hint(inference)}",)
    closing = (*view.closing, *failures, *stopped)
    return replace(view, closing=closing, saved_in=(inference.job.output, *view.saved_in))


def _error_text(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _resume_hint(inference: Inference) -> str:
    how = "go on without --overwrite" if inference.job.overwrite else "run the same command again, and it goes on"
    return f"what is done stays in {inference.job.output}: {how}"


def inference_plan(inference: Inference, plan: VolumePlan, label: str | None) -> RunPlan:
    spec = RunSpec(
        workload="infer",
        options=_options(inference, plan),
        defaults=_further_options(inference, plan),
        launcher=INFER,
        device=inference.device,
        threads=inference.job.threads,
    )
    cell = Cell(
        name="01-infer",
        spec=spec,
        participants=assign_participants(1, 1, inference.device),
        memory_bytes=plan.memory_bytes,
        seconds=plan.seconds,
    )
    return RunPlan(name="infer", label=label, cells=(cell,))


def _options(inference: Inference, plan: VolumePlan) -> dict[str, Value]:
    """Return the options by the names of their flags, with the values that were chosen.

    Of the network's file only the name is kept: its folder often names a person, and doesn't affect speed.
    """
    job = inference.job
    return {
        "model": utf8(Path(job.model).name),
        **({"set": utf8(" ".join(f"{name}={value}" for name, value in job.settings.items()))} if job.settings else {}),
        "block": _join_shape(plan.block),
        "halo": _join_shape(plan.halo),
        "backend": plan.backend,
        "dtype": job.dtype,
    }


def _further_options(inference: Inference, plan: VolumePlan) -> dict[str, Value]:
    """Return further differences between runs, which would make their names too long."""
    volume = inference.volume
    return {
        "model_sha256": inference.loaded.model.identity()[:HASH_DIGITS],
        "volume": _join_shape(plan.shape),
        "input": f"{volume.channels} x {volume.dtype.name}",
        "mask": inference.mask is not None,
        "processes": inference.job.world,
    }


def _join_shape(shape: Zyx) -> str:
    return "x".join(map(str, shape))
