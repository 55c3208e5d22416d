from __future__ import annotations

import signal
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from rigdyno import catalogue
from rigdyno.base.clock import SystemClock
from rigdyno.base.toml import read_toml
from rigdyno.base.units import NS_PER_S
from rigdyno.contracts import Unavailable

sys.path.insert(0, str(Path(__file__).parent))
SYSTEM = Path(__file__).parent / "system"
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.toml")


def pytest_addoption(parser):
    parser.addoption("--strict-skips", action="store_true", help=f"a skip that isn't in {ALLOWED_SKIPS.name} fails")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Fail if a test is skipped that isn't on the list: otherwise it could stop running unnoticed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--strict-skips"):
        return
    allowed = read_toml(ALLOWED_SKIPS)["skip"]
    skipped = [(report.nodeid, _why_skipped(report)) for report in reporter.stats.get("skipped", [])]
    unlisted = [
        f"{test}: {why}"
        for test, why in skipped
        if not any(fnmatchcase(test, each["test"]) and fnmatchcase(why, each["reason"]) for each in allowed)
    ]
    if unlisted:
        reporter.write_line(f"\nskipped, and not in {ALLOWED_SKIPS.name}:", red=True)
        for line in unlisted:
            reporter.write_line(f"  {line}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _why_skipped(report):
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


@pytest.fixture(autouse=True)
def _away_from_home(monkeypatch, tmp_path):
    """Keep tests from reading the user's configuration, and from leaving runs behind."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.delenv("RIGDYNO_RUNS", raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(autouse=True)
def _without_horovod(request, monkeypatch):
    """Hide Horovod, which only `make test-system` builds, so that other tests don't depend on it."""
    if SYSTEM in request.node.path.parents:
        return
    known = catalogue.find_missing

    def missing(requirements):
        needed = any(requirement.module == "horovod" for requirement in requirements)
        return Unavailable("horovod is not installed", "make horovod") if needed else known(requirements)

    monkeypatch.setattr(catalogue, "find_missing", missing)


@pytest.fixture(scope="module")
def without_drawing():
    """Leave the drawings of pages empty, for tests that render hundreds of pages or don't look at drawings."""
    from rigdyno.report.html import figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw_svg_for_page", lambda figure, width: f'<svg width="{width}" height="9"/>')
        yield


# In the background of a shell this process ignores Ctrl-C, and so would all processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def time_flies_after(monkeypatch):
    """Make the clock of this process, and of no child, run a quarter of an hour ahead once a file exists."""

    def once(path: Path) -> None:
        now_ns = SystemClock.now_ns
        monkeypatch.setattr(SystemClock, "now_ns", staticmethod(lambda: now_ns() + 900 * NS_PER_S * path.exists()))

    return once


@pytest.fixture
def one_thread():
    """Use one thread: two threads that wait for each other are very slow on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
