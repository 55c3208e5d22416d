"""Fixtures that give up on a hanging probe as soon as it hangs: no test waits for a time limit."""

import queue
import threading
from types import SimpleNamespace

import pytest

from rigdyno.base.threads import WorkerThread
from rigdyno.probes.common import probe_set


class Hang:
    """A call that blocks until `let_go`, and signals that it has begun."""

    def __init__(self):
        self.begun, self._released = threading.Event(), threading.Event()

    def __call__(self):
        if not self._released.is_set():
            self.begun.set()
        assert self._released.wait(60)

    def let_go(self):
        self._released.set()


@pytest.fixture
def hang(monkeypatch):
    """Return a call that hangs. A round of readings is given up once this call has begun; all others are waited for."""
    hang = Hang()

    class UntilItHangs(queue.SimpleQueue):
        def get(self, timeout):
            while True:
                try:
                    return super().get(timeout=0.001)
                except queue.Empty:
                    if hang.begun.is_set():
                        hang.begun.clear()
                        raise

    monkeypatch.setattr(probe_set, "queue", SimpleNamespace(SimpleQueue=UntilItHangs, Empty=queue.Empty))
    yield hang
    hang.let_go()


@pytest.fixture
def give_up_on(monkeypatch):
    """Return a function that makes the probe of this name too late to open; the others get all the time they need."""

    def give_up(name):
        class Late(WorkerThread):
            def __init__(self, thread_name):
                super().__init__(thread_name)
                self._is_late = thread_name == f"probe {name}"

            def wait_for_result(self, seconds):
                return None if self._is_late else super().wait_for_result(seconds)

        monkeypatch.setattr(probe_set, "WorkerThread", Late)

    return give_up
