"""Start `rigdyno` processes quickly: fork them from one that has imported torch and not used it yet."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from driving import PATIENCE_SECONDS, environment

SERVER = """
import fcntl, json, os, pty, resource, struct, sys, termios, traceback
sys.path.insert(0, sys.argv[2])
from rigdyno.base.processes import die_with_parent
die_with_parent(int(sys.argv[1]))
import rigdyno.commands.infer, rigdyno.engines.blockwise.inference
from rigdyno import cli
from slow_writes import slow_writes

def take(files, columns):
    if columns:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        return
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)

def become(asked, parent):
    take(asked["files"], asked["columns"])
    die_with_parent(parent)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for name in asked["hidden"]:
        sys.modules[name] = None
    if asked["largest_file"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["largest_file"],) * 2)
    if asked["writes"]:
        slow_writes(asked["writes"], asked["pause"], asked["fast"])
    code = 1
    try:
        code = cli.main(asked["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

def everything(terminal):
    with open(terminals[terminal], "wb") as file:
        try:
            while part := os.read(terminal, 65536):
                file.write(part)
        except OSError:  # as Linux says that the other side has closed it
            os.close(terminal)

parent, terminals = os.getpid(), {}
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        while terminals:
            everything(next(iter(terminals)))
            terminals.popitem()
        _, status = os.waitpid(asked["wait"], 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    child, terminal = pty.fork() if asked["columns"] else (os.fork(), None)
    if not child:
        become(asked, parent)
    if terminal:
        terminals[terminal] = asked["files"][1]
    print(child, flush=True)
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Running:
    pid: int
    out: Path
    err: Path

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


class Warm:
    """A server that forks processes, and ends all of them when it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._started = folder, 0
        self._alive: set[int] = set()
        # One thread each, and none before the fork: it would be missing after it.
        variables = environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(os.getpid()), str(Path(__file__).parent)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables, start_new_session=True,
        )  # fmt: skip
        assert self._heard() == "ready"

    def start(
        self, *arguments: str, cwd: Path, columns: int | None = None, hidden: tuple[str, ...] = (),
        largest_file: int | None = None, writes: Path | None = None, pause: float = 0.0, fast: int = 0, **changes: str,
    ) -> Running:  # fmt: skip
        """Start `rigdyno`. With `writes`, each block is logged there, and slowed as `slow_writes` says."""
        self._started += 1
        out, err = (self._folder / f"{self._started}.{name}" for name in ("out", "err"))
        variables = environment(OMP_NUM_THREADS="1", **changes)
        asked = {
            "arguments": arguments, "cwd": str(cwd), "environment": variables, "hidden": hidden,
            "files": [os.devnull, str(out), str(err)], "columns": columns, "largest_file": largest_file,
            "writes": str(writes) if writes else None, "pause": pause, "fast": fast,
        }  # fmt: skip
        pid = int(self._asked(asked))
        self._alive.add(pid)
        return Running(pid, out, err)

    def ended(self, running: Running) -> Answer:
        code = int(self._asked({"wait": running.pid}))
        self._alive.discard(running.pid)
        return Answer(code, *(file.read_text() if file.exists() else "" for file in (running.out, running.err)))

    def run(self, *arguments: str, cwd: Path, **options: object) -> Answer:
        return self.ended(self.start(*arguments, cwd=cwd, **options))

    def in_terminal(self, *arguments: str, cwd: Path, columns: int = 80, **options: object) -> Answer:
        """On a pseudo-terminal of that width; all that it was sent is in `out`."""
        return self.run(*arguments, cwd=cwd, columns=columns, **options)

    def __enter__(self) -> Warm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self._alive:
            os.kill(pid, signal.SIGKILL)
        self._server.kill()
        self._server.wait()
        self._server.stdin.close()
        self._server.stdout.close()

    def _asked(self, question: dict[str, object]) -> str:
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return self._heard()

    def _heard(self) -> str:
        assert select.select([self._server.stdout], [], [], PATIENCE_SECONDS)[0], "waited in vain for an answer"
        return self._server.stdout.readline().strip()
