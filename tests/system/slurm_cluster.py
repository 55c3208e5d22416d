"""A Slurm cluster of several virtual nodes on one machine: real daemons, with their own key and ports."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

START_SECONDS = 240.0
STOP_SECONDS = 120.0
PAUSE_SECONDS = 0.1
SETTINGS = """\
ClusterName=rigdyno
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={short}/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={short}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
SlurmdTimeout=300
KillWait=20
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=CANCEL MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    folder: Path
    environment: dict[str, str]
    """Variables by which a command finds this Slurm."""

    def ask(self, *command: str) -> str:
        """Return what a command of Slurm prints, e.g. `squeue --noheader`."""
        answer = subprocess.run(
            command, env=_clean(self.environment), capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        assert answer.returncode == 0, f"{' '.join(command)}: exit code {answer.returncode}: {answer.stderr}"
        return answer.stdout


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 2) -> Iterator[Cluster]:
    """Run nodes n1, n2, ... of one CPU each. Jobs in the default partition `main` preempt those in `low`."""
    munged, controller, node = (_program(name) for name in ("munged", "slurmctld", "slurmd"))
    names = [f"n{number}" for number in range(1, nodes + 1)]
    cluster = Cluster(folder, {"SLURM_CONF": str(folder / "slurm.conf")})
    with ExitStack() as stack:
        short = _short_folder(stack)
        _configure(folder, short, names)
        stack.callback(_kill_strays, cluster)
        stack.enter_context(_daemon(cluster, "munged", munged, *_munge_options(folder, short)))
        _wait(cluster, "munged to listen", (short / "munge.socket").exists)
        for name in names:
            stack.enter_context(_daemon(cluster, f"slurmd.{name}", node, "-D", "-N", name))
        started = stack.enter_context(_daemon(cluster, "slurmctld", controller, "-D", "-c"))
        _wait(cluster, "the nodes to be idle", lambda: _states(cluster) == ["idle"] * nodes)
        stack.callback(_cancel_jobs, cluster, started)
        yield cluster


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None or shutil.which("srun") is None:
        pytest.skip(f"needs {name} and srun (Debian: munge, slurmctld, slurmd, slurm-client)")
    return found


def _short_folder(stack: ExitStack) -> Path:
    """Make a folder for sockets, whose paths have at most 107 characters; the path of a test may be longer."""
    folder = Path(tempfile.mkdtemp(prefix="slurm"))
    stack.callback(shutil.rmtree, folder)
    folder.chmod(0o755)  # munged requires that all users can reach its socket
    return folder


def _configure(folder: Path, short: Path, names: list[str]) -> None:
    host, address = socket.gethostname().split(".")[0], _loopback_address()
    port, *ports = _free_ports(address, 1 + len(names))
    nodes = [
        f"NodeName={name} NodeHostname={host} NodeAddr={address} Port={its} CPUs=1"
        for name, its in zip(names, ports, strict=True)
    ]
    for path in (folder, folder / "state"):
        path.mkdir(parents=True, exist_ok=True)
    (folder / "slurm.conf").write_text(
        SETTINGS.format(host=host, address=address, port=port, folder=folder, short=short, nodes="\n".join(nodes))
    )
    (folder / "munge.key").touch(mode=0o600)
    (folder / "munge.key").write_bytes(secrets.token_bytes(64))


def _loopback_address() -> str:
    """Return the address of this machine's name, on which Slurm's daemons listen. Other machines must not reach it."""
    try:
        address = socket.gethostbyname(name := socket.gethostname())
    except OSError as error:
        pytest.skip(f"the name of this machine has no address: {error}; try a line '127.0.0.1 {name}' in /etc/hosts")
    if not address.startswith("127."):
        pytest.skip(f"{name} is {address} and others can reach it; try a line '127.0.0.1 {name}' in /etc/hosts")
    return address


def _free_ports(address: str, count: int) -> list[int]:
    """Return distinct free ports; all are bound at the same time."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((address, 0))
        return [each.getsockname()[1] for each in sockets]


def _munge_options(folder: Path, short: Path) -> list[str]:
    """Return the options of munged. Without `--force` it refuses a folder below one that all users may write to."""
    files = {"key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    return ["--foreground", "--force", f"--socket={short}/munge.socket", *options]


@contextmanager
def _daemon(cluster: Cluster, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon in its own session: Ctrl-C ends the test first, and the test ends the daemon."""
    with (cluster.folder / f"{name}.err").open("wb") as log:
        process = subprocess.Popen(
            command, env=_clean(cluster.environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=cluster.folder, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _clean(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment without the variables of a Slurm job in which these tests may run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | environment


def _wait(cluster: Cluster, what: str, done: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not done():
        if time.monotonic() > end:
            logs = [f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(cluster.folder.glob("*.err"))]
            raise TimeoutError("\n".join([f"waited {START_SECONDS:.0f} s for {what}", *logs]))
        time.sleep(PAUSE_SECONDS)


def _states(cluster: Cluster) -> list[str]:
    """Return the states of the nodes; the list is empty while the controller doesn't answer."""
    command = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"]
    answer = subprocess.run(command, env=_clean(cluster.environment), capture_output=True, text=True, check=False)
    return answer.stdout.split()


def _cancel_jobs(cluster: Cluster, controller: subprocess.Popen[bytes]) -> None:
    """Cancel jobs until none is left; their processes end with them."""
    end = time.monotonic() + STOP_SECONDS
    while controller.poll() is None and time.monotonic() < end:
        jobs = cluster.ask("squeue", "--noheader", "--format=%A").split()
        if not jobs:
            return
        cluster.ask("scancel", "--quiet", *jobs)
        time.sleep(PAUSE_SECONDS)


def _kill_strays(cluster: Cluster) -> None:
    """Kill processes that outlived their job or daemon. Their environment shows that they ran on one of our nodes."""
    ours = f"SLURM_CONF={cluster.environment['SLURM_CONF']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process may end in between
            variables = (process / "environ").read_bytes().split(b"\0")
            on_a_node = any(variable.startswith(b"SLURMD_NODENAME=") for variable in variables)
            of_slurm = (process / "comm").read_text().strip() in ("slurmstepd", "slurmscriptd")
            if ours in variables and (on_a_node or of_slurm):
                os.kill(int(process.name), signal.SIGKILL)
