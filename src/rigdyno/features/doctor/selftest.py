"""Run every path that the devices of this machine can take once, as ordinary runs of a small size."""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.base.clock import Clock, Stopwatch
from rigdyno.base.errors import EXIT_DONE, Interrupted, NothingMeasured, RigdynoError, UsageError
from rigdyno.contracts import Requirement
from rigdyno.contracts.options import option_types
from rigdyno.features.doctor.diagnose import Diagnosis, Result, TrialResult
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources, read_resources
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import Completed, Failed, RunHead, Skipped
from rigdyno.schema.spec import Budget, RunPlan, Value, ranks_among
from rigdyno.schema.system import System
from rigdyno.store.folder import StoredCell

SHORT = Budget(seconds=1.0, max_steps=5)

LOG_LINES = 20

TRAINED = "mnist_cnn"  # the smallest workload that trains

EDGE = 24  # of the volume, in voxels

MOST_SECONDS = 60.0  # timeout of an inference that takes about 4 s

Outcome = tuple[Result, str, tuple[str, ...]]  # the result, its reason, and the last lines of a log


Planner = Callable[[Request, System, Resources], RunPlan]
Measure = Callable[[RunHead, Path], Sequence[StoredCell]]  # runs the plan of a head in that folder


@dataclass(frozen=True)
class InferenceTrial:
    """The inference of a small volume with a small network."""

    device: str


@dataclass(frozen=True)
class SelfTestTrial:
    name: str
    request: Request | InferenceTrial
    plan: Planner = lambda request, system, resources: expand(request, system, "cpu", resources.without_meter)


def trials(diagnosis: Diagnosis, plan_duel: Planner) -> Iterator[SelfTestTrial]:
    """Yield the trials, the most important first: workloads on every device, then ranks, updates, duels, options."""
    devices = _devices(diagnosis)
    single = [name for name in catalogue.names("workload") if _arrangement(name) == "single"]
    workloads = sorted(single, key=_estimate_seconds)  # the fastest first, in case the time is short
    for device in devices:
        for name in workloads:
            yield SelfTestTrial(f"{name} on {device}", _small_request(name, device))
    for device in devices:
        yield from _rank_trials(device)
        yield from _update_trials(device)
        yield SelfTestTrial(f"infer on {device}", InferenceTrial(device))
    yield SelfTestTrial(f"a duel on {devices[0]}", _small_request("tensor_add", devices[0]), plan_duel)
    # Switches come last: some need a compilation, which takes longest.
    for kinds in (_literal_values, _bool_values):
        for device in devices:
            for name in workloads:
                yield from _option_trials(name, device, kinds)


def _devices(diagnosis: Diagnosis) -> list[str]:
    """Return one device of each kind, the best first, and the CPU."""
    kinds = dict.fromkeys(each.device_kind for each in diagnosis.system.accelerators)
    return [*kinds, "cpu"]


def _arrangement(workload: str) -> str:
    arrangement: str = catalogue.load("workload", workload).arrangement
    return arrangement


def _estimate_seconds(workload: str) -> float:
    """Return the estimated time of the start and a few steps."""
    entry = catalogue.load("workload", workload)
    made = entry(**entry.small)
    return float(made.start_seconds() + (SHORT.max_steps or 0) * (made.step_seconds("cpu") or 0.0))


def _small_request(name: str, device: str, options: Mapping[str, Value] | None = None) -> Request:
    small = catalogue.load("workload", name).small
    return Request(target=name, device=device, options={**small, **(options or {})})


def _rank_trials(device: str) -> Iterator[SelfTestTrial]:
    for name in catalogue.names("arrangement"):
        if name != "single":
            yield SelfTestTrial(
                f"2 ranks by {name} on {device}", replace(_small_request(TRAINED, device), arrangement=name, ranks=2)
            )
    for name in catalogue.names("workload"):
        if _arrangement(name) != "single":
            yield SelfTestTrial(f"{name} of 2 ranks on {device}", replace(_small_request(name, device), ranks=2))


def _update_trials(device: str) -> Iterator[SelfTestTrial]:
    for name in catalogue.names("update"):
        if name != "plain":
            yield SelfTestTrial(f"{name} on {device}", replace(_small_request(TRAINED, device), update=name))


def _literal_values(kind: object) -> Sequence[Value]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def _bool_values(kind: object) -> Sequence[Value]:
    return (True, False) if kind is bool else ()


def _option_trials(name: str, device: str, values_of: Callable[[object], Sequence[Value]]) -> Iterator[SelfTestTrial]:
    """Yield a trial for every value of options with few values: precisions, layouts, variants."""
    entry = catalogue.load("workload", name)
    usual = {**catalogue.defaults("workload", name), **entry.small}
    for option, kind in option_types(entry).items():
        for value in values_of(kind):
            if value != usual[option]:
                yield SelfTestTrial(
                    f"{name} {option}={value} on {device}", _small_request(name, device, {option: value})
                )


class Bench:
    """Runs trials in a temporary store, and starts no more of them once the time is up."""

    def __init__(self, diagnosis: Diagnosis, store: Path, clock: Clock, seconds: float, measure: Measure) -> None:
        self._diagnosis, self._store, self._clock, self._measure = diagnosis, store, clock, measure
        self._stopwatch: Stopwatch | None = None  # set by the first trial, which runs however short the time is
        self._seconds = seconds

    def run(self, trial: SelfTestTrial) -> TrialResult:
        own = Stopwatch(self._clock)
        self._stopwatch = self._stopwatch or own
        if self._stopwatch.seconds > self._seconds:
            return TrialResult(name=trial.name, result="not tried", words="the time was up")
        result, words, log = self._outcome(trial)
        took = round(own.seconds, 2)
        return TrialResult(name=trial.name, result=result, seconds=took, words=words, log=log)

    def _outcome(self, trial: SelfTestTrial) -> Outcome:
        try:
            if isinstance(trial.request, InferenceTrial):
                return self._run_inference(trial.request.device)
            cells = self._measure(self._head(trial.request, trial.plan), self._store)
        except Interrupted:
            raise
        except (UsageError, NothingMeasured) as error:
            return "can't run here", str(error), ()
        except RigdynoError as error:
            return "fails", str(error), ()
        return _judge(cells)

    def _run_inference(self, device: str) -> Outcome:
        catalogue.require_installed((Requirement("h5py", "volume"), Requirement("tensorstore", "volume")), "infer")
        import h5py

        source, output = self._store / "volume.h5", self._store / f"{device}.zarr"
        with h5py.File(source, "w") as file:
            file.create_dataset("raw", (EDGE, EDGE, EDGE), "uint8", bytearray(range(EDGE)) * EDGE**2)
        network = ["--model", "unet3d", "--set", "features=2,4", "--backend", "torch", "--device", device]
        command = [sys.executable, "-m", "rigdyno", "infer", f"{source}/raw", str(output), *network]
        try:
            done = subprocess.run(
                [*command, "--out", str(self._store), "--quiet"],
                capture_output=True, text=True, check=False, timeout=MOST_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "fails", f"it wasn't over after {MOST_SECONDS:g} s", ()
        words = done.stderr.strip().rpartition("\n")[2]
        if done.returncode == EXIT_DONE:
            return "works", "", ()
        return "fails", words, tuple(done.stderr.splitlines()[-LOG_LINES:])

    def _head(self, request: Request, plan: Planner) -> RunHead:
        """Plan a trial for the machine that was diagnosed once for all trials."""
        system = self._diagnosis.system
        planned = plan(request, system, read_resources(system))
        return RunHead.of(_shorten(planned), system, self._diagnosis.environment)


def _shorten(plan: RunPlan) -> RunPlan:
    """Reduce a plan to a few steps of each cell, and a duel to one pair."""
    cells = tuple(
        replace(cell, spec=replace(cell.spec, budget=SHORT))
        for cell in plan.cells
        if cell.pair in (None, 1) and not cell.spare
    )
    return replace(plan, cells=cells, budget_seconds=None)


def _judge(cells: Sequence[StoredCell]) -> Outcome:
    for cell in cells:
        outcome = cell.record.outcome
        if isinstance(outcome, Failed):
            return "fails", f"{outcome.kind} ({outcome.phase}): {outcome.message}", _log_lines(cell)
        if isinstance(outcome, Skipped):
            return "can't run here", outcome.reason, ()
        if isinstance(outcome, Completed) and outcome.quality.correct is False:
            return "fails", "what it computed is wrong", ()
        if isinstance(outcome, Completed) and outcome.quality.loss_finite is False:
            return "fails", "its loss is not a number", ()
    return "works", "", ()


def _log_lines(cell: StoredCell) -> tuple[str, ...]:
    lines: list[str] = []
    for rank in ranks_among(cell.record.participants):
        path = CellFolder(cell.folder).participant(rank.id).log
        if path.exists():
            lines += path.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return tuple(lines)


def without_names(value: Any, store: Path) -> Any:
    """Replace the names of host and user, and the folders that contain them, in all texts of a value."""
    private = _private_names(store)
    pattern = re.compile("|".join(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])" for name in private), re.IGNORECASE)
    by_name = {name.lower(): word for name, word in private.items()}
    return _replace_texts(value, lambda text: pattern.sub(lambda found: by_name[found[0].lower()], text))


def _private_names(store: Path) -> dict[str, str]:
    """Return the names to replace, the longest first: a folder may contain a name."""
    host, others = socket.gethostname(), (os.environ.get("SUDO_USER", ""), os.environ.get("USER", ""))
    folders = {str(store): "STORE", str(Path.cwd()): "FOLDER", str(Path.home()): "HOME"}
    names = {host: "HOST", host.partition(".")[0]: "HOST", **dict.fromkeys((_user_name(), *others), "USER")}
    found = {**folders, **names}
    return {name: found[name] for name in sorted(found, key=len, reverse=True) if name not in ("", "/")}


def _replace_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):  # keys are never private
        return {key: _replace_texts(each, change) for key, each in value.items()}
    return [_replace_texts(each, change) for each in value] if isinstance(value, list | tuple) else value


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return ""
