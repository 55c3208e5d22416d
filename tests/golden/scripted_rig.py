"""A scripted machine for the golden tests: fixed hardware, a manual clock, and processes that only pretend to measure.

This is the only file of the golden tests that touches modules below `rigdyno.cli`. When a module moves, adapt the
imports here.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest import mock

import msgspec
import numpy as np
import psutil
from scripted_workloads import LEAST_STEPS, MOST_STEPS, Asked, Script, random_for, script_process

from rigdyno import catalogue, cli
from rigdyno.base.clock import SystemClock, utc_now
from rigdyno.base.files import write_json
from rigdyno.base.linux import peak_memory_bytes, read_text
from rigdyno.contracts import Exit, Left, Unavailable
from rigdyno.launchers.nodes.local import NodeSampler
from rigdyno.probes.common.probe_set import has_power_channel, load_probes
from rigdyno.rig.child import ChildEnd, run_snippet
from rigdyno.rig.devices import FoundDevices, find_accelerators, find_accelerators_here, find_loaded_frameworks
from rigdyno.rig.environment import describe_environment
from rigdyno.rig.system import describe_system
from rigdyno.runner.collect import CellExit, measured_record
from rigdyno.runner.pairs.pair import PairRun
from rigdyno.runner.sessions import open_sessions
from rigdyno.schema.channel import Channel
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import WorkerReport
from rigdyno.schema.samples import PHASES, STEP_FIELDS, WARM_UP, Header, RowFile, telemetry_header
from rigdyno.schema.spec import RunSpec, on_node, ranks_among
from rigdyno.schema.system import Accelerator, Cache, Cpu, Environment, GitState, System
from rigdyno.workloads.datasets.mnist import find_missing_file
from stored_duels import write_turns
from support import NOW, ManualClock, rows_path

GB = 10**9
SYSTEM = System(
    cpu=Cpu(
        model="Scripted CPU 9000",
        physical_cores=2,
        logical_cores=4,
        usable_cores=2,
        numa_nodes=1,
        caches=(
            Cache(level=1, kind="data", size_bytes=32 * 2**10, shared_by=2),
            Cache(level=2, kind="unified", size_bytes=2**20, shared_by=2),
            Cache(level=3, kind="unified", size_bytes=16 * 2**20, shared_by=4),
        ),
        simd=("avx2", "fma"),
        max_mhz=3600.0,
    ),
    memory_bytes=16 * GB,
    operating_system="Scripted Linux 12",
    kernel="6.1.0",
    architecture="x86_64",
)
CARD = Accelerator(kind="cuda", name="Scripted GPU 24GB", memory_bytes=24 * GB, capability="8.6")
ENVIRONMENT = Environment(
    python="3.11.7",
    packages={"rigdyno": "0.1.0", "torch": "2.13.0", "numpy": "2.3.0", "tensorflow-cpu": "2.20.0", "opacus": "1.5.4"},
    variables={"OMP_NUM_THREADS": "1"},
    governor="performance",
    huge_pages="madvise",
    load_average=0.1,
    rigdyno_git=GitState(commit="0123456789abcdef0123456789abcdef01234567", dirty=False),
)
FRAMEWORK = {"torch": "2.13.0+cpu", "cpu_capability": "AVX2"}
MISSING_MODULE = "horovod"  # every other optional package counts as installed

DiskUsage = namedtuple("DiskUsage", ("total", "used", "free"))


def list_verbs() -> list[str]:
    """Return every verb as a user types it."""
    return [name.replace("_", "-") for name in catalogue.names("command")]


def list_suites() -> list[str]:
    """Return every suite of the catalogue."""
    return list(catalogue.names("suite"))


def compute_key(document: dict) -> str:
    """Return the key of the run specification that a JSON document describes."""
    return msgspec.convert(document, RunSpec).key()


def run_cli(
    *arguments: str, folder: Path, code: int | None = 0, errors: bool = False, slower: float = 1.0, cards: int = 0
) -> str:
    """Run `rigdyno` in that folder on the scripted machine, and return what it prints on standard output.

    `code` is the expected exit code; None accepts any. With `errors`, return what it prints on standard error.
    The machine may be `slower`, and may have GPUs (`cards`).
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        scripted_machine(slower, cards),
        _working_in(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        found = cli.main(arguments)
    said = err.buffer.getvalue().decode()
    assert code in (found, None), f"exit code {found}: {said}"
    return said if errors else out.buffer.getvalue().decode()


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Change to that folder, with 80 columns and without the user's settings."""
    before = Path.cwd()
    kept = ("PATH", "HOME", "TMPDIR", "PYTHONPATH")
    settings = {name: os.environ[name] for name in kept if name in os.environ}
    settings |= {"COLUMNS": "80", "XDG_CONFIG_HOME": str(folder / "no-config"), "TERM": "dumb", "TZ": "UTC"}
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, settings, clear=True):
            yield
    finally:
        os.chdir(before)


@contextmanager
def scripted_machine(slower: float = 1.0, cards: int = 0) -> Iterator[None]:
    """Replace every function that reads the real machine, its clock or its packages."""
    clock = ManualClock()
    disk = DiskUsage(total=500 * GB, used=400 * GB, free=100 * GB)
    memory = SimpleNamespace(total=16 * GB, available=14 * GB, used=2 * GB, free=14 * GB, percent=12.5)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(shutil, "disk_usage", return_value=disk))
        stack.enter_context(mock.patch.object(psutil, "virtual_memory", return_value=memory))
        stack.enter_context(mock.patch.object(os, "statvfs", return_value=SimpleNamespace(f_blocks=64, f_frsize=10**6)))
        for name in ("now_ns", "wall_ns", "sleep"):
            stack.enter_context(mock.patch.object(SystemClock, name, staticmethod(getattr(clock, name))))
        for original, replacement in _replacements(slower, cards).items():
            stack.enter_context(_replaced_everywhere(original, replacement))
        yield


def _replacements(slower: float, cards: int) -> dict:
    return {
        find_accelerators_here: lambda: (CARD,) * cards,
        catalogue.find_missing: _find_missing,
        describe_environment: lambda *_: ENVIRONMENT,
        describe_system: lambda accelerators=(), *_: msgspec.structs.replace(SYSTEM, accelerators=accelerators),
        find_accelerators: lambda: FoundDevices(threads=2, versions=FRAMEWORK),
        load_probes: lambda _: {name: ScriptedProbe(name) for name in catalogue.names("probe")},
        find_loaded_frameworks: lambda: [],
        find_missing_file: lambda _: None,  # Fashion-MNIST counts as installed
        NodeSampler: ScriptedSampler,
        open_sessions: lambda *_, **__: ScriptedSessions(slower),
        PairRun: ScriptedPair,
        peak_memory_bytes: lambda: 1_150_000_000,
        read_text: lambda _: "always [madvise] never",  # whether there are huge pages
        has_power_channel: lambda _: True,
        run_snippet: try_snippet,
        utc_now: lambda: NOW,
    }


def _find_missing(requirements):
    needed = any(requirement.module == MISSING_MODULE for requirement in requirements)
    return Unavailable(f"{MISSING_MODULE} is not installed", "make horovod") if needed else None


@contextmanager
def _replaced_everywhere(original, replacement) -> Iterator[None]:
    """Replace a function in every module that has imported it by name, and put it back in the end."""
    _swap(original, replacement)
    try:
        yield
    finally:
        _swap(replacement, original)


def _swap(old, new) -> None:
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "rigdyno"]
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)


class ScriptedSessions:
    """Starts processes that write the files of a real worker and a real sampler at once."""

    def __init__(self, slower: float) -> None:
        self.slower = slower

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def of(self, cell):
        return self

    def is_lost(self, cell):
        return False

    def start(self, cell, folder):
        return ScriptedLaunch(cell, folder, self.slower)


class ScriptedLaunch:
    def __init__(self, cell, folder: Path, slower: float) -> None:
        self.cell, self.folder = cell, CellFolder(folder)
        self.asked = describe_request(cell)
        self.script = script_process(self.asked, slower)
        began_ns = SystemClock.now_ns()
        SystemClock.sleep(self.script.start_seconds)
        self._step()
        evaluation = self.script.quality.get("evaluation_seconds", 0.0)
        SystemClock.sleep(evaluation + 0.5)
        for participant in cell.participants:
            if participant.rank is None:
                self._sample(participant, began_ns)

    def wait(self, seconds: float) -> bool:
        return True

    def stop(self) -> None:
        raise AssertionError("a scripted process is over at once")

    def collect(self) -> Left:
        failed = int(self.script.failure is not None)
        ranks = {rank.id for rank in ranks_among(self.cell.participants)}
        codes = {each.id: (-self.script.signal or failed) if each.id in ranks else 0 for each in self.cell.participants}
        nodes = self.cell.spec.nodes
        return Left(exits=[Exit(code, name) for name, code in codes.items()], nodes=[SYSTEM] * nodes * (nodes > 1))

    def _step(self) -> None:
        """Write the steps, the phases and the report of every rank, and move the clock to the end of the steps."""
        began_ns = SystemClock.now_ns()
        self.rows = make_steps(self.script, self.asked, self.cell.spec.budget, began_ns)
        for rank in ranks_among(self.cell.participants):
            header = Header(fields=STEP_FIELDS, kinds=tuple(self.script.kinds), participant=rank)
            write_rows(rows_path(self.folder.path, name=rank.id), header, self.rows)
            if self.script.phases:
                header = Header(fields=STEP_FIELDS, kinds=PHASES, participant=rank)
                phases = make_phases(self.rows, share_phases(self.script.phases, rank.rank))
                write_rows(rows_path(self.folder.path, "phases", rank.id), header, phases)
            if not self.script.signal:
                write_json(self.folder.participant(rank.id).report, make_report(self.script, self.cell.spec))
        self.ended_ns = int(self.rows["end_ns"][-1])
        SystemClock.sleep((self.ended_ns - began_ns) / 1e9)

    def _sample(self, sampler, began_ns: int) -> None:
        ranks = len(ranks_among(on_node(self.cell.participants, sampler.node)))
        window = (began_ns, int(self.rows["start_ns"][0]), self.ended_ns, SystemClock.now_ns())
        rows = make_telemetry(self.script, self.asked, ranks, window)
        path = rows_path(self.folder.path, "telemetry", sampler.id)
        write_rows(path, telemetry_header(CHANNELS, sampler, {"nvml": "no NVIDIA driver here"}), rows)


class ScriptedPair:
    """Replaces two processes that take turns. The second is faster or slower by a fixed ratio."""

    RATIOS = (0.968, 0.971, 0.969, 0.966, 0.972, 0.968, 0.97, 0.967)
    OWN_RATIOS = (1.006, 0.995, 1.004, 0.993)

    def __init__(self, head, run, cells, folders, observer, clock, limit_seconds) -> None:
        self.head, self.run, self.cells, self.folders = head, run, cells, folders

    def measure(self):
        ratios = self.OWN_RATIOS if self.head.plan.duel.self_duel else self.RATIOS
        SystemClock.sleep(sum(cell.seconds for cell in self.cells))
        records = []
        for cell, folder in zip(self.cells, self.folders, strict=True):
            write_turns(rows_path(folder), ratios[(cell.pair - 1) % len(ratios)] if cell.arm == "b" else 1.0)
            report = make_report(script_process(describe_request(cell)), cell.spec)
            write_json(CellFolder(folder).participant("rank0").report, report)
            left = Left(exits=[Exit(0, "rank0")])
            records.append(measured_record(self.head, self.run, cell, folder, CellExit(left)))
        return tuple(records)


PROBES = {  # NaN: this channel can't be read
    "host": {
        **{"cpu0": 0.5, "cpu1": 0.5, "steal_share": 0.002, "frequency_mhz": np.nan, "run_queue_wait_share": 0.09},
        **{"worker_cpu_share": 1.9, "psi_cpu_some": 0.08, "psi_memory_some": 0.0, "psi_io_some": 0.01},
        "temperature_c": np.nan,
    },
    "ina3221": {"VDD_IN_w": 17.5},
    "rapl": {"package0_energy_joules": 1234.5},
}


class ScriptedProbe:
    """Has the summary and the hints of a real probe. The host, RAPL and INA3221 can be read, NVML and others can't."""

    def __init__(self, name: str) -> None:
        real = catalogue.load("probe", name)
        self.name, self.hints, self.__doc__ = name, real.hints, real.__doc__

    def availability(self):
        if self.name in PROBES:
            return None
        return Unavailable(f"there is no scripted {self.name}", "install it" if self.name == "nvml" else None)

    def open(self, pids):
        return [Channel(name, "share", sensor=self.name) for name in PROBES[self.name]]

    def read(self):
        return list(PROBES[self.name].values())

    def close(self):
        return None


def try_snippet(snippet: str, seconds: float, variables=None) -> ChildEnd:
    """Pretend to run the code of a trap: fp16 needs older instructions, and there is no compiler."""
    if "torch.float16" in snippet:
        return ChildEnd(0 if variables == {"ONEDNN_MAX_CPU_ISA": "AVX2"} else -4)
    if "torch.compile" in snippet:
        return ChildEnd(1, errors="InvalidCxxCompiler: No working C++ compiler found")
    return ChildEnd(0, output="0.0 0.97" if "huge_bytes" in snippet else "")


class ScriptedSampler:
    """The sampler of a run in this process: it leaves no telemetry."""

    def __init__(self, part) -> None:
        self.name = part.sampler.id

    def stop(self):
        return [Exit(0, self.name)]


@contextmanager
def scripted_inference() -> Iterator[None]:
    """Replace the engine behind `rigdyno infer`."""
    from rigdyno.engines.blockwise.inference import Inference

    with _replaced_everywhere(Inference, ScriptedInference):
        yield


class ScriptedInference:
    """Predicts 24 blocks of a volume, of which the last can't be read, on the manual clock."""

    device, mask, is_begun = "cpu", None, False
    volume = SimpleNamespace(channels=1, dtype=np.dtype("uint8"))
    loaded = SimpleNamespace(name="net.pt2", model=SimpleNamespace(identity=lambda: "0123456789abcdef" * 4))

    def __init__(self, job) -> None:
        self.job = job

    def plan(self):
        from rigdyno.engines.blockwise import Plan
        from rigdyno.engines.blockwise.normalising import Normalisation

        return Plan(
            shape=(150, 1000, 2000), channels=3, block=(50, 500, 500), halo=(4, 16, 16), exact_halo=(12, 48, 48),
            halo_error=0.0042, halo_mean_error=0.00017, halo_places=12, backend="torch", alike=False, blocks=24,
            recomputation=1.234, products=10**12, memory_bytes=3_210_000_000, output_bytes=9 * 10**8, seconds=125.0,
            normalisation=Normalisation((99.5,), (20.25,), "256 places (0.67 of the volume)"),
            remarks=("the answer depends on how the volume is cut: it has InstanceNorm or GroupNorm",),
        )  # fmt: skip

    def run(self, watch, *, waiting):
        from rigdyno.engines.blockwise import Done
        from rigdyno.engines.blockwise.boxes import Box
        from rigdyno.engines.blockwise.journal import BlockCounts
        from rigdyno.engines.blockwise.watching import Failure, Summary

        plan, uniform = self.plan(), Random("infer").random
        watcher = watch(plan, False)
        watcher.started(BlockCounts(to_do=22, done=1, skipped=1, failed=0))
        boxes = [Box((z, y, x), (z + 50, y + 500, x + 500)) for z in (0, 50, 100) for y in (0, 500) for x in X_STARTS]
        for box in boxes[2:23]:
            SystemClock.sleep(5.0 * (1 + 0.05 * (uniform() - 0.5)))
            watcher.block_done(box, 0.4, 4.3, 0.3)
        error = ValueError("a chunk is damaged")
        watcher.block_failed(boxes[23], error)
        summary = Summary(
            done=21, skipped=0, failed=1, failures=(Failure(boxes[23], str(error)),), missing=2, voxels=21 * 12_500_000,
            predict_seconds=90.0, input_wait_seconds=9.0, writer_wait_seconds=6.0, wall_seconds=105.0,
        )  # fmt: skip
        watcher.over(summary)
        return Done(plan, summary, BlockCounts(to_do=0, done=22, skipped=1, failed=1), 1234, 0)


X_STARTS = (0, 500, 1000, 1500)


def describe_request(cell) -> Asked:
    """Return what a cell asks for, as plain values."""
    spec = cell.spec
    return Asked(
        workload=spec.workload,
        options=spec.resolved,
        update=spec.update,
        arrangement=spec.arrangement,
        ranks=len(ranks_among(cell.participants)) or spec.world_size,
        repeat=cell.repeat,
        seed=spec.seed,
        steps=spec.budget.job_steps or spec.budget.max_steps,
        items=spec.budget.job_items,
        is_try=cell.attempt_of is not None,
        is_soak=spec.budget.stop == "clock",
        allowed_bytes=cell.allowed_bytes,
    )


def make_report(script: Script, spec) -> WorkerReport:
    if script.failure is None:
        outcome = {"type": "completed", "quality": dict(script.quality)}
    else:
        kind, phase, message = script.failure
        outcome = {"type": "failed", "kind": kind, "phase": phase, "message": message}
    environment = msgspec.structs.replace(ENVIRONMENT, threads=spec.threads or 2, framework=FRAMEWORK)
    document = {
        "outcome": outcome,
        "facts": {
            "unit": script.unit,
            "per_item": dict(script.per_item),
            "epoch_items": script.epoch_items,
            "settled": dict(script.settled),
            "notes": list(script.notes),
        },
        "environment": msgspec.to_builtins(environment),
        "peak_memory_bytes": script.memory_bytes,
        "start_seconds": script.start_seconds,
    }
    return msgspec.convert(document, WorkerReport)


def make_steps(script: Script, asked: Asked, budget, began_ns: int):
    """Return the rows of one rank: a slow warm-up, then steps that differ a little."""
    kinds = list(script.kinds.values())
    count = count_steps(script, asked, budget)
    uniform = random_for(asked, "steps").random
    warm_up = min(5, count // 3)
    rows = np.zeros(count * len(kinds), dtype=list(STEP_FIELDS))
    at_ns = began_ns
    for number in range(len(rows)):
        turn, kind = divmod(number, len(kinds))
        ms, items = kinds[kind]
        noise = script.spread * (uniform() + uniform() - 1.0)
        slower = 1.6 - 0.1 * turn if turn < warm_up else disturb(script.trouble, turn / count)
        end_ns = at_ns + round(1e6 * ms * slower * (1 + noise))
        rows[number] = (at_ns, end_ns, items, 1, kind, WARM_UP if turn < warm_up else 0)
        at_ns = end_ns
    return rows[rows["end_ns"] <= began_ns + 1e9 * budget.seconds] if asked.is_soak else rows


def disturb(trouble: str, progress: float) -> float:
    """Return how many times longer a step takes that far into the run."""
    if trouble == "drifting":
        return 1 + 0.08 * progress
    if trouble == "throttled":
        return 1.0 if progress < 0.4 else 1.9
    if trouble == "warming":
        return 1 + 0.5 * progress * progress
    return 1.0


def count_steps(script: Script, asked: Asked, budget) -> int:
    if script.steps is not None:
        return script.steps
    if asked.steps is not None:
        return asked.steps + (2 if asked.is_try else 0)
    round_seconds = sum(ms for ms, _ in script.kinds.values()) / 1e3
    if asked.items is not None:
        return -(-asked.items // round(sum(items for _, items in script.kinds.values())))
    count = int(0.85 * budget.seconds / round_seconds)
    return count if asked.is_soak else max(LEAST_STEPS, min(MOST_STEPS, count))


def share_phases(shares, rank: int) -> dict[str, float]:
    """Return the shares of one rank: the later ones compute longer, and wait less for the others."""
    more = 0.012 * rank if "communication" in shares else 0.0
    changes = {"forward": more, "communication": -more}
    return {phase: share + changes.get(phase, 0.0) for phase, share in shares.items()}


def make_phases(steps, shares):
    """Return the rows of the phases, one after the other in every step."""
    lengths = steps["end_ns"] - steps["start_ns"]
    rows = np.zeros((len(steps), len(shares)), dtype=list(STEP_FIELDS))
    done = 0.0
    for column, (phase, share) in enumerate(shares.items()):
        rows["start_ns"][:, column] = steps["start_ns"] + np.round(done * lengths).astype(np.int64)
        rows["end_ns"][:, column] = steps["start_ns"] + np.round((done + share) * lengths).astype(np.int64)
        rows["kind"][:, column] = PHASES.index(phase)
        done += share
    rows["steps"] = 1
    return rows.reshape(-1)


CHANNELS = (
    *(Channel(f"cpu{core}", "share", "utilisation", device=f"cpu{core}", sensor="host") for core in (0, 1)),
    Channel("steal_share", "share", sensor="host"),
    Channel("frequency_mhz", "MHz", "clock", device="cpu", sensor="host"),
    Channel("run_queue_wait_share", "share", sensor="host"),
    Channel("worker_cpu_share", "share", sensor="host"),
    Channel("psi_memory_some", "share", sensor="host"),
    Channel("worker_memory_bytes", "B", "memory", device="worker", sensor="host"),
    Channel("temperature_c", "C", "temperature", device="cpu", sensor="host"),
    Channel("worker_stopped_share", "share", sensor="host"),
    Channel("throttled_share", "share", sensor="host"),
    Channel("package0_energy_joules", "J", "energy", "counter", "package0", "", "package", "whole", 0.001, "rapl"),
    Channel("VDD_IN_w", "W", "power", device="board", rail="VDD_IN", scope="board", extent="whole", sensor="ina3221"),
)


def make_telemetry(script: Script, asked: Asked, ranks: int, window: tuple[int, int, int, int]):
    """Return a reading every half second: from the start of the processes to their end."""
    began_ns, first_ns, last_ns, ended_ns = window
    at_ns = np.arange(began_ns, ended_ns + 500_000_001, 500_000_000)
    uniform = random_for(asked, "telemetry").random
    rows = np.zeros(len(at_ns), dtype=[("at_ns", "<i8"), *((channel.name, "<f8") for channel in CHANNELS)])
    joules = 1000.0
    for number, now_ns in enumerate(at_ns.tolist()):
        stepping = first_ns <= now_ns <= last_ns
        watts = (script.watts if stepping else 14.0) * (1 + 0.04 * (uniform() - 0.5))
        joules += 0.5 * watts
        idle = script.unit == "pause" or not stepping
        own = 0.02 if idle else min(2.0, 0.97 * max(ranks, 1 if ranks > 1 else 2))
        other = 0.8 if stepping and script.trouble == "neighbour" else 0.01
        rows[number] = (
            now_ns,
            min(1.0, (own + other) / 2 + 0.02 * uniform()),
            min(1.0, (own + other) / 2 + 0.02 * uniform()),
            0.001,
            3400.0 + 20.0 * uniform(),
            0.4 if other > 0.5 else 0.004,
            own - (other if other > 0.5 else 0.0),
            0.0,
            float(script.memory_bytes),
            51.0 + 6.0 * uniform(),
            0.03 if script.trouble == "stopped" and stepping else 0.0,
            0.0,
            joules,
            watts + 6.0,
        )
    return rows


def write_rows(path: Path, header: Header, rows) -> None:
    file = RowFile(path, header)
    file.append(rows.tobytes())
    file.close()
