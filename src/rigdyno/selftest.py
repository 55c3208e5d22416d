"""Every path that this rig's devices can take, each taken once, at a small size: the ordinary runs, made short."""

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

from rigdyno import api, catalogue
from rigdyno.clock import Clock
from rigdyno.contracts import Requirement
from rigdyno.errors import EXIT_DONE, Interrupted, NothingMeasured, RigdynoError, UsageError
from rigdyno.plan.build import option_types
from rigdyno.plan.duel import DuelRequest, expand_duel
from rigdyno.plan.expand import expand
from rigdyno.plan.load import Request
from rigdyno.plan.preflight import look
from rigdyno.schema.diagnosis import Diagnosis
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.participant import ranks_among
from rigdyno.schema.record import Completed, Failed, RunHead, Skipped
from rigdyno.schema.selftest import Result, Tried
from rigdyno.schema.spec import Budget, Plan, Value
from rigdyno.store.folder import StoredCell
from rigdyno.units import seconds_of_ns

SHORT = Budget(seconds=1.0, max_steps=5)
LOG_LINES = 20
TRAINED = "mnist_cnn"  # the smallest workload that trains
EDGE = 24  # of a volume
MOST_SECONDS = 60.0  # for what takes four

Outcome = tuple[Result, str, tuple[str, ...]]  # the result, why, and the end of a log


@dataclass(frozen=True)
class Inference:
    """A small network over a small volume."""

    device: str


@dataclass(frozen=True)
class Trial:
    name: str
    request: Request | DuelRequest | Inference


def trials(diagnosis: Diagnosis) -> Iterator[Trial]:
    """What most users need first: every workload on every device; then several ranks, updates, duels; then choices."""
    devices = _devices(diagnosis)
    single = [name for name in catalogue.names("workload") if _arrangement(name) == "single"]
    workloads = sorted(single, key=_seconds)  # the quickest first, in case the time is short
    for device in devices:
        for name in workloads:
            yield Trial(f"{name} on {device}", _small(name, device))
    for device in devices:
        yield from _together(device)
        yield from _updates(device)
        yield Trial(f"infer on {device}", Inference(device))
    yield _duel(devices[0])
    # What is switched on may have to be compiled first, and takes longest.
    for kinds in (_words, _switches):
        for device in devices:
            for name in workloads:
                yield from _choices(name, device, kinds)


def _devices(diagnosis: Diagnosis) -> list[str]:
    """One of each kind, the best first, and the CPU."""
    kinds = dict.fromkeys(each.device_kind for each in diagnosis.system.accelerators)
    return [*kinds, "cpu"]


def _arrangement(workload: str) -> str:
    arrangement: str = catalogue.load("workload", workload).arrangement
    return arrangement


def _seconds(workload: str) -> float:
    """Of its start and a few steps."""
    entry = catalogue.load("workload", workload)
    made = entry(**entry.small)
    return float(made.start_seconds() + (SHORT.max_steps or 0) * (made.step_seconds("cpu") or 0.0))


def _small(name: str, device: str, options: Mapping[str, Value] | None = None) -> Request:
    small = catalogue.load("workload", name).small
    return Request(target=name, device=device, options={**small, **(options or {})})


def _together(device: str) -> Iterator[Trial]:
    for name in catalogue.names("arrangement"):
        if name != "single":
            yield Trial(f"2 ranks by {name} on {device}", replace(_small(TRAINED, device), arrangement=name, ranks=2))
    for name in catalogue.names("workload"):
        if _arrangement(name) != "single":
            yield Trial(f"{name} of 2 ranks on {device}", replace(_small(name, device), ranks=2))


def _updates(device: str) -> Iterator[Trial]:
    for name in catalogue.names("update"):
        if name != "plain":
            yield Trial(f"{name} on {device}", replace(_small(TRAINED, device), update=name))


def _duel(device: str) -> Trial:
    arm = _small("tensor_add", device)
    return Trial(f"a duel on {device}", DuelRequest(a=arm, b=arm, budget_seconds=60.0))


def _words(kind: object) -> Sequence[Value]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def _switches(kind: object) -> Sequence[Value]:
    return (True, False) if kind is bool else ()


def _choices(name: str, device: str, values_of: Callable[[object], Sequence[Value]]) -> Iterator[Trial]:
    """Every value of every option that has a few: precisions, layouts, variants."""
    entry = catalogue.load("workload", name)
    usual = {**catalogue.defaults("workload", name), **entry.small}
    for option, kind in option_types(entry).items():
        for value in values_of(kind):
            if value != usual[option]:
                yield Trial(f"{name} {option}={value} on {device}", _small(name, device, {option: value}))


class Bench:
    """Where trials are made: a store that is thrown away, and a time that isn't exceeded by much."""

    def __init__(self, diagnosis: Diagnosis, store: Path, clock: Clock, seconds: float) -> None:
        self._diagnosis, self._store, self._clock = diagnosis, store, clock
        self._began_ns: int | None = None  # with the first trial, which is made however short the time is
        self._seconds = seconds

    def tried(self, trial: Trial) -> Tried:
        began_ns = self._clock.now_ns()
        if self._began_ns is None:
            self._began_ns = began_ns
        if seconds_of_ns(began_ns - self._began_ns) > self._seconds:
            return Tried(name=trial.name, result="not tried", words="the time was up")
        result, words, log = self._outcome(trial)
        took = round(seconds_of_ns(self._clock.now_ns() - began_ns), 2)
        return Tried(name=trial.name, result=result, seconds=took, words=words, log=log)

    def _outcome(self, trial: Trial) -> Outcome:
        try:
            if isinstance(trial.request, Inference):
                return self._inferred(trial.request.device)
            head = self._head(trial.request)
            with api.sessions(head) as opened:
                finished = api.carry_out(api.start(head, self._store), head, opened=opened)
        except Interrupted:
            raise
        except (UsageError, NothingMeasured) as error:
            return "can't run here", str(error), ()
        except RigdynoError as error:
            return "fails", str(error), ()
        return _judged(finished.cells)

    def _inferred(self, device: str) -> Outcome:
        catalogue.demand((Requirement("h5py", "volume"), Requirement("tensorstore", "volume")), "infer")
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

    def _head(self, request: Request | DuelRequest) -> RunHead:
        """The machine was looked at once for all of them."""
        system, resources = self._diagnosis.system, look(self._diagnosis.system)
        if isinstance(request, DuelRequest):
            plan = expand_duel(request, system, "cpu", resources)
        else:
            plan = expand(request, system, "cpu", resources.without_meter)
        return RunHead.of(_shortened(plan), system, self._diagnosis.environment)


def _shortened(plan: Plan) -> Plan:
    """A few steps of each cell; of a duel one pair."""
    cells = tuple(
        replace(cell, spec=replace(cell.spec, budget=SHORT))
        for cell in plan.cells
        if cell.pair in (None, 1) and not cell.spare
    )
    return replace(plan, cells=cells, budget_seconds=None)


def _judged(cells: Sequence[StoredCell]) -> Outcome:
    for cell in cells:
        outcome = cell.record.outcome
        if isinstance(outcome, Failed):
            return "fails", f"{outcome.kind} ({outcome.phase}): {outcome.message}", _log(cell)
        if isinstance(outcome, Skipped):
            return "can't run here", outcome.reason, ()
        if isinstance(outcome, Completed) and outcome.quality.correct is False:
            return "fails", "what it computed is wrong", ()
        if isinstance(outcome, Completed) and outcome.quality.loss_finite is False:
            return "fails", "its loss is not a number", ()
    return "works", "", ()


def _log(cell: StoredCell) -> tuple[str, ...]:
    lines: list[str] = []
    for rank in ranks_among(cell.record.participants):
        path = CellFolder(cell.folder).participant(rank.id).log
        if path.exists():
            lines += path.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return tuple(lines)


def without_names(value: Any, store: Path) -> Any:
    """All texts in it without what tells whose machine it is: its name, the user's, and folders that hold them."""
    private = _private(store)
    pattern = re.compile("|".join(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])" for name in private), re.IGNORECASE)
    by_name = {name.lower(): word for name, word in private.items()}
    return _replaced(value, lambda text: pattern.sub(lambda found: by_name[found[0].lower()], text))


def _private(store: Path) -> dict[str, str]:
    """The longest first: a folder may hold a name."""
    host, others = socket.gethostname(), (os.environ.get("SUDO_USER", ""), os.environ.get("USER", ""))
    folders = {str(store): "STORE", str(Path.cwd()): "FOLDER", str(Path.home()): "HOME"}
    names = {host: "HOST", host.partition(".")[0]: "HOST", **dict.fromkeys((_user(), *others), "USER")}
    found = {**folders, **names}
    return {name: found[name] for name in sorted(found, key=len, reverse=True) if name not in ("", "/")}


def _replaced(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):  # its keys are ours
        return {key: _replaced(each, change) for key, each in value.items()}
    return [_replaced(each, change) for each in value] if isinstance(value, list | tuple) else value


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return ""
