"""Nodes of a Slurm cluster: inside an allocation, or from the login node, where one is asked for first.

Every node gets the node program by an `srun` of its own, whose streams carry what is said. An allocation that we asked
for lasts as long as the command that salloc runs for us here, and that ends when this process does, however it ends.
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

from rigdyno.contracts import Opening, Requirement, Scope
from rigdyno.errors import RigdynoError, UsageError
from rigdyno.launchers._nodes.calls import Call, met, node_command
from rigdyno.launchers._nodes.messages import hello
from rigdyno.launchers._nodes.remote import Remote
from rigdyno.launchers._nodes.session import NodesSession
from rigdyno.schema.record import FailureKind
from rigdyno.schema.spec import Cell

# Says that the nodes are ours, then waits for the end of its input.
HELD = 'echo "rigdyno job $SLURM_JOB_ID"; exec cat > /dev/null'
POLL_SECONDS = 1.0
ASK_SECONDS = 20.0  # for Slurm's controller to answer
END_SECONDS = 20.0  # for a job to come to its end
STATE_SECONDS = 120.0  # for the final state of a job: Slurm first gives its processes time, 30 s by default (KillWait)
# Reasons of a pending job that no waiting removes: it asks for what the cluster or the account hasn't got.
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
    """Slurm gives us no nodes."""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Nodes of a Slurm cluster, by salloc and srun"""

    requires: ClassVar[tuple[Requirement, ...]] = ()
    scope: ClassVar[Scope] = "elsewhere"

    def open(self, opening: Opening) -> NodesSession:
        for command in ("salloc", "srun", "squeue", "scontrol"):
            if shutil.which(command) is None:
                raise UsageError(f"there is no {command} here; start this on a login node of a Slurm cluster")
        with ExitStack() as held:
            job = _own_job(opening) or _allocated(opening, held)
            calls = []
            for node in range(opening.nodes):
                call = Call(_srun(job, node, opening.reach.python), _own_variables())
                held.callback(call.hang_up)
                calls.append((node, "", call))
            opening.say(f"Slurm job {job}: starting {opening.nodes} node{'s' if opening.nodes > 1 else ''}")
            remotes = met(calls, hello(opening.system), opening.say)
            _require_cores(remotes, opening.cells)
            return NodesSession(remotes, None, why_lost=lambda: why_ended(job), at_last=held.pop_all().close)


def _own_job(opening: Opening, variables: Mapping[str, str] = os.environ) -> str | None:
    """Of the allocation that this process is in, if it is in one."""
    job = variables.get("SLURM_JOB_ID")
    if job is None:
        return None
    if opening.reach.slurm:
        opening.say(f"this is Slurm job {job} already: what --slurm asks for is left out")
    told = variables.get("SLURM_JOB_NUM_NODES") or variables.get("SLURM_NNODES") or "1"
    if not told.isdecimal() or int(told) < opening.nodes:
        raise UsageError(f"Slurm job {job} has {told} node{'s' if told != '1' else ''}, not {opening.nodes}")
    return job


def _own_variables() -> dict[str, str]:
    """Without what would change the streams or the cores of our own steps."""
    ours = ("SLURM_LABELIO", "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_CPU_BIND")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def cores_needed(cells: Sequence[Cell]) -> int:
    """On a node, for ranks that compute on its cores; 0: none of them does."""
    on_cores = [cell.spec for cell in cells if cell.spec.device == "cpu"]
    return max((spec.world_size // spec.nodes * (spec.threads or 1) for spec in on_cores), default=0)


def _require_cores(remotes: Sequence[Remote], cells: Sequence[Cell]) -> None:
    """Slurm gives a task one core unless it is asked: ranks that share it would measure something else."""
    need = cores_needed(cells)
    for remote in remotes:
        has = need if remote.hello is None else remote.hello.system.cpu.usable_cores
        if has < need:
            ask = f"--slurm cpus-per-task={need}"
            raise NoAllocation(f"{remote} may use {has} cores, and its ranks need {need}; ask for them with {ask}")


def _srun(job: str, node: int, python: str | None) -> list[str]:
    """One task on the node of that number, with all that the job has there, beside whatever else runs in it."""
    where = [f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--relative={node}", "--overlap"]
    how = ["--export=ALL", "--kill-on-bad-exit=0", "--mpi=none", "--cpu-bind=none", "--quiet"]
    return ["srun", *where, *how, "/bin/sh", "-c", node_command(python)]


def _allocated(opening: Opening, held: ExitStack) -> str:
    options = [f"--{key}={value}" if value else f"--{key}" for key, value in opening.reach.slurm.items()]
    usual = [f"--nodes={opening.nodes}", "--ntasks-per-node=1", "--job-name=rigdyno", "--wait-all-nodes=1"]
    cores = cores_needed(opening.cells)
    if cores and not {"cpus-per-task", "exclusive", "mincpus"} & set(opening.reach.slurm):
        usual.append(f"--cpus-per-task={cores}")
    allocation = Allocation(["salloc", *usual, *options, "/bin/sh", "-c", HELD])
    held.callback(allocation.release)
    return allocation.granted(opening.say)


class Allocation:
    def __init__(self, command: list[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the allocation
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, start_new_session=True
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def granted(self, say: Callable[[str], None]) -> str:
        """The job, once its nodes are ours. A queue has no deadline: what it waits for is said when that changes."""
        told, output = "", b""
        while True:
            assert self._process.stdout is not None
            output += self._process.stdout.read() or b""
            if (job := _GRANTED.search(output)) is not None:
                return job[1].decode()
            if self._process.poll() is not None:
                lines = self._words().splitlines()
                raise NoAllocation(f"Slurm gives no nodes: {lines[-1] if lines else 'salloc ended without a word'}")
            words = self._waiting()
            if words and words != told:
                say(words)
                told = words
            time.sleep(POLL_SECONDS)

    def _waiting(self) -> str | None:
        """What for, in words. Raises where there is no hope."""
        found = _PENDING.search(self._words())
        if found is None:
            return None
        job = found[1] or found[2]
        answer = asked("squeue", "--noheader", f"--job={job}", "--format=%T|%r") or ""
        state, _, reason = answer.strip().partition("|")
        words = f"job {job} is {state.lower()}: {reason}"
        if state == "PENDING" and reason in _HOPELESS:
            raise NoAllocation(f"Slurm gives no nodes: {words}")
        return f"Slurm {words}" if state else None

    def _words(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace").strip()

    def release(self) -> None:
        """A job that is still pending is cancelled by the signal."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if not self._ended_within(END_SECONDS if self._granted else 0.0):
            self._process.terminate()
            if not self._ended_within(END_SECONDS):
                self._process.kill()
        self._process.wait()
        self._said.close()

    @property
    def _granted(self) -> bool:
        return "Granted job allocation" in self._words()

    def _ended_within(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None


def asked(*command: str) -> str | None:
    """Return what a command of Slurm prints, or None if it gives no answer in time."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout


def why_ended(job: str) -> tuple[FailureKind, str] | None:
    """Return why the job ended. None: it runs, so a node of it was lost, or Slurm gives no answer."""
    deadline = time.monotonic() + STATE_SECONDS
    ending = None
    while time.monotonic() < deadline:
        answer = asked("scontrol", "show", "job", "--oneliner", job)
        if answer is not None:
            found = re.search(r"JobState=(\w+) Reason=(\S+)", answer)
            if found is None:
                return "job_ended", f"Slurm no longer knows job {job}"
            state, reason = found[1], found[2]
            if state in _ENDED:
                because = f" ({reason})" if reason != "None" else ""
                return "job_ended", f"Slurm job {job} {_ENDED[state]}{because}"
            if state != "COMPLETING":
                return None
            ending = f"Slurm job {job} is coming to its end"
        time.sleep(POLL_SECONDS)
    return None if ending is None else ("job_ended", ending)
