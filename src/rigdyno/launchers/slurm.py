"""Starts nodes of a Slurm cluster: inside an allocation, or from a login node, which requests one first.

One `srun` per node starts the node program, and its streams carry the messages. A requested allocation lasts as long as
the command that salloc runs here, which ends with this process, however that ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.base.clock import Deadline
from rigdyno.base.errors import RigdynoError, UsageError
from rigdyno.contracts import Finds, Launcher, Opening, Scope
from rigdyno.launchers.nodes.calls import NodeCommand, connect_nodes, node_command
from rigdyno.launchers.nodes.messages import make_hello
from rigdyno.launchers.nodes.remote import Remote
from rigdyno.launchers.nodes.session import NodesSession
from rigdyno.schema.record import FailureKind
from rigdyno.schema.spec import Cell

# Reports that the nodes are allocated, then waits for the end of its input.
HOLD_COMMAND = 'echo "rigdyno job $SLURM_JOB_ID"; exec cat > /dev/null'

POLL_SECONDS = 1.0

ASK_SECONDS = 20.0  # time for Slurm's controller to answer

END_SECONDS = 20.0  # time for a job to end

STATE_SECONDS = 120.0  # time until a job has its final state: Slurm gives its processes 30 s by default (KillWait)

# Reasons of a pending job that waiting won't remove: it requests what the cluster or the account doesn't have.
_HOPELESS = frozenset((
    "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionConfig", "PartitionInactive", "PartitionNodeLimit",
    "PartitionTimeLimit",
))  # fmt: skip

_GRANTED = re.compile(rb"^rigdyno job (\d+)\n", re.MULTILINE)

_PENDING = re.compile(r"Pending job allocation (\d+)|Granted job allocation (\d+)")

_ENDED = {
    "CANCELLED": "was cancelled",
    "PREEMPTED": "was preempted",
    "TIMEOUT": "ran out of its time",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "ran out of memory",
    "DEADLINE": "reached its deadline",
    "REVOKED": "was revoked",
    "BOOT_FAIL": "could not boot its nodes",
    "FAILED": "failed",
    "COMPLETED": "was ended",
}


class NoAllocation(RigdynoError):
    """Slurm allocates no nodes."""


@dataclass(frozen=True, kw_only=True)
class Slurm(Launcher):
    """Nodes of a Slurm cluster, by salloc and srun"""

    scope: ClassVar[Scope] = "elsewhere"
    finds_nodes_by: ClassVar[Finds | None] = "allocation"

    def open(self, opening: Opening) -> NodesSession:
        for command in ("salloc", "srun", "squeue", "scontrol"):
            if shutil.which(command) is None:
                raise UsageError(f"there is no {command} here; start this on a login node of a Slurm cluster")
        with ExitStack() as opened:
            job = _find_own_job(opening) or _allocate(opening, opened)
            calls = []
            for node in range(opening.nodes):
                call = NodeCommand(_srun_command(job, node, opening.reach.python), _srun_environment())
                opened.callback(call.close)
                calls.append((node, "", call))
            opening.say(f"Slurm job {job}: starting {opening.nodes} node{'s' if opening.nodes > 1 else ''}")
            remotes = connect_nodes(calls, make_hello(opening.system), opening.say)
            _require_cores(remotes, opening.cells)
            return NodesSession(remotes, None, explain_loss=lambda: explain_end(job), on_close=opened.pop_all().close)


def _find_own_job(opening: Opening, variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the job that this process runs in, or None."""
    job = variables.get("SLURM_JOB_ID")
    if job is None:
        return None
    if opening.reach.slurm:
        opening.say(f"this is Slurm job {job} already: --slurm is ignored")
    nodes = variables.get("SLURM_JOB_NUM_NODES") or variables.get("SLURM_NNODES") or "1"
    if not nodes.isdecimal() or int(nodes) < opening.nodes:
        raise UsageError(f"Slurm job {job} has {nodes} node{'s' if nodes != '1' else ''}, not {opening.nodes}")
    return job


def _srun_environment() -> dict[str, str]:
    """Return the environment without variables that would change the streams or the cores of our job steps."""
    removed = ("SLURM_LABELIO", "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_CPU_BIND")
    return {name: value for name, value in os.environ.items() if not name.startswith(removed)}


def count_cores_needed(cells: Sequence[Cell]) -> int:
    """Return the cores that the ranks of a node need; 0 if none of them computes on the CPU."""
    on_cores = [cell.spec for cell in cells if cell.spec.device == "cpu"]
    return max((spec.world_size // spec.nodes * (spec.threads or 1) for spec in on_cores), default=0)


def _require_cores(remotes: Sequence[Remote], cells: Sequence[Cell]) -> None:
    """Raise if a node has too few cores. Slurm gives a task one core by default, and ranks that share it would measure
    something else."""
    need = count_cores_needed(cells)
    for remote in remotes:
        has = need if remote.hello is None else remote.hello.system.cpu.usable_cores
        if has < need:
            option = f"--slurm cpus-per-task={need}"
            raise NoAllocation(f"{remote} may use {has} cores, and its ranks need {need}; ask for them with {option}")


def _srun_command(job: str, node: int, python: str | None) -> list[str]:
    """Return a command for one task on the node of this number, with all of the job's resources there, which may
    overlap with other steps."""
    where = [f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--relative={node}", "--overlap"]
    how = ["--export=ALL", "--kill-on-bad-exit=0", "--mpi=none", "--cpu-bind=none", "--quiet"]
    return ["srun", *where, *how, "/bin/sh", "-c", node_command(python)]


def _allocate(opening: Opening, opened: ExitStack) -> str:
    options = [f"--{key}={value}" if value else f"--{key}" for key, value in opening.reach.slurm.items()]
    usual = [f"--nodes={opening.nodes}", "--ntasks-per-node=1", "--job-name=rigdyno", "--wait-all-nodes=1"]
    cores = count_cores_needed(opening.cells)
    if cores and not {"cpus-per-task", "exclusive", "mincpus"} & set(opening.reach.slurm):
        usual.append(f"--cpus-per-task={cores}")
    allocation = Allocation(["salloc", *usual, *options, "/bin/sh", "-c", HOLD_COMMAND])
    opened.callback(allocation.release)
    return allocation.wait_until_granted(opening.say)


class Allocation:
    """Nodes that salloc allocates, until they are released."""

    def __init__(self, command: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the allocation
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def wait_until_granted(self, say: Callable[[str], None]) -> str:
        """Return the job's number once its nodes are allocated. There is no deadline; changes of its state are
        reported."""
        last_words, output = "", b""
        while True:
            assert self._process.stdout is not None
            output += self._process.stdout.read() or b""
            if (job := _GRANTED.search(output)) is not None:
                return job[1].decode()
            if self._process.poll() is not None:
                lines = self._read_errors().splitlines()
                raise NoAllocation(f"Slurm gives no nodes: {lines[-1] if lines else 'salloc ended without a message'}")
            words = self._describe_state()
            if words and words != last_words:
                say(words)
                last_words = words
            time.sleep(POLL_SECONDS)

    def _describe_state(self) -> str | None:
        """Return the state of the job in words. Raises NoAllocation if it can never start."""
        match = _PENDING.search(self._read_errors())
        if match is None:
            return None
        job = match[1] or match[2]
        answer = run_slurm_command("squeue", "--noheader", f"--job={job}", "--format=%T|%r") or ""
        state, _, reason = answer.strip().partition("|")
        words = f"job {job} is {state.lower()}: {reason}"
        if state == "PENDING" and reason in _HOPELESS:
            raise NoAllocation(f"Slurm gives no nodes: {words}")
        return f"Slurm {words}" if state else None

    def _read_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def release(self) -> None:
        """End the job; the signal cancels a job that is still pending."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if not self._wait_for_end(END_SECONDS if self._is_granted else 0.0):
            self._process.terminate()
            if not self._wait_for_end(END_SECONDS):
                self._process.kill()
        self._process.wait()
        self._errors.close()

    @property
    def _is_granted(self) -> bool:
        return "Granted job allocation" in self._read_errors()

    def _wait_for_end(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None


def run_slurm_command(*command: str) -> str | None:
    """Return the output of a Slurm command, or None if it doesn't answer in time."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout


def explain_end(job: str) -> tuple[FailureKind, str] | None:
    """Return why the job ended. None: it still runs, so a node was lost, or Slurm doesn't answer."""
    deadline = Deadline(STATE_SECONDS)
    ending = None
    while not deadline.passed:
        answer = run_slurm_command("scontrol", "show", "job", "--oneliner", job)
        if answer is not None:
            match = re.search(r"JobState=(\w+) Reason=(\S+)", answer)
            if match is None:
                return "job_ended", f"Slurm no longer knows job {job}"
            state, reason = match[1], match[2]
            if state in _ENDED:
                because = f" ({reason})" if reason != "None" else ""
                return "job_ended", f"Slurm job {job} {_ENDED[state]}{because}"
            if state != "COMPLETING":
                return None
            ending = f"Slurm job {job} is ending"
        time.sleep(POLL_SECONDS)
    return None if ending is None else ("job_ended", ending)
