"""Run `rigdyno` from outside, like a person or a script: with real processes, pipes, terminals and signals."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest.mock
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import RunRecord
from rigdyno.store.folder import RunFolder

PATIENCE_SECONDS = 280.0
COMMAND = (sys.executable, "-m", "rigdyno")
ANY_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment(**changes: str) -> dict[str, str]:
    """Return an environment without a configuration, and without variables about rigdyno, colours or widths."""
    silenced = ("RIGDYNO_RUNS", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "XDG_CONFIG_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in silenced}
    return {**kept, "XDG_CONFIG_HOME": "/nonexistent", "TERM": "xterm-256color", **changes}


def rigdyno(*arguments: str | bytes, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd, env=environment(**changes), capture_output=True, text=True, errors="replace",
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def here(*arguments: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which is faster, for commands that only read and answer."""
    from rigdyno import cli

    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(cwd)
    try:
        with (
            unittest.mock.patch.dict(os.environ, environment(**changes), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = cli.main(arguments)
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def started(*arguments: str, cwd: Path, **changes: str) -> subprocess.Popen[str]:
    """Start the command in its own process group, like a shell."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=cwd, env=environment(**changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def until(condition: Callable[[], object], what: str = "it happened") -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def only_run(folder: Path) -> RunFolder:
    (path,) = (folder / "runs").glob("[!.]*.*")
    return RunFolder(path)


def records(folder: RunFolder) -> list[RunRecord]:
    warnings: list[str] = []
    found = [cell.record for cell in folder.cells(warnings)]
    assert warnings == []
    return found


def cell_folders(store: Path) -> list[Path]:
    return sorted(store.glob("[!.]*.*/cells/*"))


def steps_began(store: Path, cell: int = 0, rows: int = 100) -> bool:
    """Return whether the worker of a cell has written at least this many rows."""
    folders = cell_folders(store)
    if len(folders) <= cell:
        return False
    path = CellFolder(folders[cell]).participant("rank0").rows("steps")
    return path.exists() and path.stat().st_size > 32 * rows


def pid_of(cell: Path, name: str) -> int:
    return int(CellFolder(cell).participant(name).pid.read_text())


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def none_left(cell: Path) -> None:
    pids = [
        int(text) for path in cell.glob("*/pid") if (text := path.read_text())
    ]  # empty: the disk was full before it could start
    until(lambda: not any(map(is_alive, pids)), f"the processes {pids} were gone")


def with_a_killed_rank(*arguments: str, cwd: Path, **changes: str) -> RunRecord:
    """Kill the second rank of a run while it steps, check that no process is left, and return the record."""
    process = started("run", *arguments, cwd=cwd, **changes)
    until(lambda: steps_began(cwd / "runs", rows=20), "the ranks were stepping")
    (cell,) = cell_folders(cwd / "runs")
    os.kill(pid_of(cell, "rank1"), signal.SIGKILL)
    code, out, _ = ended(process)
    assert code == 1, out
    none_left(cell)
    [record] = records(only_run(cwd))
    return record


@dataclass(frozen=True)
class Screen:
    """The output that a terminal received."""

    code: int
    text: str

    @property
    def plain(self) -> str:
        return self.text.replace("\r\n", "\n")


def in_terminal(
    *arguments: str,
    cwd: Path,
    columns: int = 80,
    pattern: str | None = None,
    react: Callable[[int], None] = lambda pid: None,
    **changes: str,
) -> Screen:
    """Run on a real pseudo-terminal of that width. As soon as it shows the pattern, `react` gets the process id."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(COMMAND[0], [*COMMAND, *arguments], environment(**changes))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    try:
        text = _everything(terminal, pattern, lambda: react(pid)).decode(errors="replace")
    finally:
        os.close(terminal)
    return Screen(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text)


def _everything(terminal: int, pattern: str | None, react: Callable[[], None]) -> bytes:
    """Read until the other side closes, which Linux reports as an error."""
    parts: list[bytes] = []
    while select.select([terminal], [], [], PATIENCE_SECONDS)[0]:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
        if pattern is not None and re.search(pattern, ANY_CODE.sub("", b"".join(parts).decode(errors="replace"))):
            pattern = None
            react()
    return b"".join(parts)


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to the whole process group, like a terminal at Ctrl-C."""
    os.killpg(process.pid, number)


def said_in_one_line(captured: tuple[str, str], words: str, folder: Path) -> None:
    """Check that one line on stderr says what was wrong, and that no files were left behind."""
    out, err = captured
    assert out == ""
    assert err.startswith("rigdyno: ")
    assert err.count("\n") == 1
    assert words in err
    assert not (folder / "runs").exists()
